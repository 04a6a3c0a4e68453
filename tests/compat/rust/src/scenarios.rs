// SPDX-License-Identifier: Apache-2.0

use std::sync::{Arc, Mutex};
use std::time::Instant;

use rocketmq_client_rust::{ClientError, DefaultLitePullConsumer, DefaultMQProducer, SendResult, SendStatus};
use rocketmq_model::common::message::message_queue::MessageQueue;

use crate::kit::{message, received, stop, Kit};
use crate::samples::{in_time, samples, some, wait_for, wait_limit, Collector, Outcome, Sample};

pub async fn run(name: &str, kit: &Kit) -> Outcome<String> {
    match name {
        "send_sync" => send_sync(kit).await,
        "send_async" => send_async(kit).await,
        "send_oneway" => send_oneway(kit).await,
        "send_batch" => send_batch(kit).await,
        "push_all" => push_all(kit).await,
        "push_tag" => push_filtered(kit, "Aa", &["Aa"]).await,
        "push_tags" => push_filtered(kit, "Aa||TagC", &["Aa", "TagC"]).await,
        "rebalance" => rebalance(kit).await,
        "restart_consumer" => restart_consumer(kit).await,
        "pull" => pull(kit).await,
        "before_restart" => before_restart(kit).await,
        "after_restart" => after_restart(kit).await,
        _ => unreachable!("the list of scenarios has {name}"),
    }
}

// ---- sending to a topic that does not exist yet ---------------------------------

/// Consumes everything that was sent to a new topic, from the start.
async fn verify_sent(kit: &Kit, mut p: DefaultMQProducer, sent: &[Sample]) -> Outcome<String> {
    consume_exactly(kit, &mut p, sent, "*", "TagA").await?;
    p.shutdown().await;
    Ok(format!("PASS {} messages to a new topic arrived once each, unchanged", sent.len()))
}

/// Starts a consumer on a topic with messages and checks what it gets.
async fn consume_exactly(
    kit: &Kit,
    p: &mut DefaultMQProducer,
    expected: &[Sample],
    expression: &str,
    fence_tag: &str,
) -> Outcome<()> {
    kit.queues(p).await?;
    let sink = Arc::new(Collector::default());
    let consumer = kit.consumer(&sink, expression).await?;
    let arrived = async {
        sink.wait_all(expected).await?;
        kit.fence(&sink, fence_tag).await
    }
    .await;
    stop(consumer).await?;
    arrived?;
    sink.exactly(expected)
}

async fn send_sync(kit: &Kit) -> Outcome<String> {
    let p = kit.producer().await?;
    let sent = samples(0..50, "TagA");
    kit.send_all(&p, &sent).await?;
    verify_sent(kit, p, &sent).await
}

async fn send_async(kit: &Kit) -> Outcome<String> {
    let p = kit.producer().await?;
    let sent = samples(0..50, "TagA");
    let answers = Arc::new(Mutex::new(Vec::new()));
    for s in &sent {
        let (answers, id) = (answers.clone(), s.id.clone());
        let callback = move |result: Option<&SendResult>, error: Option<&ClientError>| {
            let answer = match (result, error) {
                (Some(r), None) if r.send_status == SendStatus::SendOk => Ok(()),
                (_, Some(error)) => Err(format!("{id}: {error}")),
                (result, None) => Err(format!("{id}: {result:?}")),
            };
            answers.lock().unwrap().push(answer);
        };
        p.send_with_callback(message(s, &kit.topic), callback).await.map_err(|e| format!("send {}: {e}", s.id))?;
    }
    wait_for("all callbacks", || answers.lock().unwrap().len() == sent.len()).await?;
    let failures: Vec<String> = answers.lock().unwrap().iter().filter_map(|a| a.clone().err()).collect();
    if !failures.is_empty() {
        return Err(format!("{} sends failed: {}", failures.len(), some(&failures)));
    }
    verify_sent(kit, p, &sent).await
}

async fn send_oneway(kit: &Kit) -> Outcome<String> {
    let p = kit.producer().await?;
    let sent = samples(0..50, "TagA");
    for s in &sent {
        p.send_oneway(message(s, &kit.topic)).await.map_err(|e| format!("send {}: {e}", s.id))?;
    }
    verify_sent(kit, p, &sent).await
}

async fn send_batch(kit: &Kit) -> Outcome<String> {
    let p = kit.producer().await?;
    let sent = samples(0..50, "TagA");
    for part in sent.chunks(10) {
        let batch = part.iter().map(|s| message(s, &kit.topic)).collect();
        let result = in_time("a send", p.send_batch(batch)).await?.map_err(|e| format!("send batch: {e}"))?;
        if result.send_status != SendStatus::SendOk {
            return Err(format!("send batch: {result:?}"));
        }
    }
    verify_sent(kit, p, &sent).await
}

// ---- push consumers -------------------------------------------------------------

