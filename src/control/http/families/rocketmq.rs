//! RocketMQ's metrics, with its names and labels. They have the unit that they have there, milliseconds above all.
//!
//! Source of names, labels and buckets: a running Apache broker 5.3.3. Its exporter adds `_milliseconds` and `_bytes`
//! to some names, which RocketMQ's manual has without.

use super::{Family, Snapshot, response_name};
use crate::control::http::encode::{Buckets, Families, Labels};
use crate::protocol::codes::RequestCode;
use crate::protocol::names::{RETRY_PREFIX, is_system_group, is_system_topic};
use crate::stats::report::{Delivery, Gauges, Lag, Members, Report};
use crate::stats::rpc::BOUNDS_MS;
use crate::stats::series::{MessageType, SIZE_BOUNDS, Traffic};
use std::borrow::Cow;
use std::fmt::Error;

fn flag(value: bool) -> Cow<'static, str> {
    Cow::Borrowed(if value { "true" } else { "false" })
}

/// Source: apache/rocketmq 5.3.x `BrokerMetricsManager.isSystem`.
fn is_system(topic: &str, group: &str) -> Cow<'static, str> {
    flag(is_system_topic(topic) || is_system_group(group))
}

impl Snapshot {
    pub(super) fn deliveries<'a>(&'a self) -> impl Iterator<Item = (Labels<'a>, &'a Delivery)> {
        self.answered().flat_map(|answered| {
            answered.report.deliveries.iter().map(move |row| {
                let labels = answered.broker_with([
                    ("topic", row.topic.as_str().into()),
                    ("consumer_group", row.group.as_str().into()),
                    ("is_retry", flag(row.topic.starts_with(RETRY_PREFIX))),
                    ("is_system", is_system(&row.topic, &row.group)),
                ]);
                (labels, row)
            })
        })
    }

    /// Rows of all topics and types that had messages.
    fn traffic<'a, V>(
        &'a self,
        value: impl Fn(&Traffic) -> V + Copy,
    ) -> impl Iterator<Item = (Labels<'a>, V)> {
        self.answered().flat_map(move |answered| {
            answered.report.topics.iter().flat_map(move |series| {
                let types = MessageType::ALL.iter().zip(&series.types);
                let used = types.filter(|(_, traffic)| traffic.messages > 0);
                used.map(move |(kind, traffic)| {
                    let labels = answered.broker_with([
                        ("topic", Cow::from(&*series.topic)),
                        ("message_type", kind.name().into()),
                        ("is_system", is_system(&series.topic, "")),
                    ]);
                    (labels, value(traffic))
                })
            })
        })
    }

    pub(super) fn write_traffic(&self, out: &mut Families<'_>) -> Result<(), Error> {
        out.counter(
            "rocketmq_messages_in",
            "Messages stored",
            self.traffic(|traffic| traffic.messages),
        )?;
        out.counter(
            "rocketmq_throughput_in",
            "Bytes of the records of messages stored",
            self.traffic(|traffic| traffic.bytes),
        )?;
        out.histogram(
            "rocketmq_message_size",
            "Bytes of the records of messages stored",
            self.traffic(|traffic| {
                Buckets::listed(&SIZE_BOUNDS, &traffic.sizes, traffic.bytes as f64)
            }),
        )?;
        let messages = self
            .deliveries()
            .map(|(labels, row)| (labels, row.messages));
        out.counter("rocketmq_messages_out", "Messages delivered", messages)?;
        let bytes = self.deliveries().map(|(labels, row)| (labels, row.bytes));
        out.counter(
            "rocketmq_throughput_out",
            "Bytes of the records of messages delivered",
            bytes,
        )?;
        let dead = self.answered().flat_map(|answered| {
            answered
                .report
                .dead_letters
                .iter()
                .map(move |(group, count)| {
                    let labels = answered.broker_with([
                        ("consumer_group", group.as_str().into()),
                        ("is_system", is_system("", group)),
                    ]);
                    (labels, *count)
                })
        });
        out.counter(
            "rocketmq_send_to_dlq_messages",
            "Messages that went to the dead letters of their group",
            dead,
        )?;
        Ok(())
    }

    fn lags<'a>(&'a self, value: fn(&Lag) -> u64) -> impl Iterator<Item = (Labels<'a>, u64)> {
        self.answered().flat_map(move |answered| {
            answered.report.lags.rows.iter().map(move |row| {
                let labels = answered.broker_with([
                    ("consumer_group", row.group.as_str().into()),
                    ("topic", row.topic.as_str().into()),
                    ("is_retry", flag(false)),
                    ("is_system", is_system(&row.topic, &row.group)),
                ]);
                (labels, value(row))
            })
        })
    }

    pub(super) fn write_consumers(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let lags: [Family<Lag>; 5] = [
            (
                "rocketmq_consumer_lag_messages",
                "Messages that a group has not committed for",
                |l| l.messages,
            ),
            (
                "rocketmq_consumer_lag_latency",
                "Milliseconds since the oldest of them was stored; at least, where it has left memory",
                |l| l.latency_ms,
            ),
            (
                "rocketmq_consumer_inflight_messages",
                "Messages delivered and not committed for",
                |l| l.in_flight,
            ),
            (
                "rocketmq_consumer_queueing_latency",
                "Milliseconds since the oldest message was stored that was not delivered; at least, as above",
                |l| l.queueing_ms,
            ),
            (
                "rocketmq_consumer_ready_messages",
                "Messages that were not delivered yet",
                |l| l.ready,
            ),
        ];
        for (name, help, value) in lags {
            out.gauge(name, help, self.lags(value))?;
        }
        let left_out = self.per_shard(|report| report.lags.left_out);
        out.gauge(
            "ringmq_consumer_lags_left_out",
            "Pairs of group and topic beyond those that a shard looks at for one answer",
            left_out,
        )?;
        let consumers = self.members(
            |report| &report.consumers,
            |row| {
                vec![
                    ("consumer_group", row.group.as_str().into()),
                    ("consume_mode", row.consume_mode.into()),
                    ("is_system", is_system("", &row.group)),
                ]
            },
        );
        out.gauge(
            "rocketmq_consumer_connections",
            "Members of consumer groups",
            consumers,
        )?;
        let producers = self.members(|report| &report.producers, |_| Vec::new());
        out.gauge(
            "rocketmq_producer_connections",
            "Members of producer groups",
            producers,
        )
    }

    fn members<'a>(
        &'a self,
        rows: fn(&'a Report) -> &'a Vec<Members>,
        more: fn(&'a Members) -> Labels<'a>,
    ) -> impl Iterator<Item = (Labels<'a>, u64)> {
        self.answered().flat_map(move |answered| {
            rows(answered.report).iter().map(move |row| {
                let mut labels = answered.broker_with([
                    ("language", row.language.into()),
                    ("version", version_name(row.version).into()),
                    ("protocol_type", "remoting".into()),
                ]);
                labels.extend(more(row));
                (labels, row.count)
            })
        })
    }

    pub(super) fn write_broker(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let broker: [Family<Gauges>; 3] = [
            ("rocketmq_broker_permission", "4 read, 2 write", |g| {
                g.permission.into()
            }),
            ("rocketmq_topic_number", "Topics", |g| g.topics),
            ("rocketmq_consumer_group_number", "Consumer groups", |g| {
                g.groups
            }),
        ];
        for (name, help, value) in broker {
            let rows = self
                .answered()
                .map(|a| (a.broker(), value(&a.report.gauges)));
            out.gauge(name, help, rows)?;
        }
        let waiting = self.answered().flat_map(|answered| {
            let gauges = &answered.report.gauges;
            [
                ("send", gauges.sends_waiting),
                ("pull", gauges.reads_waiting),
            ]
            .map(|(name, count)| (answered.broker_with([("processor", name.into())]), count))
        });
        out.gauge(
            "rocketmq_processor_watermark",
            "Requests that wait: sends for the commit log, pulls and others for reads from disk",
            waiting,
        )?;
        let used = self
            .answered()
            .filter_map(|a| Some((a.storage(), a.shard.store_bytes?)));
        out.gauge(
            "rocketmq_storage_size",
            "Bytes in use on the store's file system",
            used,
        )?;
        let storage: [Family<Gauges>; 2] = [
            (
                "rocketmq_storage_flush_behind_bytes",
                "Bytes written and not flushed",
                |g| g.written - g.flushed,
            ),
            (
                "rocketmq_storage_dispatch_behind_bytes",
                "Bytes written and not delivered",
                |g| g.written - g.visible,
            ),
        ];
        for (name, help, value) in storage {
            let rows = self
                .answered()
                .map(|a| (a.storage(), value(&a.report.gauges)));
            out.gauge(name, help, rows)?;
        }
        Ok(())
    }

    pub(super) fn write_rpcs(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let rows = self.answered().flat_map(|answered| {
            answered.report.rpcs.iter().map(move |series| {
                let kind = series.kind;
                let labels = answered.broker_with([
                    ("protocol_type", "remoting".into()),
                    ("request_code", request_name(kind.request_code)),
                    ("response_code", response_name(kind.response_code)),
                    ("is_long_polling", flag(kind.is_long_polling)),
                    ("result", "success".into()),
                ]);
                let sum_ms = series.sum_us as f64 / 1000.0;
                (labels, Buckets::listed(&BOUNDS_MS, &series.buckets, sum_ms))
            })
        });
        out.histogram(
            "rocketmq_rpc_latency",
            "Milliseconds from the turn in which a request came to its queued reply",
            rows,
        )
    }
}

