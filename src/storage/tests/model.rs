//! Histories of a store, and what must be true after any of them: a simple model to compare with.

use super::*;
use crate::testing::sim_io::{Death, OpKind};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub enum Action {
    Send {
        topic: &'static str,
        queue_id: u32,
        bytes: usize,
    },
    /// Ends the turn: writes, completions, arrivals.
    Turn,
    /// As `Turn`, but only so many operations complete, in any order.
    Partial {
        seed: u64,
        steps: usize,
    },
    /// The next operation of a kind fails.
    Fail {
        kind: OpKind,
        errno: i32,
    },
    /// Time for flushes, queue entries, checkpoints.
    Pass {
        ms: u64,
    },
    Delete {
        topic: &'static str,
    },
    Stop,
}

#[derive(Clone, Debug)]
pub struct Sent {
    pub body: String,
    pub end: PhysicalOffset,
}

/// What was sent, by queue, since its topic was last deleted.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub queues: BTreeMap<(&'static str, u32), Vec<Sent>>,
    sequence: u64,
    /// Deleted, and not yet durably so: its messages may be there or not.
    deleting: Vec<&'static str>,
    /// A stop was begun.
    pub is_stopping: bool,
}

/// What a crash left.
pub struct Crashed {
    pub disk: Disk,
    pub model: Model,
    /// All that was sent below was acknowledged.
    pub acknowledged: PhysicalOffset,
    pub flushed: PhysicalOffset,
    /// Effects on the disk so far.
    pub effects: u64,
}

impl Model {
    /// A body that says who it is; as long as asked, if that is long enough.
    fn next_body(&mut self, bytes: usize) -> String {
        self.sequence += 1;
        format!("{:0>bytes$}", self.sequence)
    }

    pub fn perform(&mut self, shop: &mut Shop, action: &Action) {
        match action {
            Action::Send {
                topic,
                queue_id,
                bytes,
            } => {
                let body = self.next_body(*bytes);
                let Ok(appended) = shop.try_send(topic, *queue_id, body.as_bytes()) else {
                    return;
                };
                let queue = self.queues.entry((topic, *queue_id)).or_default();
                assert_eq!(
                    appended.queue_offset.0,
                    queue.len() as u64,
                    "{topic} {queue_id}"
                );
                queue.push(Sent {
                    body,
                    end: appended.end,
                });
            }
            Action::Turn => shop.turn(),
            Action::Partial { seed, steps } => shop.partial_turn(*seed, *steps),
            Action::Fail { kind, errno } => shop.io.fail(*kind, 0, 1, *errno),
            Action::Pass { ms } => shop.pass_ms(*ms),
            Action::Delete { topic } => {
                shop.turn();
                if shop.io.is_dead() {
                    return;
                }
                shop.store.delete_topic(topic);
                self.deleting.push(topic);
                self.queues.retain(|(of, _), _| of != topic);
                self.perform(shop, &Action::Turn);
            }
            Action::Stop => {
                self.is_stopping = true;
                shop.stop();
            }
        }
        let removals = &shop.store.removals;
        self.deleting.retain(|topic| !removals.is_durable(topic));
    }

    /// Compares a store with what was sent: a dense prefix of each queue, unchanged, with all that ends at or below
    /// `durable`. Keeps what is there.
    pub fn check(&mut self, shop: &mut Shop, durable: PhysicalOffset, context: &str) {
        for (topic, queue_id, _) in shop.store.queues() {
            let known = self
                .queues
                .keys()
                .any(|(of, id)| **of == *topic && *id == queue_id);
            let deleting = self.deleting.contains(&topic.as_str());
            let (min, max) = shop.bounds(&topic, queue_id);
            assert!(
                known || deleting || max == 0,
                "{context}: {topic} {queue_id} has {min}..{max}"
            );
        }
        for ((topic, queue_id), sent) in &mut self.queues {
            if self.deleting.contains(topic) {
                continue;
            }
            let kept = match shop.store.queue(topic, *queue_id) {
                Some(_) => shop.bodies(topic, *queue_id),
                None => Vec::new(),
            };
            let must = sent.iter().filter(|sent| sent.end <= durable).count();
            assert!(
                kept.len() >= must && kept.len() <= sent.len(),
                "{context}: {topic} {queue_id} has {} messages, {must} to {} expected",
                kept.len(),
                sent.len()
            );
            let expected = sent.iter().map(|sent| sent.body.as_str());
            let same = kept
                .iter()
                .map(String::as_str)
                .eq(expected.take(kept.len()));
            assert!(same, "{context}: {topic} {queue_id} has {kept:?}");
            sent.truncate(kept.len());
        }
        let deleting = std::mem::take(&mut self.deleting);
        for topic in deleting {
            // Whichever it was, from here on it is deleted.
            shop.store.delete_topic(topic);
            self.queues.retain(|(of, _), _| *of != topic);
            shop.turn();
        }
    }
}

/// Runs a history on a disk until it ends or the process dies. Panics that follow from death are not possible:
/// the store only ever sees errors and missing completions.
pub fn run(
    disk: Disk,
    model: Model,
    config: StoreConfig,
    history: &[Action],
    death: Option<Death>,
) -> Crashed {
    let mut io = SimIo::with_disk(disk);
    if let Some(death) = death {
        io.die(death);
    }
    let mut model = model;
    let mut shop = match Shop::try_open(io, config) {
        Ok(shop) => shop,
        Err((error, io)) => {
            assert!(io.is_dead(), "{error}");
            return Crashed {
                disk: io.disk().clone(),
                model,
                acknowledged: PhysicalOffset(0),
                flushed: PhysicalOffset(0),
                effects: io.effects(),
            };
        }
    };
    for action in history {
        model.perform(&mut shop, action);
        if shop.io.is_dead() {
            break;
        }
    }
    let disk = shop.io.disk().clone();
    Crashed {
        disk,
        model,
        acknowledged: shop.store.visible(),
        flushed: shop.store.flushed(),
        effects: shop.io.effects(),
    }
}
