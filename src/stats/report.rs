//! Copies for a reader on another thread.

use super::series::TopicSeries;
use super::{CloseReason, Counters, Histogram, LogTimes, Times, rpc};
use crate::limits::DELIVERY_HISTOGRAMS_MAX;

/// Everything one shard has counted and measured, as of one instant.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of [`Counters::LABELS`].
    pub values: Vec<u64>,
    /// By [`CloseReason`].
    pub closed: [u64; CloseReason::ALL.len()],
    pub times: Times,
    pub log: LogTimes,
    pub topics: Vec<TopicSeries>,
    pub deliveries: Vec<Delivery>,
    pub rpcs: Vec<rpc::Series>,
    /// Messages that went to the dead letters, by group, sorted.
    pub dead_letters: Vec<(String, u64)>,
    pub lags: Lags,
    pub consumers: Vec<Members>,
    /// Their group is empty.
    pub producers: Vec<Members>,
    pub gauges: Gauges,
    pub state: State,
}

/// What one group got of one topic.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub group: String,
    pub topic: String,
    pub messages: u64,
    pub bytes: u64,
    /// Of those with the most messages only.
    pub latency: Option<Histogram>,
}

/// Where the live groups stand, of as many as may be looked at.
#[derive(Clone, Debug, Default)]
pub struct Lags {
    pub rows: Vec<Lag>,
    /// Pairs of group and topic that were left out.
    pub left_out: u64,
}

/// Where a live group stands in one topic, over the queues of this shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    pub group: String,
    pub topic: String,
    /// Not committed for.
    pub messages: u64,
    /// Delivered and not committed for.
    pub in_flight: u64,
    /// Not delivered.
    pub ready: u64,
    /// Age of the oldest message that is not committed for, and of the oldest that was not delivered; 0 without one.
    /// Where the message has left memory, the age of the oldest bytes in memory, which is less.
    pub latency_ms: u64,
    pub queueing_ms: u64,
}

/// Members of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    pub group: String,
    pub consume_mode: &'static str,
    pub language: &'static str,
    pub version: i32,
    pub count: u64,
}

/// What a shard has now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    pub log_start: u64,
    pub appended: u64,
    pub written: u64,
    pub flushed: u64,
    pub visible: u64,
    /// Sends that wait for the log.
    pub sends_waiting: u64,
    /// Requests that wait for reads from disk.
    pub reads_waiting: u64,
    pub out_bytes: u64,
    pub partial_frame_bytes: u64,
    pub topics: u64,
    pub groups: u64,
    pub permission: u32,
}

/// Whether a shard serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub is_stopping: bool,
    /// Why the log refuses sends, if it does.
    pub read_only: Option<String>,
    /// Why it refuses them until there is room on the disk.
    pub disk_full: Option<String>,
}

/// A hold, for whoever asks why a consumer waits. Times are milliseconds since the Unix epoch.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldRow {
    pub shard: u16,
    pub broker: String,
    pub topic: String,
    pub queue_id: u32,
    pub group: String,
    /// Where the group's heartbeats on this connection name one.
    pub client_id: Option<String>,
    pub client: String,
    pub filter: String,
    pub asked_offset: u64,
    /// The first offset that the filter has not seen.
    pub examined_to: u64,
    pub since: u64,
    pub waited_ms: u64,
    pub deadline: u64,
    pub left_ms: u64,
    pub last_refused: Option<Refused>,
}

/// The last message that a filter refused.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    pub offset: u64,
    /// Where the message is in memory.
    pub tag: Option<String>,
    pub why: String,
}

/// Which holds somebody asks for.
#[derive(Clone, Debug, Default)]
pub struct HoldsWanted {
    pub topic: Option<String>,
    pub group: Option<String>,
    /// Place at which the page begins.
    pub from: u32,
    /// Rows that there is room for; further holds are counted.
    pub rows_max: usize,
}

/// A page of holds.
#[derive(Clone, Debug, Default)]
pub struct HoldPage {
    pub rows: Vec<HoldRow>,
    /// Holds that match, on this page.
    pub matching: u64,
    /// Where the next page begins; `None` at the end.
    pub next: Option<u32>,
}

/// A slow delivery. Hops are microseconds from the arrival, in the order in which they happen.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SlowRow {
    pub shard: u16,
    pub broker: String,
    pub topic: String,
    pub queue_id: u32,
    pub group: String,
    pub client: Option<String>,
    pub asked_offset: u64,
    pub messages: u32,
    /// When the message arrived, in milliseconds since the Unix epoch.
    pub arrived: u64,
    /// How long the pull had been held then.
    pub held_before_us: u64,
    pub written_us: u64,
    pub visible_us: u64,
    pub reply_queued_us: u64,
    /// The kernel has taken the reply.
    pub sent_us: Option<u64>,
}

impl Counters {
    /// The series of deliveries, those of one name added up; the histograms of the busiest.
    pub fn deliveries(&self) -> Vec<Delivery> {
        let mut all: Vec<_> = self.tables.deliveries.all().iter().collect();
        all.sort_by(|a, b| (&a.group, &a.topic).cmp(&(&b.group, &b.topic)));
        let mut rows: Vec<Delivery> = Vec::new();
        for series in all {
            let is_same =
                |row: &Delivery| *row.group == *series.group && *row.topic == *series.topic;
            match rows.last_mut().filter(|row| is_same(row)) {
                Some(row) => {
                    row.messages += series.messages;
                    row.bytes += series.bytes;
                    if let Some(latency) = &mut row.latency {
                        latency.add(&series.latency);
                    }
                }
                None => rows.push(Delivery {
                    group: series.group.to_string(),
                    topic: series.topic.to_string(),
                    messages: series.messages,
                    bytes: series.bytes,
                    latency: Some(series.latency.clone()),
                }),
            }
        }
        rows.retain(|row| row.messages > 0);
        let mut busiest: Vec<&mut Delivery> = rows.iter_mut().collect();
        busiest.sort_by_key(|row| std::cmp::Reverse(row.messages));
        for row in busiest.into_iter().skip(DELIVERY_HISTOGRAMS_MAX) {
            row.latency = None;
        }
        rows
    }

    /// Topics with messages.
    pub fn topics(&self) -> Vec<TopicSeries> {
        let all = self.tables.topics.all().iter();
        let with_messages = all.filter(|s| s.types.iter().any(|traffic| traffic.messages > 0));
        with_messages.cloned().collect()
    }

    /// Messages that went to the dead letters, by group, sorted.
    pub fn dead_letters(&self) -> Vec<(String, u64)> {
        let groups = self.tables.dead_letters.iter();
        let mut groups: Vec<_> = groups.map(|(name, n)| (name.to_string(), *n)).collect();
        groups.sort_unstable();
        groups
    }
}
