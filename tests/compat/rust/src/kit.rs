// SPDX-License-Identifier: Apache-2.0

//! Clients with the names of one scenario, and the fences.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rocketmq_client_rust::{
    ClientConfig, ClientResult, ClientRuntime, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    DefaultLitePullConsumer, DefaultMQProducer, DefaultMQPushConsumer, MQPushConsumer, MessageListenerConcurrently,
    SendResult, SendStatus,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_queue::MessageQueue;
use rocketmq_model::common::message::message_single::Message;

use crate::run::Options;
use crate::samples::{in_time, wait_for, wait_limit, Collector, Outcome, Received, Sample, FENCE};

pub struct Kit {
    namesrv: String,
    pub topic: String,
    pub group: String,
    instance: String,
    seq: AtomicUsize,
    runtime: Arc<ClientRuntime>,
}

impl Kit {
    pub fn new(name: &str, options: &Options, runtime: Arc<ClientRuntime>) -> Kit {
        // Both halves of the restart test share one topic and one group.
        let name = if name.ends_with("_restart") { "broker_restart" } else { name };
        let run = &options.run;
        Kit {
            namesrv: options.namesrv.clone(),
            topic: format!("compat_rust_{run}_{name}"),
            group: format!("GID_compat_rust_{run}_{name}"),
            instance: format!("{run}-{name}-{}", std::process::id()),
            seq: AtomicUsize::new(0),
            runtime,
        }
    }

    /// Each client gets an id of its own, as separate processes would have.
    fn next_instance(&self) -> String {
        format!("{}-{}", self.instance, self.seq.fetch_add(1, Ordering::Relaxed))
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.namesrv_addr = Some(self.namesrv.as_str().into());
        config.instance_name = self.next_instance().into();
        config
    }

    pub async fn producer(&self) -> Outcome<DefaultMQProducer> {
        let mut p = DefaultMQProducer::builder(self.runtime.clone())
            .client_config(self.config())
            .producer_group(format!("P{}", self.group))
            .build();
        in_time("the producer to start", p.start()).await?.map_err(|e| format!("producer start: {e}"))?;
        Ok(p)
    }

    /// The queues of the topic, once the name server knows it.
    pub async fn queues(&self, p: &mut DefaultMQProducer) -> Outcome<Vec<MessageQueue>> {
        let end = Instant::now() + wait_limit();
        loop {
            match in_time("the route", p.fetch_publish_message_queues(&self.topic)).await? {
                Ok(queues) if !queues.is_empty() => return Ok(queues),
                other if Instant::now() > end => {
                    return Err(format!("waited {:?} for the route of {}: {other:?}", wait_limit(), self.topic));
                }
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// A started push consumer. It has one worker: the client records a message as consumed
    /// before it hands out the next one, so once a fence has arrived on a queue, all that came
    /// before it is consumed and recorded.
    pub async fn consumer(&self, sink: &Arc<Collector>, expression: &str) -> Outcome<DefaultMQPushConsumer> {
        let mut c = DefaultMQPushConsumer::builder(self.runtime.clone())
            .client_config(self.config())
            .consumer_group(self.group.as_str())
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .consume_thread_min(1)
            .consume_thread_max(1)
            .await_termination_millis_when_shutdown(5000)
            .build();
        in_time("the subscription", c.subscribe(self.topic.as_str(), expression))
            .await?
            .map_err(|e| format!("subscribe: {e}"))?;
        c.register_message_listener_concurrently(Listener(sink.clone()));
        in_time("the consumer to start", c.start()).await?.map_err(|e| format!("consumer start: {e}"))?;
        Ok(c)
    }

    pub fn pull_consumer(&self, group: &str) -> Outcome<DefaultLitePullConsumer> {
        DefaultLitePullConsumer::builder(self.runtime.clone())
            .name_server_addr(self.namesrv.as_str())
            .instance_name(self.next_instance())
            .consumer_group(group)
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .auto_commit(false)
            // The client stops only after its held pulls have come back.
            .broker_suspend_max_time_millis(1000)
            .build()
            .map_err(|e| format!("pull consumer: {e}"))
    }

    pub async fn send_all(&self, p: &DefaultMQProducer, samples: &[Sample]) -> Outcome<()> {
        for s in samples {
            let result = in_time("a send", p.send(message(s, &self.topic))).await?;
            sent(result).map_err(|e| format!("send {}: {e}", s.id))?;
        }
        Ok(())
    }

    /// Sends one message to each queue.
    pub async fn send_round(&self, p: &DefaultMQProducer, queues: &[MessageQueue], round: &[Sample]) -> Outcome<()> {
        for (s, queue) in round.iter().zip(queues) {
            let result = in_time("a send", p.send_to_queue(message(s, &self.topic), queue.clone())).await?;
            sent(result).map_err(|e| format!("send {}: {e}", s.id))?;
        }
        Ok(())
    }

    /// Sends one marker to each queue and returns the token and how many there are.
    pub async fn send_fences(&self, tag: &str) -> Outcome<(String, usize)> {
        let mut p = self.producer().await?;
        let queues = self.queues(&mut p).await?;
        let token = self.next_instance();
        for queue in &queues {
            let m = Message::builder()
                .topic(self.topic.as_str())
                .tags(tag)
                .raw_property(FENCE, token.as_str())
                .map_err(|e| e.to_string())?
                .body_slice(b"fence")
                .build_unchecked();
            sent(in_time("a send", p.send_to_queue(m, queue.clone())).await?).map_err(|e| format!("fence: {e}"))?;
        }
        in_time("the producer to stop", p.shutdown()).await?;
        Ok((token, queues.len()))
    }

    /// Sends one marker to each queue and waits until all of them have arrived. A queue is
    /// delivered in order, so whatever was to come before the markers has come by then: this
    /// is how a scenario proves that something does NOT arrive.
    pub async fn fence(&self, sink: &Collector, tag: &str) -> Outcome<()> {
        let (token, queues) = self.send_fences(tag).await?;
        wait_for("the fences of all queues", || sink.fences(&token) == queues).await
    }
}

pub async fn stop(mut c: DefaultMQPushConsumer) -> Outcome<()> {
    in_time("the consumer to stop", c.shutdown()).await
}

pub fn message(s: &Sample, topic: &str) -> Message {
    let mut builder = Message::builder().topic(topic).tags(s.tag.as_str()).keys(s.keys.clone()).body_slice(&s.body);
    for (name, value) in &s.props {
        builder = builder.raw_property(*name, value.as_str()).expect("not a reserved name");
    }
    builder.build_unchecked()
}

pub fn sent(result: ClientResult<Option<SendResult>>) -> Outcome<()> {
    match result {
        Ok(Some(result)) if result.send_status == SendStatus::SendOk => Ok(()),
        Ok(other) => Err(format!("answer {other:?}")),
        Err(e) => Err(e.to_string()),
    }
}

struct Listener(Arc<Collector>);

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        for m in messages {
            self.0.add(received(m));
        }
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

pub fn received(m: &MessageExt) -> Received {
    Received {
        body: m.body().map(|b| b.to_vec()).unwrap_or_default(),
        props: m.properties().iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
        queue_id: m.queue_id(),
        born_timestamp: m.born_timestamp(),
        store_timestamp: m.store_timestamp(),
        store_host: m.store_host().to_string(),
        reconsume_times: m.reconsume_times(),
    }
}
