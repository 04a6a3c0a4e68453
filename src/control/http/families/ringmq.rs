//! Our metrics. Times are in seconds, as Prometheus wants them.

use super::{Family, Snapshot, response_name, shard_labels};
use crate::control::http::encode::{Buckets, Families, Labels};
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::stats::report::{Gauges, Report};
use crate::stats::{Behaviour, CloseReason, Counters, Histogram};
use std::borrow::Cow;
use std::fmt::Error;

const MICROSECOND: f64 = 1e-6;
/// Bounds up to 2^26 µs, 67 s.
const LAST_OCTAVE: u32 = 26;
/// Every second power of two for the many.
const COARSE: usize = 2;
/// Bounds of batches, up to 65 536 messages.
const LAST_BATCH_OCTAVE: u32 = 16;

/// A histogram of one shard: its name, what it means, where it is.
type Time = (&'static str, &'static str, fn(&Report) -> &Histogram);

const GAUGES: [Family<Gauges>; 9] = [
    (
        "ringmq_log_start_bytes",
        "First byte of the commit log that still exists",
        |g| g.log_start,
    ),
    (
        "ringmq_log_appended_bytes",
        "End of the commit log with the open batch",
        |g| g.appended,
    ),
    (
        "ringmq_log_written_bytes",
        "End of what is written of the commit log",
        |g| g.written,
    ),
    (
        "ringmq_log_flushed_bytes",
        "End of what is flushed of the commit log",
        |g| g.flushed,
    ),
    (
        "ringmq_log_visible_bytes",
        "End of what is acknowledged and delivered",
        |g| g.visible,
    ),
    (
        "ringmq_sends_waiting",
        "Sends that wait for the commit log",
        |g| g.sends_waiting,
    ),
    (
        "ringmq_reads_waiting",
        "Requests that wait for reads from disk",
        |g| g.reads_waiting,
    ),
    (
        "ringmq_out_queued_bytes",
        "Bytes of replies that clients have not taken yet",
        |g| g.out_bytes,
    ),
    (
        "ringmq_partial_frame_bytes",
        "Bytes of frames whose rest has not come",
        |g| g.partial_frame_bytes,
    ),
];

impl Snapshot {
    pub(super) fn per_shard<'a>(
        &'a self,
        value: impl Fn(&'a Report) -> u64 + 'a,
    ) -> impl Iterator<Item = (Labels<'a>, u64)> {
        self.answered()
            .map(move |answered| (shard_labels(answered.shard), value(answered.report)))
    }

    pub(super) fn write_shards(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let version = vec![("version", Cow::from(env!("CARGO_PKG_VERSION")))];
        out.gauge("ringmq_build", "1, with the version", [(version, 1)])?;
        let up = self
            .shards
            .iter()
            .map(|s| (shard_labels(s), u64::from(s.report.is_some())));
        out.gauge("ringmq_shard_up", "1 if the shard has answered", up)?;
        let serves = self.per_shard(|report| u64::from(!report.state.is_stopping));
        out.gauge("ringmq_shard_serves", "0 while the shard stops", serves)?;
        let read_only = self.per_shard(|report| u64::from(report.state.read_only.is_some()));
        out.gauge(
            "ringmq_log_read_only",
            "1 after a failed write or flush: sends are refused until restart",
            read_only,
        )?;
        let disk_full = self.per_shard(|report| u64::from(report.state.disk_full.is_some()));
        out.gauge(
            "ringmq_disk_full",
            "1 while sends are refused because the disk is full",
            disk_full,
        )?;
        for (place, label) in Counters::LABELS.iter().enumerate() {
            let rows = self.per_shard(move |report| report.values[place]);
            let name = format!("ringmq_{}", label.name);
            match label.behaviour {
                Behaviour::Counter => out.counter(&name, label.help, rows)?,
                Behaviour::Gauge => out.gauge(name.trim_end_matches("_now"), label.help, rows)?,
            }
        }
        for (name, help, value) in GAUGES {
            out.gauge(
                name,
                help,
                self.per_shard(move |report| value(&report.gauges)),
            )?;
        }
        let closes = self.answered().flat_map(|answered| {
            CloseReason::ALL.iter().map(move |reason| {
                let mut labels = shard_labels(answered.shard);
                labels.push(("reason", reason.label().into()));
                (labels, answered.report.closed[*reason as usize])
            })
        });
        out.counter(
            "ringmq_connection_closes",
            "Connections that the shard began to close, by reason",
            closes,
        )?;
        self.write_refusals(out)?;
        out.counter(
            "ringmq_log_writes",
            "Writes of the commit log",
            self.per_shard(|r| r.log.writes),
        )?;
        out.counter(
            "ringmq_log_flushes",
            "Flushes of the commit log",
            self.per_shard(|r| r.log.flushes),
        )
    }

