//! What a shard counts and measures: a closed list of counters, histograms, bounded series of topics and groups, the
//! slowest deliveries. One instance per shard, no locks; a reader gets a copy ([`report`]).
//!
//! Times are microseconds of the turn's instant, but for three that a turn reads for measuring alone: when its writes
//! had completed, when its replies were handed over, when it ended.

pub mod histogram;
pub mod log_times;
pub mod report;
pub mod rpc;
pub mod series;
pub mod slow;

pub use histogram::Histogram;
pub use log_times::LogTimes;
pub use rpc::Asked;

use crate::ids::{ConnectionId, NameMap};
use crate::limits::DELIVERY_SERIES_MAX;
use series::{Deliveries, Incoming, OTHERS, Outgoing, Topics};
use slow::{Delivery, Hops, Recorder};
use std::rc::Rc;

/// Parts of an octave in the histograms of a shard: 16.
pub const SHARD_BITS: u32 = 4;

/// Room for so many answers of a turn is kept for the next one.
const TURN_ROWS_KEPT: usize = 16_384;

/// How a number behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behaviour {
    /// Only grows.
    Counter,
    Gauge,
}

/// One of the list: its name in the metrics without the prefix, and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    pub name: &'static str,
    pub help: &'static str,
    pub behaviour: Behaviour,
}

/// Declares the counters, and with them the list that readers see, so that the two can't drift apart.
macro_rules! counters {
    ($($name:ident: $behaviour:ident, $help:literal,)+) => {
        /// What one shard counts. All only grow, except those named `*_now`.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $help] pub $name: u64,)+
            /// What is counted by kind.
            pub tables: Tables,
        }

        impl Counters {
            /// Every counter, in the order of [`Counters::values`].
            pub const LABELS: &'static [Label] = &[
                $(Label { name: stringify!($name), help: $help, behaviour: Behaviour::$behaviour },)+
            ];

            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$name),+]
            }
        }
    };
}

counters! {
    connections_accepted: Counter, "Connections accepted",
    connections_refused: Counter, "Connections closed at accept, or an accept that failed",
    connections_closed: Counter, "Connections closed, for whatever reason",
    connections_now: Gauge, "Connections now",
    frames_malformed: Counter, "Connections closed for a bad frame or header",
    slow_readers_paused: Counter, "Times that a connection was not read from, because it did not read its replies",
    slow_readers_closed: Counter, "Connections closed because they did not read their replies",
    receives_starved: Counter, "Receives that ended because all receive buffers were lent",
    frames_received: Counter, "Frames received",
    bytes_received: Counter, "Bytes received from clients",
    bytes_sent: Counter, "Bytes sent to clients",
    messages_in: Counter, "Messages taken into the open batch",
    message_bytes_in: Counter, "Bytes of their bodies",
    pulls_found: Counter, "Pulls answered with messages",
    messages_out: Counter, "Messages in replies to pulls",
    message_bytes_out: Counter, "Bytes of their records",
    sends_refused: Counter, "Sends that were not acknowledged, for whatever reason",
    transactions_begun: Counter, "Half messages taken into the open batch",
    transactions_committed: Counter, "Half messages that their producers committed",
    transactions_rolled_back: Counter, "Half messages that their producers rolled back",
    transactions_refused: Counter, "Ends of transactions that were refused: too late, the second one, or for no half message",
    transactions_checked: Counter, "Half messages that a producer was asked about",
    transactions_given_up: Counter, "Half messages that were never decided, now in TRANS_CHECK_MAX_TIME_TOPIC",
    requests_unsupported: Counter, "Requests with a code that is not supported",
    holds_now: Gauge, "Pulls held now",
    holds_parked: Counter, "Pulls that were held",
    holds_woken: Counter, "Held pulls answered by an arrival",
    holds_expired: Counter, "Held pulls answered at their deadline",
    pops_woken: Counter, "Held pops answered by an arrival",
    pops_acknowledged: Counter, "Popped messages that were acknowledged",
    pops_revived: Counter, "Popped messages that were not acknowledged in time and stored anew",
    cold_reads: Counter, "Reads from disk for requests",
    segments_deleted: Counter, "Commit log segments deleted by retention",
    segment_bytes_deleted: Counter, "Bytes of them",
    turns: Counter, "Turns of the loop: how often the shard woke, or had not slept",
    turns_spurious: Counter, "Turns that found nothing to do",
}

