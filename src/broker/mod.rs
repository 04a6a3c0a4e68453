//! What RocketMQ means, over the state of one shard. No I/O, no sockets, no clock: a request and the time come in,
//! an [`Outcome`] goes out, and the shard performs it.
//!
//! **Owned by**: one shard, on its thread. Nothing here is shared.

pub mod admin;
pub mod clients;
pub mod delay;
pub mod filter;
pub mod groups;
pub mod handler;
pub mod holds;
pub mod internal;
pub mod keys;
pub mod locks;
pub mod offsets;
pub mod pop;
pub mod pull;
pub mod query;
pub mod rates;
pub mod relay;
pub mod reply;
pub mod report;
pub mod resets;
pub mod retry;
pub mod send;
pub mod topics;
pub mod transactions;
pub mod unique_key;

#[cfg(test)]
mod tests;

use crate::clock::Now;
use crate::ids::{ConnectionId, PhysicalOffset, ShardId};
use crate::protocol::bodies::{DataVersion, TopicConfig};
use crate::protocol::command::Encoding;
use crate::protocol::delay::DelayLevels;
use crate::protocol::response::{Response, ResponseHeader};
use crate::stats::Counters;
use crate::storage::{Arrival, Fetched, Missing, Store};
use bytes::Bytes;
use smallvec::SmallVec;
use std::net::SocketAddr;

/// What the broker needs to know of the configuration of its shard.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    pub shard: ShardId,
    pub cluster_name: String,
    /// Of this shard, e.g. `broker-0`.
    pub broker_name: String,
    pub broker_id: i64,
    /// What clients are told: part of every message id, so it must be reachable.
    pub address: SocketAddr,
    pub auto_create_topics: bool,
    pub auto_create_groups: bool,
    /// Queues of an auto-created topic on this shard (`defaultTopicQueueNums` divided over the shards, at least 1).
    pub default_topic_queue_nums: u32,
    pub message_bytes_max: u32,
    /// Part of every stored message and of the answer to its send.
    pub region: &'static str,
    pub trace_on: bool,
    pub trace_topic_enable: bool,
    pub long_polling: bool,
    /// Hold of a pull when `long_polling` is off.
    pub short_polling_ms: u64,
    /// 4 read, 2 write.
    pub permission: u32,
    pub lite_pull_enable: bool,
    /// SQL92 filters.
    pub property_filter_enable: bool,
    /// 14 answers 0 where a group has no offset and the queue's first message is still in memory, as Apache does.
    pub young_queues_start_at_zero: bool,
    /// All keys with their values, for tools that show them; none of it is gone by here.
    pub settings: Vec<(&'static str, String)>,
    /// How often committed offsets are persisted when they changed.
    pub offsets_persist_ms: u64,
    pub delay_levels: DelayLevels,
    /// `timerWheelEnable`.
    pub timers: bool,
    /// `timerMaxDelaySec`, in milliseconds.
    pub timer_ms_max: u64,
    pub transactions: transactions::TransactionConfig,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub connection: ConnectionId,
    pub address: SocketAddr,
}

/// What a handler may use besides the broker's own state.
pub struct Context<'a> {
    pub store: &'a mut Store,
    pub now: Now,
    pub fetched: &'a Fetched,
    /// The request runs for the first time, not again after a read: commit offsets, count, register only then.
    pub first_run: bool,
    pub effects: &'a mut Effects,
    pub counters: &'a mut Counters,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Outcome {
    Reply(Response),
    /// In the open batch: answered when the log has reached `end`.
    Append(Acknowledgement),
    /// Parked in [`holds::Holds`]: answered by an arrival or the deadline.
    Held,
    /// Bytes are not in memory: the shard reads them and runs the request again.
    Read(SmallVec<[Missing; 4]>),
    /// Answered once the name servers know of a change (`ToShard::Registered`).
    AwaitRegistration(Response),
    /// A one-way request: no answer. What it appended or committed stands, nobody waits for it.
    Nothing,
}

/// The answer to a send, parked until its bytes count.
#[derive(Debug)]
pub struct Acknowledgement {
    pub end: PhysicalOffset,
    /// WAIT property: false is answered when written, also in SYNC_FLUSH.
    pub wait_flush: bool,
    pub header: ResponseHeader,
}

/// An answer that is not to the request at hand.
#[derive(Debug)]
pub struct Addressed {
    pub connection: ConnectionId,
    pub opaque: i32,
    pub encoding: Encoding,
    pub response: Response,
}

/// What else a request caused; the shard performs it in this turn and reuses the memory.
#[derive(Debug, Default)]
pub struct Effects {
    /// Answers to held pulls.
    pub replies: Vec<Addressed>,
    /// Held pulls that woke and need bytes from disk: run [`pull::resume`] with them.
    pub reads: Vec<(pull::PullRequest, SmallVec<[Missing; 4]>)>,
    /// Tasks of the broker that need bytes from disk: run them again with those ([`internal::run`]).
    pub task_reads: Vec<(internal::Task, SmallVec<[Missing; 4]>)>,
    /// One-way requests to clients (40).
    pub notifications: Vec<Notification>,
    /// Requests to clients whose answers somebody waits for.
    pub calls: Vec<relay::AddressedCall>,
    /// Mail for the other shards of the process.
    pub letters: Vec<relay::Letter>,
    /// Topics were created by a first send: the other shards create them too.
    pub created_topics: Vec<TopicConfig>,
    /// The topic table changed: register with the name servers at once.
    pub register: bool,
    /// Configuration files to replace now: path below the store's root, contents.
    pub files: Vec<(&'static str, Bytes)>,
}

/// NOTIFY_CONSUMER_IDS_CHANGED to one connection; coalesced per group and turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notification {
    pub connection: ConnectionId,
    pub group: String,
}

