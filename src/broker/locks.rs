//! 41, 42: which client may consume a queue in order.
//!
//! **Owned by**: one shard. A lock belongs to a client id and the connection that it was last asked for on. It ends
//! with 42, with the group's 35, with the connection, or 60 s after it was last asked for; whoever asks then has it.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../client/rebalance/RebalanceLockManager.java`. There a lock outlives its
//! connection by the lease; here it is free at once (apache/rocketmq-client-go#1220).

use super::topics::Refusal;
use super::{Broker, Context, Outcome, Peer};
use crate::ids::{ConnectionId, NameMap};
use crate::limits::LOCKS_MAX;
use crate::protocol::bodies::{self, LockBatchRequestBody, LockBatchResponseBody, MessageQueue};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::names::check_group;
use crate::protocol::response::Response;
use std::collections::HashMap;
use std::rc::Rc;

/// How long a lock lasts that is not asked for again. Source: apache/rocketmq `REBALANCE_LOCK_MAX_LIVE_TIME`; clients
/// ask every 20 s.
const LEASE_MS: u64 = 60_000;

#[derive(Debug)]
struct Lock {
    client_id: Rc<str>,
    connection: ConnectionId,
    ends_us: u64,
}

/// Broker name, topic and queue id.
type Place = (Box<str>, Box<str>, i32);

#[derive(Debug, Default)]
struct GroupLocks {
    by_place: HashMap<Place, Lock, ahash::RandomState>,
    /// When the last of them ends, or later.
    ends_us: u64,
}

/// All locks of a shard. **Invariant**: no group without a lock.
#[derive(Debug, Default)]
pub struct Locks {
    groups: NameMap<GroupLocks>,
    count: usize,
}

impl Locks {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a group has a lock that has not ended: it consumes in order.
    pub fn has_any(&self, group: &str, now_us: u64) -> bool {
        let group = self.groups.get(group);
        group.is_some_and(|group| {
            group.ends_us > now_us && group.by_place.values().any(|lock| lock.ends_us > now_us)
        })
    }

    /// Locks a queue for a client, or makes its lock last longer. False: another client has it, or there is no room.
    fn lock(&mut self, group: &str, queue: &MessageQueue, lock: Lock, now_us: u64) -> bool {
        let place = place(queue);
        let locks = self.groups.entry(group.into()).or_default();
        locks.ends_us = locks.ends_us.max(lock.ends_us);
        match locks.by_place.get_mut(&place) {
            Some(held) if held.client_id == lock.client_id || held.ends_us <= now_us => {
                *held = lock
            }
            Some(_) => return false,
            None if self.count >= LOCKS_MAX => return false,
            None => {
                locks.by_place.insert(place, lock);
                self.count += 1;
            }
        }
        true
    }

