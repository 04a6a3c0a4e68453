//! 11, 361: pulls.

use super::filter::Subscription;
use super::{Broker, Context, Outcome, Peer};
use crate::ids::{ConnectionId, QueueIndex, QueueOffset};
use crate::protocol::command::{Command, Encoding};
use std::rc::Rc;

/// A pull that passed its checks, with all it needs to be evaluated again: after a hold, or after a read.
#[derive(Clone, Debug)]
pub struct PullRequest {
    pub connection: ConnectionId,
    pub opaque: i32,
    pub encoding: Encoding,
    pub group: Rc<str>,
    pub topic: Rc<str>,
    pub queue_id: u32,
    pub queue: QueueIndex,
    /// What the client asked for.
    pub offset: QueueOffset,
    /// Examined up to here: the first offset that the filter has not seen.
    pub cursor: QueueOffset,
    pub messages_max: u32,
    pub subscription: Rc<Subscription>,
    /// May be held when nothing is found; false once it was.
    pub suspend: bool,
    /// End of the hold, in monotonic microseconds.
    pub deadline_us: u64,
}

pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    let _ = (broker, command, peer, cx);
    todo!()
}

/// Evaluates a pull again, with what was read for it in `cx.fetched`.
pub fn resume(broker: &mut Broker, request: PullRequest, cx: &mut Context<'_>) -> Outcome {
    let _ = (broker, request, cx);
    todo!()
}
