//! Pulls that wait for a message.
//!
//! **Owned by**: one shard. A hold is in three structures at once: the list of its queue (arrivals), the list of
//! its connection (close) and the heap of deadlines. All are threaded through the slots of one slab, so that
//! parking and waking allocate nothing once the slab has grown.
//!
//! **Invariant**: between two calls, the cursor of every hold equals the end of its queue. A pull is parked only
//! at the end, an arrival moves all holds of its queue to the new end or answers them. So there is nothing to
//! rescan, and the holds of a queue need no order: they all wait for the same offset.
//!
//! **Deliberately absent**: a periodic sweep; the heap tells when the next hold ends, and nothing runs before.

use super::filter::Filter;
use super::pull::{self, HeldEvaluation, PullRequest};
use super::{Addressed, Broker, Context};
use crate::ids::{ConnectionId, QueueIndex, QueueOffset};
use crate::limits::HOLDS_MAX;
use crate::protocol::response::Response;
use crate::stats::{Counters, Woken};
use crate::storage::Arrival;
use deadlines::Deadlines;
use slab::Slab;

mod deadlines;

/// Key of a hold in the slab.
type Key = u32;

/// A place in a doubly linked list of holds.
#[derive(Clone, Copy, Debug, Default)]
struct Links {
    previous: Option<Key>,
    next: Option<Key>,
}

#[derive(Debug)]
struct Hold {
    request: PullRequest,
    in_queue: Links,
    in_connection: Links,
}

/// Head of the holds of one connection slot; of an older connection in that slot there are none.
#[derive(Clone, Copy, Debug)]
struct ConnectionHead {
    generation: u32,
    first: Option<Key>,
}

/// All holds of a shard: by queue, by connection, by deadline.
#[derive(Debug, Default)]
pub struct Holds {
    entries: Slab<Hold>,
    /// By queue index.
    queues: Vec<Option<Key>>,
    /// By connection index.
    connections: Vec<Option<ConnectionHead>>,
    deadlines: Deadlines,
}

/// What can be said about a hold: why a consumer waits.
#[derive(Clone, Copy, Debug)]
pub struct HoldView<'a> {
    pub connection: ConnectionId,
    pub group: &'a str,
    pub topic: &'a str,
    pub queue_id: u32,
    /// The filter as the client wrote it.
    pub expression: &'a str,
    /// What the client asked for.
    pub offset: QueueOffset,
    /// The offset it waits for.
    pub cursor: QueueOffset,
    /// In monotonic microseconds.
    pub since_us: u64,
    pub deadline_us: u64,
    /// The message that the filter refused last, and its tags code.
    pub refused: Option<(QueueOffset, i64)>,
    pub queue: QueueIndex,
    pub filter: &'a Filter,
}

impl<'a> HoldView<'a> {
    fn of(hold: &'a Hold) -> Self {
        let request = &hold.request;
        Self {
            connection: request.connection,
            group: &request.group,
            topic: &request.topic,
            queue_id: request.queue_id,
            expression: &request.subscription.expression,
            offset: request.offset,
            cursor: request.cursor,
            since_us: request.held_since_us.unwrap_or_default(),
            deadline_us: request.deadline_us,
            refused: request.refused,
            queue: request.queue,
            filter: &request.subscription.filter,
        }
    }
}

