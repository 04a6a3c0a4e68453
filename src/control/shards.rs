//! What the control thread knows of each shard: how it is known outside, what it has registered, what it waits for.

use super::mail::ToShard;
use super::{ShardIdentity, ToShardSender};
use crate::limits::TOPICS_MAX;
use crate::protocol::bodies::TopicTable;
use bytes::Bytes;
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::time::Instant;

/// Confirmations that wait for name servers; with more, the oldest are given at once.
const CONFIRMATIONS_MAX: usize = 1024;

/// One shard.
pub struct Shard {
    pub identity: ShardIdentity,
    pub outbox: Outbox,
    /// What it registered last, as sent and as read.
    pub registered: Option<(Bytes, Rc<TopicTable>)>,
    /// A registration that was received and not yet passed on, with its sequence.
    pub received: Option<(u64, Bytes)>,
    /// Topics of other shards that it was told of and has not taken up yet.
    pub adopting: u32,
    confirmations: VecDeque<Confirmation>,
    pub has_stopped: bool,
}

/// A registration that the shard waits for.
#[derive(Debug)]
struct Confirmation {
    sequence: u64,
    deadline: Instant,
    /// Name servers that have not answered, with the generation that they have to answer.
    servers: Vec<(usize, u64)>,
}

impl Shard {
    pub fn new(identity: ShardIdentity, send: ToShardSender) -> Self {
        Self {
            identity,
            outbox: Outbox::new(send),
            registered: None,
            received: None,
            adopting: 0,
            confirmations: VecDeque::new(),
            has_stopped: false,
        }
    }

    /// Confirms a registration once these name servers have answered, or at the deadline.
    pub fn confirm_later(&mut self, sequence: u64, servers: Vec<(usize, u64)>, deadline: Instant) {
        if self.confirmations.len() >= CONFIRMATIONS_MAX {
            self.confirm(CONFIRMATIONS_MAX / 2);
        }
        self.confirmations.push_back(Confirmation {
            sequence,
            deadline,
            servers,
        });
    }

    /// The name server has answered this generation, and with it all before.
    pub fn on_answered(&mut self, server: usize, generation: u64) {
        for confirmation in &mut self.confirmations {
            let servers = &mut confirmation.servers;
            servers.retain(|(s, wanted)| *s != server || *wanted > generation);
        }
    }

    /// Nobody waits for a name server that can't be reached.
    pub fn on_lost(&mut self, server: usize) {
        self.on_answered(server, u64::MAX);
    }

    /// Confirms what is complete or late.
    pub fn settle(&mut self, now: Instant) {
        let is_due = |c: &Confirmation| c.servers.is_empty() || c.deadline <= now;
        if let Some(last) = self.confirmations.iter().rposition(is_due) {
            self.confirm(last + 1);
        }
    }

    /// The last one's sequence covers those before it.
    fn confirm(&mut self, count: usize) {
        if let Some(last) = self.confirmations.drain(..count).next_back() {
            let sequence = last.sequence;
            self.outbox.push(ToShard::Registered { sequence });
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.confirmations.front().map(|c| c.deadline)
    }
}

/// Mail for a shard, in order. What its mailbox has no room for waits here and is tried again.
pub struct Outbox {
    send: ToShardSender,
    waiting: VecDeque<ToShard>,
}

impl Outbox {
    fn new(send: ToShardSender) -> Self {
        Self {
            send,
            waiting: VecDeque::new(),
        }
    }

    pub fn push(&mut self, mail: ToShard) {
        if let (Some(ToShard::Registered { sequence: last }), ToShard::Registered { sequence }) =
            (self.waiting.back_mut(), &mail)
        {
            *last = *sequence;
            return;
        }
        let is_topic = matches!(mail, ToShard::CreateTopic(_));
        if is_topic && self.waiting.len() >= TOPICS_MAX {
            // A shard refuses topics beyond this number anyway.
            tracing::error!(
                ?mail,
                "a shard does not take its mail, a topic is not created there"
            );
            return;
        }
        self.waiting.push_back(mail);
        self.flush();
    }

