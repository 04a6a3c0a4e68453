//! Where the parts meet: everything that one core owns.
//!
//! **Lifecycle**: built by [`launch`] on its own thread, turned by [`Shard::turn`] until it has stopped.
//! **Threads**: one shard per thread; nothing in here is shared but the mailbox and the doorbell.
//! **Deliberately absent**: locks, a dispatch thread, sleeps, rescans of holds.

/// A context of the broker over this core's fields; a macro, since a method would borrow all of `self`.
macro_rules! context {
    ($core:ident, $fetched:expr, $first_run:expr) => {
        &mut Context {
            store: &mut $core.store,
            now: $core.now,
            fetched: $fetched,
            first_run: $first_run,
            effects: &mut $core.effects,
            counters: &mut $core.counters,
        }
    };
}

pub mod acks;
mod answers;
pub mod cold;
pub mod connection;
mod core;
mod event_loop;
pub mod files;
pub mod launch;
pub mod mailbox;
pub mod outgoing;
mod receive;
mod requests;

use crate::broker::{Addressed, Broker, Effects};
use crate::clock::Now;
use crate::control::mail::{FromShard, ToShard};
use crate::ids::{ConnectionId, ShardId};
use crate::io::{BufferId, Completion, Io, Socket};
use crate::protocol::command::Scratch;
use crate::stats::{Asked, CloseReason, Counters};
use crate::storage::{Arrival, FetchDone, Fetched, Missing, Store};
use acks::Acks;
use cold::ColdRequests;
use connection::Connections;
use files::ConfigFiles;
use mailbox::Mailbox;
use outgoing::Outgoing;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Kinds of [`crate::io::Token`] that the shard itself uses; the store has its own range.
pub(crate) mod token_kind {
    pub const ACCEPT: u8 = 1;
    pub const RECEIVE: u8 = 2;
    pub const SEND: u8 = 3;
    pub const CLOSE: u8 = 4;
    pub const CONFIG_FILE: u8 = 5;
}

/// How a shard reports to the control thread; bounded, never blocks. `Err` gives the mail back.
pub type Report = Box<dyn FnMut(FromShard) -> Result<(), FromShard> + Send>;

/// Where a shard stands between its start and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Serving,
    /// No longer accepts; answers holds, flushes, writes the checkpoint, sends what is queued. Ends at the deadline
    /// (monotonic microseconds) at the latest.
    Stopping {
        deadline_us: u64,
    },
    Stopped,
}

/// Everything one core owns but the I/O backend.
pub struct Core {
    pub id: ShardId,
    pub store: Store,
    pub broker: Broker,
    pub counters: Counters,
    pub(crate) phase: Phase,
    pub(crate) now: Now,
    pub(crate) connections: Connections,
    pub(crate) outgoing: Outgoing,
    pub(crate) acks: Acks,
    pub(crate) cold: ColdRequests,
    pub(crate) files: ConfigFiles,
    pub(crate) effects: Effects,
    /// Memory of the header decoder.
    pub(crate) scratch: Scratch,
    /// Answers that wait until the name servers know of a change, by registration sequence.
    pub(crate) registrations: VecDeque<(u64, Addressed, Asked)>,
    pub(crate) registration_sequence: u64,
    /// Topics of other shards taken up in this turn.
    pub(crate) adopted: u32,
    /// Connections to close in this turn, and why.
    pub(crate) closing: Vec<(ConnectionId, CloseReason)>,
    /// Connections that are not to be received from any more, and those that are again.
    pub(crate) pausing: Vec<ConnectionId>,
    pub(crate) resumed: Vec<ConnectionId>,
    /// Reads to start in this turn.
    pub(crate) fetches_wanted: Vec<(u64, SmallVec<[Missing; 4]>, Fetched)>,
    /// Mail that the control thread had no room for; sent first at the next turn.
    pub(crate) unsent: VecDeque<FromShard>,
    pub(crate) report: Report,
    /// Further clients are refused.
    pub(crate) connections_max: usize,
    /// Silence after which a connection is closed.
    pub(crate) idle_us: u64,
    /// When to look for stuck connections again, if too much waits for all.
    pub(crate) stuck_scan_us: u64,
    /// When to look for silent connections next, in monotonic microseconds.
    pub(crate) idle_scan_us: Option<u64>,
    /// Something became visible in this turn, and with it replies.
    pub(crate) has_delivered: bool,
    /// Opaque of the next request to a client.
    pub(crate) next_opaque: i32,
}

/// One shard: its state and its ring.
pub struct Shard<I: Io> {
    pub core: Core,
    pub(crate) io: I,
    pub(crate) listener: Socket,
    pub(crate) listening: bool,
    pub(crate) accept_armed: bool,
    /// When to accept again, in monotonic microseconds, after the system had no room for a connection.
    pub(crate) accept_again_us: Option<u64>,
    pub(crate) mailbox: Mailbox<ToShard>,
    pub(crate) completions: Vec<Completion>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) fetches: Vec<FetchDone>,
    pub(crate) lent: Vec<BufferId>,
    /// Connections whose multishot receive ended for want of buffers.
    pub(crate) starved: Vec<ConnectionId>,
}