async fn push_all(kit: &Kit) -> Outcome<String> {
    // Half of the messages wait for the consumer, the others come while it is held in a long poll.
    let mut p = kit.producer().await?;
    let (early, late) = (samples(0..40, "TagA"), samples(40..80, "TagB"));
    kit.send_all(&p, &early).await?;
    kit.queues(&mut p).await?;
    let sink = Arc::new(Collector::default());
    let consumer = kit.consumer(&sink, "*").await?;
    let arrived = async {
        sink.wait_all(&early).await?;
        kit.send_all(&p, &late).await?;
        sink.wait_all(&late).await?;
        kit.fence(&sink, "TagA").await
    }
    .await;
    stop(consumer).await?;
    p.shutdown().await;
    arrived?;
    sink.exactly(&[early, late].concat())?;
    Ok("PASS 80 messages, 40 of them sent to a waiting consumer".to_string())
}

/// Sends messages of four tags and expects those of the wanted tags only. "Aa" and "BB" have
/// the same Java hash code, so a filter by the hash alone is not enough.
///
/// The expression has no spaces: with "Aa || TagC" the client's heartbeat carries the hash codes
/// of "Aa " and " TagC" (it hashes before it trims), and a broker that takes them as they are,
/// as Apache's does, has nothing to deliver.
async fn push_filtered(kit: &Kit, expression: &str, wanted: &[&str]) -> Outcome<String> {
    let mut p = kit.producer().await?;
    let tags = ["Aa", "BB", "TagC", "TagD"];
    // The shift by i/4 spreads each tag over all queues.
    let all: Vec<Sample> = (0..80).map(|i| Sample::new(i, tags[(i + i / 4) % 4])).collect();
    kit.send_all(&p, &all).await?;
    let expected: Vec<Sample> = all.into_iter().filter(|s| wanted.contains(&s.tag.as_str())).collect();
    consume_exactly(kit, &mut p, &expected, expression, wanted[0]).await?;
    p.shutdown().await;
    Ok(format!("PASS {expression:?} got its {} of 80 messages", expected.len()))
}

// ---- consumer groups --------------------------------------------------------------

/// Says on which queues the messages of a round (one for each queue) reached `a` and `b`, or
/// nothing unless each message is at one consumer only and the queues are shared evenly.
fn even_split(round: &[Sample], a: &Collector, b: &Collector) -> Option<String> {
    let (at_a, at_b) = (a.queues_of(round), b.queues_of(round));
    let even = at_a.len() + at_b.len() == round.len()
        && !at_a.is_empty()
        && !at_b.is_empty()
        && at_a.len().abs_diff(at_b.len()) <= 1;
    even.then(|| format!("{at_a:?}|{at_b:?}"))
}

async fn rebalance(kit: &Kit) -> Outcome<String> {
    let mut p = kit.producer().await?;
    let first = samples(0..4, "TagA");
    kit.send_all(&p, &first).await?;
    let queues = kit.queues(&mut p).await?;
    let (a, b) = (Arc::new(Collector::default()), Arc::new(Collector::default()));
    let consumer_a = kit.consumer(&a, "*").await?;
    a.wait_all(&first).await?;
    let consumer_b = kit.consumer(&b, "*").await?;
    let shared = share_queues(kit, &p, &queues, &a, &b).await?;

    stop(consumer_b).await?;
    let before = b.distinct();
    let rest = samples(100..140, "TagA");
    kit.send_all(&p, &rest).await?;
    a.wait_all(&rest).await?;
    kit.fence(&a, "TagA").await?;
    stop(consumer_a).await?;
    p.shutdown().await;
    if b.distinct() != before {
        return Err("the consumer that left got messages".to_string());
    }
    // Only the messages sent after the change count here: a change of owner may repeat older ones.
    a.once_each(&rest)?;
    Ok(format!("PASS queues shared {shared} in 5 rounds, then all 40 messages at the one that stayed"))
}

/// Sends rounds of one message to each queue until several in a row are shared out evenly and
/// in the same way. The earlier ones are looked at again, so a late second copy is noticed.
async fn share_queues(
    kit: &Kit,
    p: &DefaultMQProducer,
    queues: &[MessageQueue],
    a: &Collector,
    b: &Collector,
) -> Outcome<String> {
    let end = Instant::now() + wait_limit();
    let mut next = 1000;
    let mut rounds: Vec<Vec<Sample>> = Vec::new();
    loop {
        if Instant::now() > end {
            let (limit, count) = (wait_limit(), queues.len());
            return Err(format!("after {limit:?} the consumers still do not share {count} queues"));
        }
        let round = samples(next..next + queues.len(), "TagA");
        next += queues.len();
        kit.send_round(p, queues, &round).await?;
        wait_for("a round of messages at either consumer", || round.iter().all(|s| a.has(&s.id) || b.has(&s.id)))
            .await?;
        let split = even_split(&round, a, b);
        rounds.push(round);
        if split.is_none() || rounds.iter().any(|r| even_split(r, a, b) != split) {
            rounds.clear();
        }
        if let (5, Some(split)) = (rounds.len(), split) {
            return Ok(split);
        }
    }
}