/// Contents of the configuration files below `config/`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConfigFiles<'a> {
    pub topics: Option<&'a [u8]>,
    pub groups: Option<&'a [u8]>,
    pub offsets: Option<&'a [u8]>,
    pub delays: Option<&'a [u8]>,
    pub timers: Option<&'a [u8]>,
    pub transactions: Option<&'a [u8]>,
    pub modes: Option<&'a [u8]>,
}

/// The state of one shard's broker.
pub struct Broker {
    pub config: BrokerConfig,
    pub topics: topics::Topics,
    pub groups: groups::Groups,
    pub offsets: offsets::ConsumerOffsets,
    /// Offsets set by an administrator that consumers have not taken.
    pub resets: resets::Resets,
    pub clients: clients::Clients,
    /// Grows with every change of the configuration.
    pub settings_version: DataVersion,
    pub holds: holds::Holds,
    pub delays: delay::Delays,
    pub transactions: transactions::Transactions,
    pub locks: locks::Locks,
    pub rates: rates::Rates,
    pub pops: pop::Pops,
    /// Which groups pop.
    pub modes: pop::Modes,
    /// Requests to clients that wait for their answers.
    pub relays: relay::Relays,
    /// What pulls keep between them.
    pub(crate) pulls: pull::PullCache,
    /// Memory reused by sends.
    pub(crate) scratch: send::SendScratch,
}

impl Broker {
    /// A broker over what its files say; each is `None` on a new store. **Errors**: the file and what is wrong with it.
    pub fn load(config: BrokerConfig, files: ConfigFiles<'_>) -> Result<Self, String> {
        let offsets = offsets::ConsumerOffsets::load(files.offsets, config.offsets_persist_ms)?;
        Ok(Self {
            transactions: transactions::Transactions::load(files.transactions, &offsets)?,
            topics: topics::Topics::load(&config, files.topics)?,
            groups: groups::Groups::load(files.groups)?,
            offsets,
            resets: resets::Resets::default(),
            clients: clients::Clients::default(),
            settings_version: DataVersion::default(),
            holds: holds::Holds::default(),
            locks: locks::Locks::default(),
            delays: delay::Delays::load(config.delay_levels.len(), files.delays, files.timers)?,
            rates: rates::Rates::default(),
            pops: pop::Pops::default(),
            modes: pop::Modes::load(files.modes)?,
            relays: relay::Relays::default(),
            pulls: pull::PullCache::default(),
            scratch: send::SendScratch::default(),
            config,
        })
    }

    /// A queue has messages: answers the holds that match, moves the cursors of those that don't.
    pub fn on_arrival(&mut self, arrival: Arrival, cx: &mut Context<'_>) {
        delay::on_arrival(self, arrival, cx);
        transactions::on_arrival(self, arrival, cx);
        holds::on_arrival(self, arrival, cx);
        pop::on_arrival(self, arrival, cx);
    }

    /// Answers holds whose deadline has passed, expires memberships, writes offsets that are due.
    pub fn expire(&mut self, cx: &mut Context<'_>) {
        holds::expire(self, cx);
        clients::expire(self, cx);
        relay::expire(self, cx);
        pop::expire(self, cx);
        offsets::persist_if_due(self, cx);
        delay::expire(self, cx);
        transactions::expire(self, cx);
    }

    /// The connection is gone: its holds, memberships and registrations too; the rest of its groups is notified.
    pub fn on_closed(&mut self, connection: ConnectionId, cx: &mut Context<'_>) {
        self.holds.drop_connection(connection, cx.counters);
        self.pops.drop_connection(connection);
        clients::on_closed(self, connection);
        self.locks.release_connection(connection);
        relay::on_closed(self, connection, cx);
    }

    /// What all requests of a turn caused together, once: changed configuration files, notifications. Called before
    /// the effects are performed.
    pub fn end_turn(&mut self, cx: &mut Context<'_>) {
        self.topics.persist(cx);
        self.groups.persist(cx);
        self.modes.persist(cx);
        clients::notify_changed(self, cx);
    }

    /// When [`Broker::expire`] has something to do, in monotonic microseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        [
            self.holds.next_deadline(),
            self.clients.next_deadline(),
            self.relays.next_deadline(),
            self.offsets.next_deadline(),
            self.delays.next_deadline(),
            self.transactions.next_deadline(),
            self.pops.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Answers every hold (19), as at its deadline; the broker stops.
    pub fn begin_stop(&mut self, cx: &mut Context<'_>) {
        holds::answer_all(self, cx);
        relay::answer_all(self, cx);
        pop::begin_stop(self, cx);
        offsets::persist_now(self, cx);
        delay::begin_stop(self, cx);
        transactions::begin_stop(self, cx);
    }
}