    /// Ends the locks of a group that are asked for.
    fn release(&mut self, group: &str, is_ended: impl Fn(&Place, &Lock) -> bool) {
        if let Some(locks) = self.groups.get_mut(group) {
            let before = locks.by_place.len();
            locks.by_place.retain(|place, lock| !is_ended(place, lock));
            self.count -= before - locks.by_place.len();
            if locks.by_place.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    fn release_everywhere(&mut self, is_ended: impl Fn(&Lock) -> bool) {
        let mut count = 0;
        self.groups.retain(|_, locks| {
            locks.by_place.retain(|_, lock| !is_ended(lock));
            count += locks.by_place.len();
            !locks.by_place.is_empty()
        });
        self.count = count;
    }

    /// The client left the group.
    pub fn release_member(&mut self, group: &str, connection: ConnectionId) {
        self.release(group, |_, lock| lock.connection == connection);
    }

    /// The connection is gone.
    pub fn release_connection(&mut self, connection: ConnectionId) {
        if !self.is_empty() {
            self.release_everywhere(|lock| lock.connection == connection);
        }
    }
}

fn place(queue: &MessageQueue) -> Place {
    let broker_name = queue.broker_name.as_str().into();
    (broker_name, queue.topic.as_str().into(), queue.queue_id)
}

/// Group, client and queues of 41 and 42. **Errors**: the answer.
fn read(command: &Command<'_>) -> Result<LockBatchRequestBody, Refusal> {
    let request: LockBatchRequestBody = bodies::decode(command.body)
        .map_err(|error| (ResponseCode::SYSTEM_ERROR, error.to_string()))?;
    match check_group(&request.consumer_group) {
        Ok(()) => Ok(request),
        Err(error) => Err((ResponseCode::INVALID_PARAMETER, error.to_string())),
    }
}

/// 41: all queues that the client has now, at once (apache/rocketmq#5465, #8772).
pub fn lock(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let request = match read(command) {
        Ok(request) => request,
        Err((code, remark)) => return Ok(Outcome::Reply(Response::error(code, remark))),
    };
    let now_us = cx.now.monotonic_us;
    let client_id: Rc<str> = request.client_id.as_str().into();
    let locks = &mut broker.locks;
    if locks.len() + request.mq_set.len() > LOCKS_MAX {
        locks.release_everywhere(|lock| lock.ends_us <= now_us);
    }
    let mut locked = Vec::with_capacity(request.mq_set.len());
    for queue in request.mq_set {
        let lock = Lock {
            client_id: Rc::clone(&client_id),
            connection: peer.connection,
            ends_us: cx.now.after_ms(LEASE_MS),
        };
        if locks.lock(&request.consumer_group, &queue, lock, now_us) {
            locked.push(queue);
        }
    }
    locks.release(&request.consumer_group, |_, _| false);
    let body = bodies::encode(&LockBatchResponseBody { locked });
    Ok(Outcome::Reply(Response::with_body(body)))
}

/// 42: only the client that has a lock ends it.
pub fn unlock(broker: &mut Broker, command: &Command<'_>) -> Result<Outcome, FieldError> {
    let request = match read(command) {
        Ok(request) => request,
        Err((code, remark)) => return Ok(Outcome::Reply(Response::error(code, remark))),
    };
    let places: std::collections::HashSet<Place> = request.mq_set.iter().map(place).collect();
    broker
        .locks
        .release(&request.consumer_group, |place, lock| {
            *lock.client_id == *request.client_id && places.contains(place)
        });
    Ok(Outcome::Reply(Response::success()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::tests::{Desk, connection};

    fn body(client: &str, group: &str, queues: &[i32]) -> Vec<u8> {
        let mq_set = queues.iter().map(|id| MessageQueue {
            broker_name: "b".to_owned(),
            queue_id: *id,
            topic: "T".to_owned(),
        });
        bodies::encode(&LockBatchRequestBody {
            client_id: client.to_owned(),
            consumer_group: group.to_owned(),
            mq_set: mq_set.collect(),
            only_this_broker: false,
        })
    }

    /// Queues that a client has after it asked for some, on a connection of its own.
    fn ask(desk: &mut Desk, client: u32, group: &str, queues: &[i32]) -> Vec<i32> {
        let name = format!("client-{client}");
        let opaque = desk.start(connection(client), 41, &[], &body(&name, group, queues));
        let response = desk.take(opaque).expect("answered at once");
        let crate::protocol::response::Body::Bytes(bytes) = response.body else {
            panic!("{response:?}");
        };
        let answer: LockBatchResponseBody = bodies::decode(&bytes).unwrap();
        answer.locked.iter().map(|queue| queue.queue_id).collect()
    }

    /// Source: apache/rocketmq#5465, #2621 (E3) and #8772 (E5): one answer, at once, with what is granted.
    #[test]
    fn an_answer_is_complete_and_at_once() {
        let mut desk = Desk::new();
        let all: Vec<i32> = (0..100).collect();
        assert_eq!(ask(&mut desk, 1, "G", &all), all);
        assert_eq!(ask(&mut desk, 2, "G", &[5, 100, 101]), [100, 101]);
        assert_eq!(ask(&mut desk, 2, "H", &[5]), [5], "another group");
        assert_eq!(ask(&mut desk, 1, "G", &[5]), [5], "once more");
        assert_eq!(desk.broker.locks.len(), 103);
    }

    #[test]
    fn a_lock_lasts_as_long_as_it_is_asked_for() {
        let mut desk = Desk::new();
        ask(&mut desk, 1, "G", &[0]);
        desk.pass_ms(59_999);
        assert!(ask(&mut desk, 2, "G", &[0]).is_empty());
        assert_eq!(ask(&mut desk, 1, "G", &[0]), [0]);
        desk.pass_ms(59_999);
        assert!(ask(&mut desk, 2, "G", &[0]).is_empty());
        desk.pass_ms(1);
        assert_eq!(ask(&mut desk, 2, "G", &[0]), [0]);
        assert!(ask(&mut desk, 1, "G", &[0]).is_empty());
    }

    /// Source: apache/rocketmq-client-go#1220 (E6): freed at once, by whoever has it and nobody else.
    #[test]
    fn unlock_unregister_and_close_free_at_once() {
        let mut desk = Desk::new();
        ask(&mut desk, 1, "G", &[0, 1]);
        let unlock = |desk: &mut Desk, client: u32| {
            let name = format!("client-{client}");
            let opaque = desk.start(connection(client), 42, &[], &body(&name, "G", &[0]));
            assert_eq!(desk.take(opaque).unwrap().code, ResponseCode::SUCCESS);
        };
        unlock(&mut desk, 2);
        assert!(ask(&mut desk, 2, "G", &[0, 1]).is_empty());
        unlock(&mut desk, 1);
        assert_eq!(ask(&mut desk, 2, "G", &[0, 1]), [0]);
        desk.close(connection(1));
        assert_eq!(ask(&mut desk, 2, "G", &[0, 1]), [0, 1]);
        let fields = [("clientID", "client-2"), ("consumerGroup", "G")];
        desk.start(connection(2), 35, &fields, &[]);
        assert_eq!(ask(&mut desk, 3, "G", &[0, 1]), [0, 1]);
        desk.close(connection(3));
        assert!(desk.broker.locks.is_empty());
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let mut desk = Desk::new();
        for (body, code) in [(&b"x"[..], 1), (br#"{"consumerGroup":"a/b"}"#, 29)] {
            let opaque = desk.start(connection(0), 41, &[], body);
            assert_eq!(desk.take(opaque).unwrap().code.0, code);
        }
        assert!(ask(&mut desk, 1, "G", &[]).is_empty());
        assert!(desk.broker.locks.is_empty());
    }
}
