//! Random histories of heartbeats, ends, closes and silence against a plain map.

use super::*;
use crate::io::Io;
use crate::protocol::bodies::SubscriptionData;
use proptest::prelude::*;
use std::collections::BTreeSet;

const GROUPS: [&str; 3] = ["A", "B", "C"];

#[derive(Clone, Debug)]
enum Step {
    Consumer { connection: u32, group: usize },
    Producer { connection: u32, group: usize },
    EndConsumer { connection: u32, group: usize },
    EndProducer { connection: u32, group: usize },
    Close { connection: u32 },
    Pass { ms: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let of = || (0..5_u32, 0..3_usize);
    let step = prop_oneof![
        4 => of().prop_map(|(connection, group)| Step::Consumer { connection, group }),
        2 => of().prop_map(|(connection, group)| Step::Producer { connection, group }),
        1 => of().prop_map(|(connection, group)| Step::EndConsumer { connection, group }),
        1 => of().prop_map(|(connection, group)| Step::EndProducer { connection, group }),
        1 => (0..5_u32).prop_map(|connection| Step::Close { connection }),
        2 => prop::sample::select(vec![1, 30_000, 60_000, 119_999, 120_000]).prop_map(|ms| Step::Pass { ms }),
    ];
    prop::collection::vec(step, 0..40)
}

/// By group and connection: when it was heard last.
type Model = BTreeMap<(usize, u32), u64>;

fn expire(model: &mut Model, now_us: u64) {
    model.retain(|_, heard_us| *heard_us + MEMBER_US > now_us);
}

proptest! {
    /// Memberships are those of a plain map from group and connection to the last heartbeat.
    #[test]
    fn memberships_are_those_of_a_map(steps in steps()) {
        let mut desk = Desk::new();
        let (mut consumers, mut producers) = (Model::new(), Model::new());
        let id: Rc<str> = "c".into();
        for step in steps {
            let now_us = desk.io.now().monotonic_us;
            let clients = &mut desk.broker.clients;
            match step {
                Step::Consumer { connection: from, group } => {
                    let data = ConsumerData {
                        group_name: GROUPS[group].to_owned(),
                        subscription_data_set: vec![SubscriptionData {
                            topic: "T".to_owned(),
                            ..SubscriptionData::default()
                        }],
                        ..ConsumerData::default()
                    };
                    let peer = Peer { connection: connection(from), address: ([127, 0, 0, 1], 1).into() };
                    let beat = Beat { client_id: &id, peer, language: "JAVA", version: 479, now_us, keep_subscriptions: false };
                        clients.hear_consumer(&data, &beat).unwrap();
                    consumers.insert((group, from), now_us);
                }
                Step::Producer { connection: from, group } => {
                    let peer = Peer { connection: connection(from), address: ([10, 0, 0, 9], 1).into() };
                    let beat = Beat { client_id: &id, peer, language: "JAVA", version: 479, now_us, keep_subscriptions: false };
                    clients.hear_producer(GROUPS[group], &beat).unwrap();
                    producers.insert((group, from), now_us);
                }
                Step::EndConsumer { connection: from, group } => {
                    clients.leave_consumer(GROUPS[group], connection(from));
                    consumers.remove(&(group, from));
                }
                Step::EndProducer { connection: from, group } => {
                    clients.leave_producer(GROUPS[group], connection(from));
                    producers.remove(&(group, from));
                }
                Step::Close { connection: from } => {
                    clients.drop_connection(connection(from));
                    consumers.retain(|(_, of), _| *of != from);
                    producers.retain(|(_, of), _| *of != from);
                }
                Step::Pass { ms } => {
                    desk.io.advance_ms(ms);
                    let due = clients.next_deadline().is_some_and(|at| at <= now_us + ms * 1000);
                    if due {
                        desk.expire();
                        expire(&mut consumers, now_us + ms * 1000);
                        expire(&mut producers, now_us + ms * 1000);
                    }
                }
            }
            // What a deadline was not due for has not expired either.
            let now_us = desk.io.now().monotonic_us;
            let oldest = consumers.values().chain(producers.values()).min();
            prop_assert!(oldest.is_none_or(|heard_us| heard_us + MEMBER_US > now_us));
            check(&desk.broker.clients);
            let members = |group: &str| -> BTreeSet<u32> {
                desk.broker.clients.members(group).map(|(id, _)| id.index).collect()
            };
            for (index, group) in GROUPS.iter().enumerate() {
                let expected: BTreeSet<u32> =
                    consumers.keys().filter(|(of, _)| *of == index).map(|(_, id)| *id).collect();
                prop_assert_eq!(members(group), expected);
            }
            prop_assert_eq!(desk.broker.clients.producer_memberships, producers.len());
        }
    }
}
