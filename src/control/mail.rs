//! What shards and the control thread say to each other. Both directions are bounded; neither is ever on the
//! path of a message.

use crate::ids::ShardId;
use crate::protocol::bodies::topics::TopicConfig;
use crate::protocol::calls::{CallResult, ForwardedCall};
use crate::stats::report::{HoldPage, HoldsWanted, Report, SlowRow, State};
use bytes::Bytes;
use tokio::sync::oneshot;

/// From a shard to the control thread (a bounded `tokio::sync::mpsc`).
#[derive(Debug)]
pub enum FromShard {
    /// The shard listens and serves; its first registration follows.
    Ready { shard: ShardId },
    /// The shard's topics changed (or it started): register them with every name server at once.
    /// `body` is the whole RegisterBrokerBody as JSON. Answered by [`ToShard::Registered`] with the same sequence,
    /// once every reachable name server has it or 3 s have passed.
    Register {
        shard: ShardId,
        sequence: u64,
        body: Bytes,
    },
    /// A topic was created by a first send: the other shards create it too.
    TopicCreated { shard: ShardId, topic: TopicConfig },
    /// It has dealt with this many [`ToShard::CreateTopic`], and its last registration says what became of them.
    TopicsAdopted { shard: ShardId, count: u32 },
    /// A call for a client that this shard doesn't know: the shard behind it tries.
    Call {
        shard: ShardId,
        call: Box<ForwardedCall>,
    },
    /// What name servers say of a topic: answered by [`ToShard::CallAnswered`] with the route.
    Route {
        shard: ShardId,
        id: u64,
        topic: String,
    },
    /// What the client of another shard's call answered.
    CallAnswered {
        origin: ShardId,
        id: u64,
        result: CallResult,
    },
    /// The shard has stopped: holds answered, log flushed, checkpoint written.
    Stopped { shard: ShardId },
    /// The shard can't go on; the process ends with this text.
    Failed { shard: ShardId, reason: String },
}

/// From the control thread to a shard (see `shard::mailbox`).
#[derive(Debug)]
pub enum ToShard {
    CreateTopic(TopicConfig),
    Registered {
        sequence: u64,
    },
    /// A call of another shard, for a client that may be this one's.
    Call(Box<ForwardedCall>),
    CallAnswered {
        id: u64,
        result: CallResult,
    },
    /// Stop accepting, answer holds, flush, checkpoint, then [`FromShard::Stopped`].
    Stop,
    Ask(Ask),
}

/// What whoever watches wants to know of a shard. A shard that has stopped doesn't answer.
#[derive(Debug)]
pub enum Ask {
    State(oneshot::Sender<State>),
    Report(oneshot::Sender<Box<Report>>),
    Holds(HoldsWanted, oneshot::Sender<HoldPage>),
    Slow(oneshot::Sender<Vec<SlowRow>>),
}
