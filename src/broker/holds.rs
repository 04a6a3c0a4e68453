//! Pulls that wait for a message.

use super::pull::PullRequest;
use super::{Broker, Context};
use crate::ids::{ConnectionId, QueueIndex};
use crate::stats::Counters;
use crate::storage::Arrival;

/// All holds of a shard: by queue, by connection, by deadline.
#[derive(Debug, Default)]
pub struct Holds {
    entries: slab::Slab<PullRequest>,
}

impl Holds {
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// Parks a pull. `Err` gives it back at the limit: answer 19 at once.
    pub fn park(
        &mut self,
        request: PullRequest,
        counters: &mut Counters,
    ) -> Result<(), PullRequest> {
        let _ = counters;
        Err(request)
    }
    pub fn drop_connection(&mut self, connection: ConnectionId, counters: &mut Counters) {
        let _ = (connection, counters);
        todo!()
    }
    pub fn next_deadline(&self) -> Option<u64> {
        todo!()
    }
    /// The queue was deleted: its holds are answered (17).
    pub fn take_queue(&mut self, queue: QueueIndex) -> Vec<PullRequest> {
        let _ = queue;
        todo!()
    }
}

pub fn on_arrival(broker: &mut Broker, arrival: Arrival, cx: &mut Context<'_>) {
    let _ = (broker, arrival, cx);
    todo!()
}
pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    let _ = (broker, cx);
    todo!()
}
pub fn answer_all(broker: &mut Broker, cx: &mut Context<'_>) {
    let _ = (broker, cx);
    todo!()
}