    /// Hands over what there is room for.
    pub fn flush(&mut self) {
        while let Some(mail) = self.waiting.pop_front() {
            if let Err(mail) = (self.send)(mail) {
                self.waiting.push_front(mail);
                return;
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    type Mailbox = Arc<Mutex<Vec<String>>>;

    /// A shard whose mailbox has room for `room` messages, and what is in it.
    fn shard(room: usize) -> (Shard, Mailbox, Arc<Mutex<usize>>) {
        let (mailbox, room) = (Mailbox::default(), Arc::new(Mutex::new(room)));
        let (taken, limit) = (Arc::clone(&mailbox), Arc::clone(&room));
        let send = move |mail: ToShard| {
            let mut taken = taken.lock().expect("one thread");
            if taken.len() >= *limit.lock().expect("one thread") {
                return Err(mail);
            }
            taken.push(format!("{mail:?}"));
            Ok(())
        };
        let identity = ShardIdentity {
            shard: ShardId(0),
            cluster: "c".to_owned(),
            broker_name: "b".to_owned(),
            broker_id: 0,
            address: "127.0.0.1:10911".to_owned(),
            ha_address: "127.0.0.1:10912".to_owned(),
        };
        (Shard::new(identity, Box::new(send)), mailbox, room)
    }

    fn registered(mailbox: &Mutex<Vec<String>>) -> Vec<String> {
        mailbox.lock().expect("one thread").drain(..).collect()
    }

    #[test]
    fn confirmation_waits_for_all_servers_that_can_be_reached() {
        let (mut shard, mailbox, _) = shard(10);
        let now = Instant::now();
        let later = now + Duration::from_secs(3);
        shard.confirm_later(7, vec![(0, 4), (1, 9)], later);
        shard.settle(now);
        shard.on_answered(0, 3);
        shard.on_answered(1, 9);
        shard.settle(now);
        assert_eq!(registered(&mailbox), [""; 0]);
        shard.on_answered(0, 5);
        shard.settle(now);
        assert_eq!(registered(&mailbox), ["Registered { sequence: 7 }"]);
        shard.confirm_later(8, vec![(0, 6), (1, 10)], later);
        shard.on_answered(1, 10);
        shard.on_lost(0);
        shard.settle(now);
        assert_eq!(registered(&mailbox), ["Registered { sequence: 8 }"]);
        assert_eq!(shard.next_deadline(), None);
    }

    #[test]
    fn confirmation_is_given_at_its_deadline() {
        let (mut shard, mailbox, _) = shard(10);
        let now = Instant::now();
        let later = now + Duration::from_secs(3);
        shard.confirm_later(1, vec![(0, 1)], later);
        shard.confirm_later(2, vec![(0, 2)], later + Duration::from_secs(1));
        assert_eq!(shard.next_deadline(), Some(later));
        shard.settle(later);
        assert_eq!(registered(&mailbox), ["Registered { sequence: 1 }"]);
        shard.settle(later + Duration::from_secs(1));
        assert_eq!(registered(&mailbox), ["Registered { sequence: 2 }"]);
    }

    #[test]
    fn confirmations_are_bounded() {
        let (mut shard, mailbox, _) = shard(10);
        let later = Instant::now() + Duration::from_secs(3);
        for sequence in 0..=CONFIRMATIONS_MAX as u64 {
            shard.confirm_later(sequence, vec![(0, sequence)], later);
        }
        assert_eq!(registered(&mailbox), ["Registered { sequence: 511 }"]);
    }

    #[test]
    fn mail_without_room_waits_in_order_and_confirmations_join() {
        let (mut shard, mailbox, room) = shard(0);
        let outbox = &mut shard.outbox;
        for sequence in 1..=3 {
            outbox.push(ToShard::Registered { sequence });
        }
        outbox.push(ToShard::Stop);
        outbox.flush();
        assert!(!outbox.is_empty());
        *room.lock().expect("one thread") = 10;
        outbox.flush();
        assert!(outbox.is_empty());
        assert_eq!(registered(&mailbox), ["Registered { sequence: 3 }", "Stop"]);
    }
}