impl Holds {
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Parks a pull that has been examined to the end of its queue. `Err` gives it back at the limit: answer 19 at
    /// once.
    #[expect(
        clippy::result_large_err,
        reason = "the error is the request itself, handed back"
    )]
    pub fn park(
        &mut self,
        request: PullRequest,
        counters: &mut Counters,
    ) -> Result<(), PullRequest> {
        if self.entries.len() >= HOLDS_MAX {
            return Err(request);
        }
        counters.holds_parked += 1;
        counters.holds_now += 1;
        let deadline_us = request.deadline_us;
        let key = self.entries.insert(Hold {
            request,
            in_queue: Links::default(),
            in_connection: Links::default(),
        }) as Key;
        self.link_queue(key);
        self.link_connection(key);
        self.deadlines.insert(key, deadline_us);
        Ok(())
    }

    pub fn drop_connection(&mut self, connection: ConnectionId, counters: &mut Counters) {
        while let Some(key) = self.first_of_connection(connection) {
            self.remove(key, counters);
        }
    }

    /// The earliest end of a hold, in monotonic microseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(_, deadline_us)| deadline_us)
    }

    /// Every hold, for whoever asks why a consumer waits.
    pub fn iter(&self) -> impl Iterator<Item = HoldView<'_>> {
        self.entries.iter().map(|(_, hold)| HoldView::of(hold))
    }

    /// The holds in some places, and the place behind them if there are more. So many places are looked at, and so
    /// many holds at most are there.
    pub fn page(
        &self,
        from: u32,
        places: usize,
    ) -> (impl Iterator<Item = HoldView<'_>>, Option<u32>) {
        let from = from as usize;
        // A slab's places are dense up to the most holds that there were at once.
        let end = self.entries.capacity().min(from.saturating_add(places));
        let page = (from..end).filter_map(|place| self.entries.get(place));
        let next = (end < self.entries.capacity()).then_some(end as u32);
        (page.map(HoldView::of), next)
    }

    fn first_of_queue(&self, queue: QueueIndex) -> Option<Key> {
        self.queues.get(queue.index()).copied().flatten()
    }

    fn first_of_connection(&self, connection: ConnectionId) -> Option<Key> {
        let head = self.connections.get(connection.index as usize)?.as_ref()?;
        if head.generation == connection.generation {
            head.first
        } else {
            None
        }
    }

    fn link_queue(&mut self, key: Key) {
        let index = self.entries[key as usize].request.queue.index();
        if self.queues.len() <= index {
            self.queues.resize(index + 1, None);
        }
        let next = self.queues[index].replace(key);
        self.entries[key as usize].in_queue.next = next;
        if let Some(next) = next {
            self.entries[next as usize].in_queue.previous = Some(key);
        }
    }

    fn link_connection(&mut self, key: Key) {
        let connection = self.entries[key as usize].request.connection;
        let index = connection.index as usize;
        if self.connections.len() <= index {
            self.connections.resize(index + 1, None);
        }
        let empty = ConnectionHead {
            generation: connection.generation,
            first: None,
        };
        let head = self.connections[index].get_or_insert(empty);
        if head.generation != connection.generation {
            assert!(
                head.first.is_none(),
                "connection {connection} has holds of generation {}",
                head.generation
            );
            *head = empty;
        }
        let next = head.first.replace(key);
        self.entries[key as usize].in_connection.next = next;
        if let Some(next) = next {
            self.entries[next as usize].in_connection.previous = Some(key);
        }
    }

    /// Takes a hold out of all three structures.
    fn remove(&mut self, key: Key, counters: &mut Counters) -> PullRequest {
        counters.holds_now -= 1;
        let hold = self.entries.remove(key as usize);
        let (queue, connection) = (hold.in_queue, hold.in_connection);
        if let Some(next) = queue.next {
            self.entries[next as usize].in_queue.previous = queue.previous;
        }
        match queue.previous {
            Some(previous) => self.entries[previous as usize].in_queue.next = queue.next,
            None => self.queues[hold.request.queue.index()] = queue.next,
        }
        if let Some(next) = connection.next {
            self.entries[next as usize].in_connection.previous = connection.previous;
        }
        match connection.previous {
            Some(previous) => self.entries[previous as usize].in_connection.next = connection.next,
            None => {
                let head = self.connections[hold.request.connection.index as usize].as_mut();
                let head = head.expect("a hold's connection has a head");
                head.first = connection.next;
            }
        }
        self.deadlines.remove(key);
        hold.request
    }
}

/// A queue has messages: answers the holds that match, moves the cursors of the others.
pub fn on_arrival(broker: &mut Broker, arrival: Arrival, cx: &mut Context<'_>) {
    let mut next = broker.holds.first_of_queue(arrival.queue);
    while let Some(key) = next {
        let hold = &mut broker.holds.entries[key as usize];
        next = hold.in_queue.next;
        match pull::evaluate_to_end(&mut hold.request, cx) {
            HeldEvaluation::End => {}
            HeldEvaluation::Answer(answer) => {
                cx.counters.holds_woken += 1;
                let request = broker.holds.remove(key, cx.counters);
                let woken = Woken {
                    parked_us: request.held_since_us.unwrap_or_default(),
                    appended_us: arrival.appended_us,
                };
                let response = answer.response(&request, Some(woken), cx);
                reply(&request, response, cx);
            }
            HeldEvaluation::Missing(missing) => {
                let request = broker.holds.remove(key, cx.counters);
                cx.effects.reads.push((request, missing));
            }
        }
    }
}

/// Answers the holds whose time is over.
pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    while let Some((key, deadline_us)) = broker.holds.deadlines.first() {
        if deadline_us > cx.now.monotonic_us {
            return;
        }
        cx.counters.holds_expired += 1;
        answer_now(broker, key, cx);
    }
}

/// Answers every hold as at its deadline.
pub fn answer_all(broker: &mut Broker, cx: &mut Context<'_>) {
    while let Some((key, _)) = broker.holds.deadlines.first() {
        answer_now(broker, key, cx);
    }
}

/// Answers the holds of queues that were deleted: 17.
pub fn answer_deleted(broker: &mut Broker, queues: &[QueueIndex], cx: &mut Context<'_>) {
    for queue in queues {
        while let Some(key) = broker.holds.first_of_queue(*queue) {
            let request = broker.holds.remove(key, cx.counters);
            let response = pull::topic_gone(&request);
            reply(&request, response, cx);
        }
    }
}

fn answer_now(broker: &mut Broker, key: Key, cx: &mut Context<'_>) {
    let mut request = broker.holds.remove(key, cx.counters);
    let response = pull::at_deadline(&mut request, cx);
    reply(&request, response, cx);
}

fn reply(request: &PullRequest, response: Response, cx: &mut Context<'_>) {
    let now_us = cx.now.monotonic_us;
    let counters = &mut *cx.counters;
    counters.count_hold(request.held_since_us.unwrap_or(now_us), now_us);
    counters.count_answer(request.asked, response.code.0, true);
    cx.effects.replies.push(Addressed {
        connection: request.connection,
        opaque: request.opaque,
        encoding: request.encoding,
        response,
    });
}
