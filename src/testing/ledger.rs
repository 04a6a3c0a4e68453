//! What clients were told, and whether the broker kept its word: one checker for simulated and for real runs.
//!
//! A run is a list of [`Event`]s in the order in which the clients learnt them. [`check`] is a pure function over it. The
//! names of the findings follow those of Jepsen's Kafka workload.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One message that a producer tried to send once. A second try of the same text is another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    /// A connection of a producer.
    pub producer: u32,
    /// Rises with every message of that connection.
    pub sequence: u64,
}

/// A queue offset. The run numbers its queues, over topics and shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub queue: u32,
    pub offset: u64,
}

/// What the broker promised for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// An acknowledged message survives the death of the process; a power cut may take the last `window_ms` of them.
    Written { window_ms: u64 },
    /// An acknowledged or delivered message survives a power cut as well.
    Flushed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process died, or stopped in order; the kernel lives on.
    Process,
    /// What was not flushed is gone, in any order.
    Power,
}

/// A message as it came back: `None` where the bytes are not those of any value (checksum, length, text).
pub type Seen = Option<Value>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Noted before the bytes leave: from here on the message may be there.
    Sent {
        value: Value,
        queue: u32,
    },
    /// Noted only while the broker certainly had power: what arrives later tells nothing.
    Acknowledged {
        value: Value,
        place: Place,
        at_ms: u64,
    },
    /// The broker said that it did not take the message.
    Refused {
        value: Value,
    },
    /// Handed to a consumer that reads a queue without a filter. A `position` is one sequence of pulls, each from where
    /// the last ended; after a restart or a seek a consumer has another one.
    Delivered {
        position: u64,
        place: Place,
        seen: Seen,
        at_ms: u64,
    },
    /// The broker confirmed it, and the promised time for writing it has gone by.
    Committed {
        queue: u32,
        offset: u64,
    },
    Crashed {
        how: Crash,
        at_ms: u64,
    },
    /// The whole of a queue after a restart, from its first offset to its end.
    ReadBack {
        queue: u32,
        messages: Vec<(u64, Seen)>,
        /// What the broker says of the group, -1 for nothing.
        committed: i64,
        at_ms: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Acknowledged, and not there any more.
    LostWrite(Value, Place),
    /// Delivered, and not there any more.
    TakenBack(Value, Place),
    /// Nobody sent it.
    Phantom(Place),
    /// The bytes are not those that were sent.
    Altered(Place),
    /// There though the broker refused it.
    FalselyRefused(Value, Place),
    /// One message at two offsets.
    Duplicate(Value, Place, Place),
    /// One offset with two messages.
    InconsistentOffset(Place, Value, Value),
    /// Offsets of one producer and queue do not rise with what it sent.
    Order(Value, Place),
    /// A consumer got an offset again, or an earlier one.
    NonMonotonicPoll(Place),
    /// A consumer was led past an offset.
    PollSkip(Place),
    /// No message at an offset between two others.
    Gap(Place),
    /// A committed offset fell behind what was confirmed as written.
    CommitLost {
        queue: u32,
        confirmed: u64,
        found: i64,
    },
    /// A committed offset points beyond the end: the next messages would be skipped.
    OffsetAhead { queue: u32, end: u64, found: i64 },
    /// Acknowledged for another queue than it was sent to.
    WrongQueue(Value, Place),
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

/// All findings of a run, in the order in which they came up.
pub fn check(durability: Durability, history: &[Event]) -> Vec<Finding> {
    let mut ledger = Ledger::new(durability);
    for event in history {
        ledger.note(event);
    }
    ledger.findings
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    Acknowledged,
    /// A consumer had it, or it was read back after a restart.
    Seen,
    /// A power cut may have taken it.
    Unsure,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    value: Value,
    how: Knowledge,
    /// When it first was known.
    since_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Refused,
    At(Place),
}

/// The checker's state after some events.
#[derive(Debug)]
pub struct Ledger {
    durability: Durability,
    fates: BTreeMap<Value, (u32, Fate)>,
    known: BTreeMap<Place, Known>,
    /// Offsets of a producer in a queue, by its sequence.
    order: BTreeMap<(u32, u32), BTreeMap<u64, u64>>,
    positions: BTreeMap<u64, Place>,
    confirmed: BTreeMap<u32, u64>,
    findings: Vec<Finding>,
}

impl Ledger {
    pub fn new(durability: Durability) -> Self {
        Self {
            durability,
            fates: BTreeMap::new(),
            known: BTreeMap::new(),
            order: BTreeMap::new(),
            positions: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            findings: Vec::new(),
        }
    }

    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// How many messages are certainly there.
    pub fn certain(&self) -> usize {
        self.known.len()
    }

    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Sent { value, queue } => {
                self.fates.insert(*value, (*queue, Fate::Open));
            }
            Event::Acknowledged {
                value,
                place,
                at_ms,
            } => {
                self.learn(*value, *place, Knowledge::Acknowledged, *at_ms);
            }
            Event::Refused { value } => self.refuse(*value),
            Event::Delivered {
                position,
                place,
                seen,
                at_ms,
            } => {
                self.follow(*position, *place);
                self.see(*place, *seen, *at_ms);
            }
            Event::Committed { queue, offset } => {
                let confirmed = self.confirmed.entry(*queue).or_default();
                *confirmed = (*confirmed).max(*offset);
            }
            Event::Crashed { how, at_ms } => self.crash(*how, *at_ms),
            Event::ReadBack {
                queue,
                messages,
                committed,
                at_ms,
            } => self.read_back(*queue, messages, *committed, *at_ms),
        }
    }

    fn refuse(&mut self, value: Value) {
        match self.fates.get_mut(&value) {
            Some((_, Fate::At(place))) => {
                self.findings.push(Finding::FalselyRefused(value, *place));
            }
            Some((_, fate)) => *fate = Fate::Refused,
            None => {}
        }
    }

    fn follow(&mut self, position: u64, place: Place) {
        let before = self.positions.insert(position, place);
        let Some(before) = before.filter(|before| before.queue == place.queue) else {
            return;
        };
        if place.offset <= before.offset {
            self.findings.push(Finding::NonMonotonicPoll(place));
        } else if place.offset > before.offset + 1 {
            self.findings.push(Finding::PollSkip(place));
        }
    }

    fn see(&mut self, place: Place, seen: Seen, at_ms: u64) {
        match seen {
            Some(value) => self.learn(value, place, Knowledge::Seen, at_ms),
            None => self.findings.push(Finding::Altered(place)),
        }
    }

    /// Takes in that a value stands at a place.
    fn learn(&mut self, value: Value, place: Place, how: Knowledge, since_ms: u64) {
        let Some((queue, fate)) = self.fates.get_mut(&value) else {
            self.findings.push(Finding::Phantom(place));
            return;
        };
        if *queue != place.queue {
            self.findings.push(Finding::WrongQueue(value, place));
        }
        match *fate {
            Fate::Refused => self.findings.push(Finding::FalselyRefused(value, place)),
            Fate::At(before) if before != place => {
                self.findings.push(Finding::Duplicate(value, before, place));
            }
            Fate::Open | Fate::At(_) => {}
        }
        *fate = Fate::At(place);
        match self.known.entry(place) {
            Entry::Vacant(entry) => {
                entry.insert(Known {
                    value,
                    how,
                    since_ms,
                });
            }
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                if known.value != value {
                    let finding = Finding::InconsistentOffset(place, known.value, value);
                    self.findings.push(finding);
                }
                known.value = value;
                // What a consumer had stays so, whatever the producer hears afterwards.
                if known.how != Knowledge::Seen {
                    known.how = how;
                }
            }
        }
        self.check_order(value, place);
    }

    fn check_order(&mut self, value: Value, place: Place) {
        let offsets = self.order.entry((value.producer, place.queue)).or_default();
        let is_after = offsets
            .range(..value.sequence)
            .next_back()
            .is_none_or(|(_, offset)| *offset < place.offset);
        let is_before = offsets
            .range(value.sequence + 1..)
            .next()
            .is_none_or(|(_, offset)| *offset > place.offset);
        offsets.insert(value.sequence, place.offset);
        if !(is_after && is_before) {
            self.findings.push(Finding::Order(value, place));
        }
    }

    /// After a power cut only what was promised to be flushed is certain.
    fn crash(&mut self, how: Crash, at_ms: u64) {
        self.positions.clear();
        let Durability::Written { window_ms } = self.durability else {
            return;
        };
        if how == Crash::Process {
            return;
        }
        for known in self.known.values_mut() {
            if known.since_ms + window_ms > at_ms {
                known.how = Knowledge::Unsure;
            }
        }
    }

    fn read_back(&mut self, queue: u32, messages: &[(u64, Seen)], committed: i64, at_ms: u64) {
        let place = |offset| Place { queue, offset };
        for pair in messages.windows(2) {
            if pair[1].0 != pair[0].0 + 1 {
                self.findings.push(Finding::Gap(place(pair[0].0 + 1)));
            }
        }
        let present: BTreeSet<u64> = messages.iter().map(|(offset, _)| *offset).collect();
        // Retention takes from the front.
        let first = messages.first().map_or(0, |(offset, _)| *offset);
        let end = messages.last().map_or(0, |(offset, _)| offset + 1);
        let is_cut = |how| how == Knowledge::Unsure;
        let range = place(0)..=place(u64::MAX);
        let gone: Vec<(Place, Known)> = self
            .known
            .range(range)
            .filter(|(at, known)| !present.contains(&at.offset) || is_cut(known.how))
            .map(|(at, known)| (*at, *known))
            .collect();
        for (at, known) in gone {
            match known.how {
                Knowledge::Unsure => {}
                _ if at.offset < first => {}
                Knowledge::Acknowledged => {
                    self.findings.push(Finding::LostWrite(known.value, at));
                }
                Knowledge::Seen => self.findings.push(Finding::TakenBack(known.value, at)),
            }
            // Reported once; an offset that a power cut freed may name another message.
            self.forget(at, known.value);
        }
        for (offset, seen) in messages {
            self.see(place(*offset), *seen, at_ms);
        }
        self.check_committed(queue, end, committed);
    }

    fn forget(&mut self, at: Place, value: Value) {
        self.known.remove(&at);
        if let Some((_, fate)) = self.fates.get_mut(&value) {
            *fate = Fate::Open;
        }
        if let Some(offsets) = self.order.get_mut(&(value.producer, at.queue)) {
            offsets.remove(&value.sequence);
        }
    }

    fn check_committed(&mut self, queue: u32, end: u64, found: i64) {
        if found > end as i64 {
            let finding = Finding::OffsetAhead { queue, end, found };
            self.findings.push(finding);
        }
        // A power cut that took messages takes the commits beyond them too.
        let confirmed = self.confirmed.get(&queue).map_or(0, |at| (*at).min(end));
        if confirmed > 0 && found < confirmed as i64 {
            self.findings.push(Finding::CommitLost {
                queue,
                confirmed,
                found,
            });
        }
        self.confirmed.insert(queue, found.max(0) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q: u32 = 3;
    const A: Value = value(0);
    const B: Value = value(1);
    const C: Value = value(2);

    const fn value(sequence: u64) -> Value {
        Value {
            producer: 7,
            sequence,
        }
    }

    const fn place(offset: u64) -> Place {
        Place { queue: Q, offset }
    }

    fn sent() -> Vec<Event> {
        let of = |value| Event::Sent { value, queue: Q };
        vec![of(A), of(B), of(C)]
    }

    fn acknowledged(value: Value, offset: u64, at_ms: u64) -> Event {
        Event::Acknowledged {
            value,
            place: place(offset),
            at_ms,
        }
    }

    fn delivered(position: u64, offset: u64, seen: Seen) -> Event {
        Event::Delivered {
            position,
            place: place(offset),
            seen,
            at_ms: 120,
        }
    }

    fn read_back(values: &[Value], committed: i64) -> Event {
        let messages = (0..).zip(values.iter().map(|value| Some(*value)));
        Event::ReadBack {
            queue: Q,
            messages: messages.collect(),
            committed,
            at_ms: 200,
        }
    }

    fn crash(how: Crash, at_ms: u64) -> Event {
        Event::Crashed { how, at_ms }
    }

    fn findings(durability: Durability, more: &[Event]) -> Vec<Finding> {
        check(durability, &[sent(), more.to_vec()].concat())
    }

    const WRITTEN: Durability = Durability::Written { window_ms: 100 };

    #[test]
    fn a_kept_word_has_no_findings() {
        let run = [
            acknowledged(A, 0, 10),
            delivered(1, 0, Some(A)),
            // The answer comes after the delivery.
            delivered(1, 1, Some(B)),
            acknowledged(B, 1, 20),
            Event::Committed {
                queue: Q,
                offset: 1,
            },
            crash(Crash::Process, 30),
            // Without an answer, and there.
            read_back(&[A, B, C], 2),
            delivered(2, 0, Some(A)),
            crash(Crash::Power, 40),
            read_back(&[A, B, C], 2),
        ];
        assert_eq!(findings(Durability::Flushed, &run), []);
        // Or not there.
        let run = [acknowledged(A, 0, 10), read_back(&[A], -1)];
        assert_eq!(findings(Durability::Flushed, &run), []);
    }

    #[test]
    fn what_is_gone_is_told_once() {
        let run = [
            acknowledged(A, 0, 10),
            delivered(1, 1, Some(B)),
            crash(Crash::Process, 20),
            read_back(&[], -1),
            read_back(&[], -1),
        ];
        let expected = [
            Finding::LostWrite(A, place(0)),
            Finding::TakenBack(B, place(1)),
        ];
        assert_eq!(findings(WRITTEN, &run), expected);
        assert_eq!(findings(Durability::Flushed, &run), expected);
    }

    #[test]
    fn a_power_cut_takes_no_more_than_the_window() {
        let run = |at_ms| {
            [
                acknowledged(A, 0, 50),
                acknowledged(B, 1, at_ms),
                delivered(1, 1, Some(B)),
                crash(Crash::Power, 200),
                // Its offset names another one now, and that is in order.
                read_back(&[A, C], -1),
            ]
        };
        assert_eq!(findings(WRITTEN, &run(150)), []);
        let expected = Finding::InconsistentOffset(place(1), B, C);
        let found = findings(Durability::Flushed, &run(150));
        assert!(found.contains(&expected), "{found:?}");
        let lost = [
            acknowledged(A, 0, 50),
            crash(Crash::Power, 200),
            read_back(&[], -1),
        ];
        assert_eq!(
            findings(WRITTEN, &lost),
            [Finding::LostWrite(A, place(0))],
            "older than the window"
        );
    }

    #[test]
    fn wrong_contents_are_found() {
        let stranger = Value {
            producer: 9,
            sequence: 0,
        };
        let cases: [(&[Event], Finding); 9] = [
            (
                &[delivered(1, 0, Some(stranger))],
                Finding::Phantom(place(0)),
            ),
            (&[delivered(1, 0, None)], Finding::Altered(place(0))),
            (
                &[Event::Refused { value: A }, delivered(1, 0, Some(A))],
                Finding::FalselyRefused(A, place(0)),
            ),
            (
                &[delivered(1, 0, Some(A)), Event::Refused { value: A }],
                Finding::FalselyRefused(A, place(0)),
            ),
            (
                &[delivered(1, 0, Some(A)), delivered(1, 1, Some(A))],
                Finding::Duplicate(A, place(0), place(1)),
            ),
            (
                &[acknowledged(A, 0, 1), delivered(1, 0, Some(B))],
                Finding::InconsistentOffset(place(0), A, B),
            ),
            (
                &[acknowledged(B, 0, 1), acknowledged(A, 1, 1)],
                Finding::Order(A, place(1)),
            ),
            (
                &[delivered(1, 0, Some(A)), delivered(1, 0, Some(A))],
                Finding::NonMonotonicPoll(place(0)),
            ),
            (
                &[delivered(1, 0, Some(A)), delivered(1, 2, Some(C))],
                Finding::PollSkip(place(2)),
            ),
        ];
        for (run, expected) in cases {
            let found = findings(Durability::Flushed, run);
            assert!(found.contains(&expected), "{found:?}");
        }
        let elsewhere = Place {
            queue: Q + 1,
            offset: 0,
        };
        let run = [Event::Acknowledged {
            value: A,
            place: elsewhere,
            at_ms: 1,
        }];
        let found = findings(Durability::Flushed, &run);
        assert_eq!(found, [Finding::WrongQueue(A, elsewhere)]);
    }

    #[test]
    fn gaps_and_wrong_commits_are_found() {
        let gap = Event::ReadBack {
            queue: Q,
            messages: vec![(0, Some(A)), (2, Some(C))],
            committed: -1,
            at_ms: 1,
        };
        assert_eq!(findings(WRITTEN, &[gap]), [Finding::Gap(place(1))]);
        let ahead = [read_back(&[A], 2)];
        let expected = Finding::OffsetAhead {
            queue: Q,
            end: 1,
            found: 2,
        };
        assert_eq!(findings(WRITTEN, &ahead), [expected]);
        let confirmed = Event::Committed {
            queue: Q,
            offset: 2,
        };
        let lost = [confirmed, read_back(&[A, B], 1)];
        let expected = Finding::CommitLost {
            queue: Q,
            confirmed: 2,
            found: 1,
        };
        assert_eq!(findings(WRITTEN, &lost), [expected]);
    }

    #[test]
    fn retention_takes_from_the_front() {
        let run = [
            acknowledged(A, 0, 1),
            acknowledged(B, 1, 1),
            Event::ReadBack {
                queue: Q,
                messages: vec![(1, Some(B))],
                committed: -1,
                at_ms: 1,
            },
        ];
        assert_eq!(findings(Durability::Flushed, &run), []);
    }
}
