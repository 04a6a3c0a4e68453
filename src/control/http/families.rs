//! The metrics: RocketMQ's own names where it has them (`rocketmq`), and ours (`ringmq`).

mod ringmq;
mod rocketmq;

use super::encode::{Families, Labels};
use crate::control::ShardIdentity;
use crate::protocol::codes::ResponseCode;
use crate::stats::report::Report;
use crate::stats::rpc::OTHER_CODE;
use std::borrow::Cow;
use std::fmt::Error;

/// One of several families of a kind: its name, what it means, how it is read.
type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

/// What one shard has to tell.
#[derive(Debug)]
pub struct ShardMetrics {
    pub identity: ShardIdentity,
    /// In use on the file system of its store.
    pub store_bytes: Option<u64>,
    /// `None`: it did not answer.
    pub report: Option<Box<Report>>,
}

/// All of them.
#[derive(Debug)]
pub struct Snapshot {
    pub shards: Vec<ShardMetrics>,
}

/// A shard that has answered.
#[derive(Clone, Copy)]
struct Answered<'a> {
    shard: &'a ShardMetrics,
    report: &'a Report,
}

impl<'a> Answered<'a> {
    /// RocketMQ's labels of a broker.
    fn broker(self) -> Labels<'a> {
        let identity = &self.shard.identity;
        vec![
            ("cluster", identity.cluster.as_str().into()),
            ("node_type", "broker".into()),
            ("node_id", identity.broker_name.as_str().into()),
        ]
    }

    fn broker_with<const N: usize>(self, more: [(&'static str, Cow<'a, str>); N]) -> Labels<'a> {
        let mut labels = self.broker();
        labels.extend(more);
        labels
    }

    fn storage(self) -> Labels<'a> {
        self.broker_with([
            ("storage_type", "local".into()),
            ("storage_medium", "disk".into()),
        ])
    }
}

fn shard_labels(shard: &ShardMetrics) -> Labels<'_> {
    let identity = &shard.identity;
    vec![
        ("shard", identity.shard.to_string().into()),
        ("node_id", identity.broker_name.as_str().into()),
    ]
}

impl Snapshot {
    fn answered(&self) -> impl Iterator<Item = Answered<'_>> {
        self.shards.iter().filter_map(|shard| {
            let report = shard.report.as_deref()?;
            Some(Answered { shard, report })
        })
    }

    /// Every family, in a fixed order.
    pub fn write(&self, out: &mut Families<'_>) -> Result<(), Error> {
        self.write_traffic(out)?;
        self.write_consumers(out)?;
        self.write_broker(out)?;
        self.write_rpcs(out)?;
        self.write_shards(out)?;
        self.write_times(out)
    }
}

fn response_name(code: i32) -> Cow<'static, str> {
    match ResponseCode(code).name() {
        Some(name) => name.to_ascii_lowercase().into(),
        None if code == OTHER_CODE => "others".into(),
        None => code.to_string().into(),
    }
}
