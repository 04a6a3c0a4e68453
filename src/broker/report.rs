//! What the metrics tell of groups and holds. Looks at memory only; bounded, since it runs on the shard's thread.

use super::filter::Filter;
use super::holds::HoldView;
use super::{Broker, Context, query};
use crate::ids::ConnectionId;
use crate::limits::{HOLDS_EXAMINED_MAX, LAG_PAIRS_MAX, LAG_QUEUES_MAX};
use crate::protocol::message::{RECORD_OVERHEAD_BYTES, store_timestamp_of, tag_of};
use crate::protocol::names::RETRY_PREFIX;
use crate::stats::report::{HoldPage, HoldRow, HoldsWanted, Lag, Lags, Members, Refused};
use std::net::SocketAddr;

fn is_wanted(wanted: &HoldsWanted, hold: &HoldView<'_>) -> bool {
    let is = |wanted: &Option<String>, name| wanted.as_deref().is_none_or(|w| w == name);
    is(&wanted.topic, hold.topic) && is(&wanted.group, hold.group)
}

/// A page of holds. `shard`, and `peer_of`, which address a connection has, are the shard's to know.
pub fn holds(
    broker: &Broker,
    wanted: &HoldsWanted,
    shard: u16,
    peer_of: impl Fn(ConnectionId) -> Option<SocketAddr>,
    cx: &Context<'_>,
) -> HoldPage {
    let (holds, next) = broker.holds.page(wanted.from, HOLDS_EXAMINED_MAX);
    let mut page = HoldPage {
        next,
        ..HoldPage::default()
    };
    let (now_us, now_ms) = (cx.now.monotonic_us, cx.now.wall_ms);
    for hold in holds.filter(|hold| is_wanted(wanted, hold)) {
        page.matching += 1;
        if page.rows.len() >= wanted.rows_max {
            continue;
        }
        let waited_ms = now_us.saturating_sub(hold.since_us) / 1000;
        let left_ms = hold.deadline_us.saturating_sub(now_us) / 1000;
        let mut members = broker.clients.members(hold.group);
        let member = members.find(|(connection, _)| *connection == hold.connection);
        page.rows.push(HoldRow {
            shard,
            broker: broker.config.broker_name.clone(),
            topic: hold.topic.to_owned(),
            queue_id: hold.queue_id,
            group: hold.group.to_owned(),
            client_id: member.map(|(_, member)| member.client_id.to_string()),
            client: peer_of(hold.connection)
                .map(|peer| peer.to_string())
                .unwrap_or_default(),
            filter: hold.expression.to_owned(),
            asked_offset: hold.offset.0,
            examined_to: hold.cursor.0,
            since: now_ms.saturating_sub(waited_ms),
            waited_ms,
            deadline: now_ms + left_ms,
            left_ms,
            last_refused: refused(&hold, cx),
        });
    }
    page
}

/// Why the filter refused the last message that it saw.
fn refused(hold: &HoldView<'_>, cx: &Context<'_>) -> Option<Refused> {
    let (offset, code) = hold.refused?;
    let entry = cx.store.entry(hold.queue, offset, cx.fetched).ok();
    let record = entry.and_then(|e| cx.store.record(e.at, e.bytes, cx.fetched).ok());
    let tag = record.and_then(|record| tag_of(&record).ok().map(str::to_owned));
    let shown = match tag.as_deref() {
        Some("") => "it has no tag".to_owned(),
        Some(tag) => format!("its tag is {tag:?}"),
        None => format!("its tags code is {code}"),
    };
    let why = match hold.filter {
        Filter::All => "the filter takes everything".to_owned(),
        Filter::Tags(tags) if tags.is_empty() => {
            format!("{:?} matches no message at all", hold.expression)
        }
        Filter::Tags(tags) => match tags.iter().find(|(known, _)| *known == code) {
            Some((_, like)) => {
                format!("{shown}, which has the hash of {like:?} and is not the same")
            }
            None => format!("{shown}, which is none of {:?}", hold.expression),
        },
    };
    Some(Refused {
        offset: offset.0,
        tag,
        why,
    })
}