/// Why a connection was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    Client,
    ReceiveFailed,
    SendFailed,
    Malformed,
    Silent,
    DoesNotRead,
    PartialFrames,
    Stop,
}

impl CloseReason {
    pub const ALL: [Self; 8] = [
        Self::Client,
        Self::ReceiveFailed,
        Self::SendFailed,
        Self::Malformed,
        Self::Silent,
        Self::DoesNotRead,
        Self::PartialFrames,
        Self::Stop,
    ];

    /// Its value as a label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::ReceiveFailed => "receive_failed",
            Self::SendFailed => "send_failed",
            Self::Malformed => "malformed",
            Self::Silent => "silent",
            Self::DoesNotRead => "does_not_read",
            Self::PartialFrames => "partial_frames",
            Self::Stop => "stop",
        }
    }
}

impl std::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Client => "closed by the client",
            Self::ReceiveFailed => "receive failed",
            Self::SendFailed => "send failed",
            Self::Malformed => "malformed frame",
            Self::Silent => "silent for too long",
            Self::DoesNotRead => "does not read its replies",
            Self::PartialFrames => "too many bytes of unfinished frames on this shard",
            Self::Stop => "the broker stops",
        })
    }
}

/// What a shard counts by kind, and its histograms.
#[derive(Debug, Default)]
pub struct Tables {
    /// By [`CloseReason`].
    pub closed: [u64; CloseReason::ALL.len()],
    pub times: Times,
    pub topics: Topics,
    pub deliveries: Deliveries,
    pub rpcs: rpc::Rpcs,
    pub slow: Recorder,
    /// Messages that went to the dead letters, by group.
    pub dead_letters: NameMap<u64>,
    turn: Turn,
}

/// Histograms of a shard in microseconds. Those of the commit log are the store's.
#[derive(Clone, Debug)]
pub struct Times {
    /// From the instant at which a turn's messages counted to its last queued reply.
    pub visible_to_reply: Histogram,
    /// From parking to the answer, whatever caused it.
    pub hold: Histogram,
    /// Of a turn, without its wait.
    pub turn: Histogram,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            visible_to_reply: Histogram::new(SHARD_BITS),
            hold: Histogram::new(SHARD_BITS),
            turn: Histogram::new(SHARD_BITS),
        }
    }
}

/// What happened in the turn at hand. Its times are known at its end only.
#[derive(Debug, Default)]
struct Turn {
    /// Requests answered: place of the series, instant of the request.
    answered: Vec<(u16, u64)>,
    delivered: Vec<Delivery>,
}

/// A pull's answer with messages.
#[derive(Clone, Copy, Debug)]
pub struct Delivered<'a> {
    pub group: &'a Rc<str>,
    pub topic: &'a Rc<str>,
    pub connection: ConnectionId,
    pub queue_id: u32,
    /// Of the first message that was looked for.
    pub offset: u64,
    /// The offset behind the last message.
    pub next: u64,
    pub messages: u32,
    pub bytes: usize,
}

/// What a held pull has to do with an arrival.
#[derive(Clone, Copy, Debug)]
pub struct Woken {
    pub parked_us: u64,
    /// When the oldest message that arrived was appended.
    pub appended_us: u64,
}

impl Counters {
    /// Messages were appended.
    pub fn count_incoming(&mut self, topic: &str, incoming: Incoming) {
        self.tables.topics.count(topic, incoming);
    }

    /// A pull is answered with messages; `woken` if it was held and they have just arrived.
    pub fn count_delivered(&mut self, answer: Delivered<'_>, woken: Option<Woken>, now_us: u64) {
        self.pulls_found += 1;
        self.messages_out += u64::from(answer.messages);
        self.message_bytes_out += answer.bytes as u64;
        let outgoing = Outgoing {
            queue_id: answer.queue_id,
            next: answer.next,
            messages: u64::from(answer.messages),
            bytes: answer.bytes as u64,
            now_us,
        };
        let deliveries = &mut self.tables.deliveries;
        let series = deliveries.count(answer.group, answer.topic, outgoing);
        if let Some(woken) = woken {
            self.tables.turn.delivered.push(Delivery {
                group: Rc::clone(answer.group),
                topic: Rc::clone(answer.topic),
                connection: answer.connection,
                queue_id: answer.queue_id,
                offset: answer.offset,
                messages: answer.messages,
                parked_us: woken.parked_us,
                appended_us: woken.appended_us,
                series,
            });
        }
    }