async fn restart_consumer(kit: &Kit) -> Outcome<String> {
    let mut p = kit.producer().await?;
    let meanwhile = samples(40..60, "TagA");
    consume_first_part(kit, &mut p, &samples(0..40, "TagA")).await?;
    kit.send_all(&p, &meanwhile).await?;
    consume_exactly(kit, &mut p, &meanwhile, "*", "TagA").await?;
    p.shutdown().await;
    Ok("PASS 40 before, then exactly the 20 that came while the group was away".to_string())
}

/// Sends and consumes the samples and leaves with the offsets committed.
async fn consume_first_part(kit: &Kit, p: &mut DefaultMQProducer, first: &[Sample]) -> Outcome<()> {
    kit.send_all(p, first).await?;
    consume_exactly(kit, p, first, "*", "TagA").await
}

// ---- restart of the broker, in two processes ----------------------------------------

async fn before_restart(kit: &Kit) -> Outcome<String> {
    let mut p = kit.producer().await?;
    consume_first_part(kit, &mut p, &samples(0..60, "TagA")).await?;
    kit.send_all(&p, &samples(60..100, "TagA")).await?;
    p.shutdown().await;
    Ok(format!("PASS sent 100, consumed 60, left 40; topic {}, group {}", kit.topic, kit.group))
}

async fn after_restart(kit: &Kit) -> Outcome<String> {
    let mut p = kit.producer().await?;
    consume_exactly(kit, &mut p, &samples(60..100, "TagA"), "*", "TagA").await?;
    p.shutdown().await;
    Ok("PASS exactly the 40 messages that were left arrived".to_string())
}

// ---- pull consumer ------------------------------------------------------------------

async fn pull(kit: &Kit) -> Outcome<String> {
    let mut p = kit.producer().await?;
    let first = samples(0..40, "TagA");
    kit.send_all(&p, &first).await?;
    let queues = kit.queues(&mut p).await?;
    pull_assigned(kit, &queues, &first).await.map_err(|e| format!("pull by assignment: {e}"))?;
    poll_as_member(kit, &first).await.map_err(|e| format!("poll: {e}"))?;
    let later = samples(40..60, "TagA");
    kit.send_all(&p, &later).await?;
    poll_as_member(kit, &later).await.map_err(|e| format!("poll after a restart: {e}"))?;
    p.shutdown().await;
    Ok("PASS 40 by assignment, again after a seek, 40 by poll, and exactly the 20 new ones after a restart of the consumer".to_string())
}

async fn take(c: &DefaultLitePullConsumer, sink: &Collector) {
    for m in c.poll_with_timeout(100).await {
        sink.add(received(&m));
    }
}

/// Polls until all samples have come.
async fn poll_all(c: &DefaultLitePullConsumer, sink: &Collector, expected: &[Sample]) -> Outcome<()> {
    let end = Instant::now() + wait_limit();
    while !sink.has_all(expected) {
        if Instant::now() > end {
            let missing = sink.missing(expected);
            return Err(format!("waited {:?}: {} did not arrive: {}", wait_limit(), missing.len(), some(&missing)));
        }
        take(c, sink).await;
    }
    Ok(())
}

/// Reads queues that are assigned by hand from their start, and after a seek once more.
async fn pull_assigned(kit: &Kit, queues: &[MessageQueue], expected: &[Sample]) -> Outcome<()> {
    let c = kit.pull_consumer(&format!("{}_assign", kit.group))?;
    in_time("the pull consumer to start", c.start()).await?.map_err(|e| format!("start: {e}"))?;
    c.assign(queues.to_vec()).await.map_err(|e| format!("assign: {e}"))?;
    let (first, again) = (Collector::default(), Collector::default());
    let result = async {
        poll_all(&c, &first, expected).await?;
        for queue in queues {
            in_time("a seek", c.seek_to_begin(queue)).await?.map_err(|e| format!("seek: {e}"))?;
        }
        poll_all(&c, &again, expected).await.map_err(|e| format!("after seek: {e}"))
    }
    .await;
    in_time("the pull consumer to stop", c.shutdown()).await?;
    result?;
    first.exactly(expected)?;
    again.exactly(expected)
}

/// Takes messages as a member of the group until all have come, then commits and leaves.
async fn poll_as_member(kit: &Kit, expected: &[Sample]) -> Outcome<()> {
    let c = kit.pull_consumer(&kit.group)?;
    c.subscribe(&kit.topic).await.map_err(|e| format!("subscribe: {e}"))?;
    in_time("the pull consumer to start", c.start()).await?.map_err(|e| format!("start: {e}"))?;
    let sink = Collector::default();
    let result = async {
        poll_all(&c, &sink, expected).await?;
        let (token, count) = kit.send_fences("TagA").await?;
        let end = Instant::now() + wait_limit();
        while sink.fences(&token) < count {
            if Instant::now() > end {
                return Err(format!("waited {:?} for the fences of all queues", wait_limit()));
            }
            take(&c, &sink).await;
        }
        c.commit_all().await.map_err(|e| format!("commit: {e}"))
    }
    .await;
    in_time("the pull consumer to stop", c.shutdown()).await?;
    result?;
    sink.exactly(expected)
}
