//! Pops that wait for a message, by topic, by connection, by deadline.
//!
//! A pop may wait for all queues of its topic and for those of its retry topic, so that it is not in the lists of
//! [`Holds`](crate::broker::holds::Holds), whose members wait for one offset of one queue. The earliest is answered
//! first.

use super::PopRequest;
use crate::ids::{ConnectionId, NameMap};
use crate::limits::POPS_WAITING_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// Grows with every pop that waits.
pub type Number = u64;

#[derive(Debug, Default)]
pub struct Waiting {
    entries: BTreeMap<Number, PopRequest>,
    topics: NameMap<BTreeSet<Number>>,
    connections: BTreeSet<(ConnectionId, Number)>,
    deadlines: BTreeSet<(u64, Number)>,
    last: Number,
}

impl Waiting {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// False at the limit: answer 209.
    pub fn has_room(&self) -> bool {
        self.entries.len() < POPS_WAITING_MAX
    }

    pub fn park(&mut self, request: PopRequest) {
        self.last += 1;
        let number = self.last;
        for topic in request.topics() {
            self.topics.entry(topic.into()).or_default().insert(number);
        }
        self.connections.insert((request.base.connection, number));
        self.deadlines.insert((request.base.deadline_us, number));
        self.entries.insert(number, request);
    }

    pub fn remove(&mut self, number: Number) -> Option<PopRequest> {
        let request = self.entries.remove(&number)?;
        for topic in request.topics() {
            if let Some(numbers) = self.topics.get_mut(topic) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.topics.remove(topic);
                }
            }
        }
        self.connections.remove(&(request.base.connection, number));
        self.deadlines.remove(&(request.base.deadline_us, number));
        Some(request)
    }

    /// The next one behind `number` that waits for a topic.
    pub fn next_of(&self, topic: &str, number: Number) -> Option<(Number, &PopRequest)> {
        let numbers = self.topics.get(topic)?;
        let next = numbers.range((Excluded(number), Unbounded)).next()?;
        Some((*next, &self.entries[next]))
    }

    /// Pops of a group that wait for a queue, or for any.
    pub fn count(&self, group: &str, topic: &str, queue_id: Option<u32>) -> usize {
        let numbers = self.topics.get(topic).into_iter().flatten();
        let requests = numbers.map(|number| &self.entries[number]);
        let meant = requests.filter(|request| {
            *request.base.group == *group
                && *request.base.topic == *topic
                && request.queue_id == queue_id
        });
        meant.count()
    }

    pub fn drop_connection(&mut self, connection: ConnectionId) {
        let from = (connection, Number::MIN);
        let numbers: Vec<Number> = self
            .connections
            .range(from..=(connection, Number::MAX))
            .map(|(_, number)| *number)
            .collect();
        for number in numbers {
            self.remove(number);
        }
    }

    pub fn first_deadline(&self) -> Option<(u64, Number)> {
        self.deadlines.first().copied()
    }
}