/// Where the live groups stand in what they subscribe to. Retry topics are left out, as in Java.
///
/// **Source**: apache/rocketmq 5.3.x `ConsumerLagCalculator`, which also estimates how many of the messages a filter
/// takes; here all count.
pub fn lags(broker: &Broker, cx: &Context<'_>) -> Lags {
    let mut lags = Lags::default();
    let mut queues_left = LAG_QUEUES_MAX;
    for group in broker.clients.live_groups() {
        for topic in broker.clients.topics_of(group) {
            let Some(config) = broker.topics.get(topic).map(|topic| &topic.config) else {
                continue;
            };
            if topic.starts_with(RETRY_PREFIX) {
                continue;
            }
            let queues = config.read_queue_nums.max(config.write_queue_nums);
            if lags.rows.len() >= LAG_PAIRS_MAX || queues_left < queues as usize {
                lags.left_out += 1;
                continue;
            }
            queues_left -= queues as usize;
            lags.rows.push(lag(broker, group, topic, queues, cx));
        }
    }
    lags
}

fn lag(broker: &Broker, group: &str, topic: &str, queues: u32, cx: &Context<'_>) -> Lag {
    let names = (broker.groups.get(group), broker.topics.get(topic));
    let pulled = match &names {
        (Some(group), Some(topic)) => cx.counters.pulled(&group.name, &topic.name),
        _ => &[],
    };
    let mut lag = Lag {
        group: group.to_owned(),
        topic: topic.to_owned(),
        messages: 0,
        in_flight: 0,
        ready: 0,
        latency_ms: 0,
        queueing_ms: 0,
    };
    for queue_id in 0..queues {
        let Some(queue) = cx.store.queue(topic, queue_id) else {
            continue;
        };
        let bounds = cx.store.bounds(queue);
        let end = bounds.max.0;
        let committed = broker.offsets.get(group, topic, queue_id);
        let committed = committed.unwrap_or(end).clamp(bounds.min.0, end);
        let pulled = pulled.get(queue_id as usize).copied().unwrap_or(0);
        let pulled = pulled.clamp(committed, end);
        lag.messages += end - committed;
        lag.in_flight += pulled - committed;
        lag.ready += end - pulled;
        let age_ms = |offset: u64| {
            if offset == end {
                return 0;
            }
            let at_ms = query::store_time(queue, offset, cx).ok();
            let at_ms = at_ms
                .filter(|at| *at > 0)
                .or_else(|| oldest_in_memory_ms(cx));
            cx.now
                .wall_ms
                .saturating_sub(at_ms.unwrap_or(cx.now.wall_ms))
        };
        let latency_ms = age_ms(committed);
        let queueing_ms = if pulled == committed {
            latency_ms
        } else {
            age_ms(pulled)
        };
        lag.latency_ms = lag.latency_ms.max(latency_ms);
        lag.queueing_ms = lag.queueing_ms.max(queueing_ms);
    }
    lag
}

fn oldest_in_memory_ms(cx: &Context<'_>) -> Option<u64> {
    let start = cx.store.oldest_in_memory(RECORD_OVERHEAD_BYTES as u32)?;
    store_timestamp_of(&start).ok()
}

/// Members of the live groups by what they are, at most so many rows as there may be lags.
pub fn consumers(broker: &Broker) -> Vec<Members> {
    let rows = broker.clients.consumers_by_kind();
    let rows = rows.into_iter().take(LAG_PAIRS_MAX);
    rows.map(|((group, consume_mode, kind), count)| Members {
        group: group.to_owned(),
        consume_mode,
        language: kind.language,
        version: kind.version,
        count,
    })
    .collect()
}

/// Memberships of producers by what they are.
pub fn producers(broker: &Broker) -> Vec<Members> {
    let rows = broker.clients.producers_by_kind();
    let rows = rows.into_iter().take(LAG_PAIRS_MAX);
    rows.map(|(kind, count)| Members {
        group: String::new(),
        consume_mode: "",
        language: kind.language,
        version: kind.version,
        count,
    })
    .collect()
}