    /// Sends that were refused, by the code of the answer.
    fn write_refusals(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let is_send = |code| {
            let sends = [
                RequestCode::SEND_MESSAGE,
                RequestCode::SEND_MESSAGE_V2,
                RequestCode::SEND_BATCH_MESSAGE,
            ];
            sends.contains(&RequestCode(code))
        };
        let rows = self.answered().flat_map(|answered| {
            let mut by_code = std::collections::BTreeMap::<i32, u64>::new();
            for series in &answered.report.rpcs {
                let kind = series.kind;
                if is_send(kind.request_code) && kind.response_code != ResponseCode::SUCCESS.0 {
                    *by_code.entry(kind.response_code).or_default() += series.count();
                }
            }
            by_code.into_iter().map(move |(code, count)| {
                let mut labels = shard_labels(answered.shard);
                labels.push(("response_code", response_name(code)));
                (labels, count)
            })
        });
        out.counter(
            "ringmq_send_refusals",
            "Sends that were answered with anything but success, by the code of the answer",
            rows,
        )
    }

    pub(super) fn write_times(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let times: [Time; 5] = [
            (
                "ringmq_append_to_written_seconds",
                "From the turn of an append to the completion of its write",
                |r| &r.log.append_to_written,
            ),
            (
                "ringmq_written_to_flushed_seconds",
                "From the completion of a write to that of the flush that covers it; of each flush the oldest write",
                |r| &r.log.written_to_flushed,
            ),
            (
                "ringmq_visible_to_reply_seconds",
                "From the instant at which a turn's messages counted to its last queued reply",
                |r| &r.times.visible_to_reply,
            ),
            (
                "ringmq_hold_seconds",
                "From parking a pull to its answer",
                |r| &r.times.hold,
            ),
            (
                "ringmq_turn_seconds",
                "Turn of the loop, without its wait",
                |r| &r.times.turn,
            ),
        ];
        for (name, help, of) in times {
            let rows = self.answered().map(|answered| {
                let histogram = of(answered.report);
                let buckets = Buckets::octaves(histogram, MICROSECOND, LAST_OCTAVE, 1);
                (shard_labels(answered.shard), buckets)
            });
            out.histogram(name, help, rows)?;
        }
        let latencies = self.deliveries().filter_map(|(labels, row)| {
            let latency = row.latency.as_ref()?;
            let labels = labels
                .into_iter()
                .filter(|(name, _)| ["node_id", "topic", "consumer_group"].contains(name));
            let buckets = Buckets::octaves(latency, MICROSECOND, LAST_OCTAVE, COARSE);
            Some((labels.collect(), buckets))
        });
        out.histogram(
            "ringmq_delivery_seconds",
            "From the arrival of a message that a held pull waited for to its queued reply",
            latencies,
        )?;
        let batches = self.answered().map(|answered| {
            let histogram = &answered.report.log.batch_messages;
            let buckets = Buckets::octaves(histogram, 1.0, LAST_BATCH_OCTAVE, 1);
            (shard_labels(answered.shard), buckets)
        });
        out.histogram(
            "ringmq_batch_messages",
            "Messages that became one write",
            batches,
        )
    }
}