    /// A request is answered in this turn.
    pub fn count_answer(&mut self, asked: Asked, response_code: i32, is_long_polling: bool) {
        let place = self.tables.rpcs.find(rpc::Kind {
            request_code: asked.code,
            response_code,
            is_long_polling,
        });
        self.tables.turn.answered.push((place, asked.since_us));
    }

    /// By queue id, the offsets behind what a group got last; shorter where it got nothing yet.
    pub fn pulled(&self, group: &Rc<str>, topic: &Rc<str>) -> &[u64] {
        let series = self.tables.deliveries.find(group, topic);
        series.map_or(&[], |series| &series.pulled)
    }

    pub fn count_dead_letter(&mut self, group: &str) {
        let groups = &mut self.tables.dead_letters;
        if let Some(count) = groups.get_mut(group) {
            *count += 1;
            return;
        }
        let is_full = groups.len() >= DELIVERY_SERIES_MAX;
        let name = if is_full { OTHERS } else { group };
        *groups.entry(name.into()).or_default() += 1;
    }

    pub fn count_close(&mut self, reason: CloseReason) {
        self.tables.closed[reason as usize] += 1;
    }

    /// A hold ends with an answer.
    pub fn count_hold(&mut self, parked_us: u64, now_us: u64) {
        let held_us = now_us.saturating_sub(parked_us);
        self.tables.times.hold.record(held_us);
    }

    /// All replies of the turn were handed over at `hops.queued_us`. `sends`: how many sends of a connection end
    /// before such a reply has left, 0 if it is gone.
    pub fn replies_queued(&mut self, hops: Hops, mut sends: impl FnMut(ConnectionId) -> u8) {
        let Tables {
            deliveries,
            rpcs,
            slow,
            turn,
            ..
        } = &mut self.tables;
        for (place, since_us) in turn.answered.drain(..) {
            rpcs.record(place, hops.queued_us.saturating_sub(since_us));
        }
        for delivery in turn.delivered.drain(..) {
            let micros = hops.queued_us.saturating_sub(delivery.appended_us);
            deliveries.record_latency(delivery.series, micros);
            slow.offer(&delivery, hops, sends(delivery.connection));
        }
        // A turn that woke all holds at once doesn't keep the memory for it.
        turn.answered.shrink_to(TURN_ROWS_KEPT);
        turn.delivered.shrink_to(TURN_ROWS_KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_recorded_at_its_end() {
        let mut counters = Counters::default();
        let (group, topic) = (Rc::from("G"), Rc::from("T"));
        let answer = Delivered {
            group: &group,
            topic: &topic,
            connection: ConnectionId {
                index: 0,
                generation: 0,
            },
            queue_id: 1,
            offset: 4,
            next: 6,
            messages: 2,
            bytes: 300,
        };
        let woken = Woken {
            parked_us: 50,
            appended_us: 100,
        };
        counters.count_delivered(answer, Some(woken), 100);
        counters.count_delivered(answer, None, 100);
        let asked = Asked {
            code: 11,
            since_us: 50,
        };
        counters.count_answer(asked, 0, true);
        let hops = Hops {
            written_us: 110,
            visible_us: 110,
            queued_us: 130,
        };
        counters.replies_queued(hops, |_| 1);
        counters.replies_queued(hops, |_| 1);
        let tables = &counters.tables;
        let series = tables.deliveries.find(&group, &topic).expect("it is there");
        assert_eq!(series.latency.count(), 1, "only what a hold waited for");
        assert_eq!(series.latency.sum(), 30);
        assert_eq!((series.messages, series.pulled[1]), (4, 6));
        assert_eq!(tables.slow.slowest(130).len(), 1);
        assert_eq!(tables.rpcs.all()[0].sum_us, 80);
        assert_eq!(
            (counters.messages_out, counters.message_bytes_out),
            (4, 600)
        );
    }

    #[test]
    fn every_counter_has_a_name_and_a_value() {
        let counters = Counters::default();
        assert_eq!(counters.values().len(), Counters::LABELS.len());
        assert_eq!(Counters::LABELS[0].name, "connections_accepted");
    }
}