/// Source: apache/rocketmq `RemotingMetricsConstant.REQUEST_CODE_MAP`.
fn request_name(code: i32) -> Cow<'static, str> {
    match RequestCode(code).name() {
        Some(name) => name.to_ascii_lowercase().into(),
        None => "others".into(),
    }
}

/// Name of a client's version: two numbers for each release from 4.1.0 on, the snapshot's and its own; before that,
/// the number. Source: apache/rocketmq `MQVersion`.
fn version_name(version: i32) -> String {
    /// What the regular count of 5.3.3 is ahead of its number, 479.
    const AHEAD: i32 = 588;
    if !(232..1500).contains(&version) {
        return version.to_string();
    }
    let count = version + AHEAD;
    let (release, snapshot) = (count / 2, if count % 2 == 0 { "_snapshot" } else { "" });
    format!(
        "v{}_{}_{}{snapshot}",
        release / 100,
        release / 10 % 10,
        release % 10
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_the_names_of_apache() {
        for (version, name) in [
            (479, "v5_3_3"),
            (474, "v5_3_1_snapshot"),
            (401, "v4_9_4"),
            (317, "v4_5_2"),
            (232, "v4_1_0_snapshot"),
            (121, "121"),
            (-1, "-1"),
        ] {
            assert_eq!(version_name(version), name);
        }
    }
}
