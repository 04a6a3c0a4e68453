//! Pulls that wait for a message. Parked and re-checked in one call on the owning shard, so that no arrival can fall
//! in between; woken by the arrival itself, so that nothing is ever scanned (apache/rocketmq#7358 can't exist).

use super::pull::{self, PullRequest};
use super::{Addressed, Broker, Context, Outcome};
use crate::ids::{ConnectionId, QueueIndex};
use crate::limits::HOLDS_MAX;
use crate::protocol::codes::ResponseCode;
use crate::protocol::response::Response;
use crate::stats::Counters;
use crate::storage::Arrival;
use slab::Slab;
use std::collections::{BTreeSet, HashMap};

/// All holds of a shard: by queue, by connection, by deadline.
#[derive(Debug, Default)]
pub struct Holds {
    entries: Slab<PullRequest>,
    by_queue: Vec<Vec<u32>>,
    by_connection: HashMap<ConnectionId, Vec<u32>, ahash::RandomState>,
    by_deadline: BTreeSet<(u64, u32)>,
    /// Keys of the queue being woken.
    waking: Vec<u32>,
}

impl Holds {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &PullRequest> {
        self.entries.iter().map(|(_, request)| request)
    }

    /// Parks a pull. `Err` gives it back at the limit: answer 19 at once.
    pub fn park(
        &mut self,
        request: PullRequest,
        counters: &mut Counters,
    ) -> Result<(), Box<PullRequest>> {
        if self.entries.len() >= HOLDS_MAX {
            return Err(Box::new(request));
        }
        let (queue, connection, deadline) = (
            request.queue.index(),
            request.connection,
            request.deadline_us,
        );
        let key = self.entries.insert(request) as u32;
        if self.by_queue.len() <= queue {
            self.by_queue.resize_with(queue + 1, Vec::new);
        }
        self.by_queue[queue].push(key);
        self.by_connection.entry(connection).or_default().push(key);
        self.by_deadline.insert((deadline, key));
        counters.holds_parked += 1;
        counters.holds_now += 1;
        Ok(())
    }

    fn remove(&mut self, key: u32, counters: &mut Counters) -> PullRequest {
        let request = self.entries.remove(key as usize);
        self.by_deadline.remove(&(request.deadline_us, key));
        self.by_queue[request.queue.index()].retain(|k| *k != key);
        if let Some(keys) = self.by_connection.get_mut(&request.connection) {
            keys.retain(|k| *k != key);
        }
        counters.holds_now -= 1;
        request
    }

    pub fn drop_connection(&mut self, connection: ConnectionId, counters: &mut Counters) {
        for key in self.by_connection.remove(&connection).unwrap_or_default() {
            self.remove(key, counters);
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    fn take_due(&mut self, now_us: u64, counters: &mut Counters) -> Option<PullRequest> {
        let (_, key) = self
            .by_deadline
            .first()
            .copied()
            .filter(|(deadline, _)| *deadline <= now_us)?;
        Some(self.remove(key, counters))
    }

    fn take_any(&mut self, counters: &mut Counters) -> Option<PullRequest> {
        let (_, key) = self.by_deadline.first().copied()?;
        Some(self.remove(key, counters))
    }

    /// All holds of a queue, no longer held.
    pub fn take_queue(&mut self, queue: QueueIndex, counters: &mut Counters) -> Vec<PullRequest> {
        let keys = self
            .by_queue
            .get_mut(queue.index())
            .map(std::mem::take)
            .unwrap_or_default();
        keys.into_iter()
            .map(|key| self.remove(key, counters))
            .collect()
    }
}

/// Evaluates the holds of the queue: a match is answered; where the filter wants none of the new messages, the hold
/// stays parked with its cursor behind them.
pub fn on_arrival(broker: &mut Broker, arrival: Arrival, cx: &mut Context<'_>) {
    let Some(keys) = broker
        .holds
        .by_queue
        .get(arrival.queue.index())
        .filter(|keys| !keys.is_empty())
    else {
        return;
    };
    let mut waking = std::mem::take(&mut broker.holds.waking);
    waking.extend_from_slice(keys);
    for key in waking.drain(..) {
        let request = &mut broker.holds.entries[key as usize];
        match pull::evaluate_held(&broker.config, request, cx) {
            pull::Woken::Stay => {}
            pull::Woken::Answer(response) => {
                let request = broker.holds.remove(key, cx.counters);
                cx.counters.holds_woken += 1;
                cx.effects.replies.push(addressed(&request, response));
            }
            pull::Woken::Read(missing) => {
                let request = broker.holds.remove(key, cx.counters);
                cx.counters.holds_woken += 1;
                cx.effects.reads.push((request, missing));
            }
        }
    }
    broker.holds.waking = waking;
}

fn addressed(request: &PullRequest, response: Response) -> Addressed {
    Addressed {
        connection: request.connection,
        opaque: request.opaque,
        encoding: request.encoding,
        response,
    }
}

/// Answers what is due: 19, with the cursor as the next offset, so that a consumer of a rare tag neither lags nor
/// rescans.
pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    while let Some(request) = broker.holds.take_due(cx.now.monotonic_us, cx.counters) {
        cx.counters.holds_expired += 1;
        answer_now(broker, request, cx);
    }
}

/// Answers every hold: the broker stops.
pub fn answer_all(broker: &mut Broker, cx: &mut Context<'_>) {
    while let Some(request) = broker.holds.take_any(cx.counters) {
        answer_now(broker, request, cx);
    }
}

fn answer_now(broker: &mut Broker, mut request: PullRequest, cx: &mut Context<'_>) {
    request.suspend = false;
    let (connection, opaque, encoding) = (request.connection, request.opaque, request.encoding);
    match pull::resume(broker, request.clone(), cx) {
        Outcome::Reply(response) => cx.effects.replies.push(Addressed {
            connection,
            opaque,
            encoding,
            response,
        }),
        Outcome::Read(missing) => cx.effects.reads.push((request, missing)),
        other => panic!("a hold ended in {other:?}"),
    }
}

/// The queues are gone: their holds are answered 17.
pub fn answer_deleted(broker: &mut Broker, queues: &[QueueIndex], cx: &mut Context<'_>) {
    for queue in queues {
        for request in broker.holds.take_queue(*queue, cx.counters) {
            let remark = format!("topic[{}] not exist, it was deleted", request.topic);
            let response = Response::error(ResponseCode::TOPIC_NOT_EXIST, remark);
            cx.effects.replies.push(addressed(&request, response));
        }
    }
}
