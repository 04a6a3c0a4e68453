//! Whether a group got every message of a queue once, in order and unchanged.

use super::payload::Payload;
use crate::protocol::message::{Record, StoredMessage};
use std::collections::{BTreeMap, BTreeSet};

/// Findings that are kept as text; the others are counted.
const FINDINGS_MAX: usize = 20;

/// What is wrong, as lines for the user.
#[derive(Debug, Default)]
pub struct Findings {
    pub lines: Vec<String>,
    pub count: u64,
}

impl Findings {
    pub fn merge(&mut self, others: Self) {
        self.count += others.count;
        self.lines.extend(others.lines);
        self.lines.truncate(FINDINGS_MAX);
    }

    pub fn add(&mut self, line: impl FnOnce() -> String) {
        self.count += 1;
        if self.lines.len() < FINDINGS_MAX {
            self.lines.push(line());
        }
    }
}

/// One queue as one group sees it.
#[derive(Debug)]
pub struct QueueReader {
    topic: String,
    queue: u32,
    /// Offset that the next message must have.
    pub next: u64,
    producers: BTreeMap<u32, Numbers>,
    /// Messages behind a later one of the same producer: a broker may do that to sends in flight at once.
    pub out_of_order: u64,
}

/// Which messages of a producer came, counted within the queue.
#[derive(Debug, Default)]
struct Numbers {
    /// All below it came.
    low: u64,
    /// Those above it that came.
    above: BTreeSet<u64>,
}

impl Numbers {
    /// Whether it is new, and whether a later one was here before.
    fn take(&mut self, number: u64) -> (bool, bool) {
        let is_late = self.above.last().is_some_and(|last| *last > number);
        let is_new = number >= self.low && self.above.insert(number);
        while self.above.remove(&self.low) {
            self.low += 1;
        }
        (is_new, is_late)
    }
}

impl QueueReader {
    /// From offset 0 of a new topic.
    pub fn new(topic: &str, queue: u32) -> Self {
        Self {
            topic: topic.to_owned(),
            queue,
            next: 0,
            producers: BTreeMap::new(),
            out_of_order: 0,
        }
    }

    /// Takes the body of an answer; `seen` gets every message that is what was sent. The next pull starts at `next`.
    pub fn take(
        &mut self,
        body: &[u8],
        next_begin: u64,
        findings: &mut Findings,
        mut seen: impl FnMut(Payload),
    ) {
        let (topic, queue) = (self.topic.clone(), self.queue);
        let mut rest = body;
        while !rest.is_empty() {
            let message = match StoredMessage::decode(rest) {
                Ok(Record::Message(message)) => message,
                Ok(Record::Blank(_)) => {
                    findings.add(|| format!("{topic} queue {queue}: a blank among messages"));
                    break;
                }
                Err(error) => {
                    findings.add(|| format!("{topic} queue {queue}: no message: {error}"));
                    break;
                }
            };
            rest = &rest[message.bytes.len()..];
            if let Some(payload) = self.check(&message, findings) {
                seen(payload);
            }
        }
        let expected = self.next;
        if next_begin != expected {
            findings.add(|| {
                format!("{topic} queue {queue}: the answer ends at offset {expected} and goes on at {next_begin}")
            });
            self.next = next_begin.max(expected);
        }
    }

    fn check(&mut self, message: &StoredMessage<'_>, findings: &mut Findings) -> Option<Payload> {
        let (topic, queue) = (&self.topic, self.queue);
        let (expected, offset) = (self.next, message.queue_offset.0);
        if (message.topic, message.queue_id) != (topic.as_str(), queue as i32) {
            let (other, id) = (message.topic, message.queue_id);
            findings.add(|| format!("{topic} queue {queue}: a message of {other} queue {id}"));
            return None;
        }
        if offset != expected {
            findings
                .add(|| format!("{topic} queue {queue}: offset {offset} where {expected} follows"));
        }
        self.next = expected.max(offset.saturating_add(1));
        if let Err(error) = message.check_body_crc() {
            findings.add(|| format!("{topic} queue {queue} offset {offset}: {error}"));
            return None;
        }
        let Some(payload) = Payload::read(message.body) else {
            findings.add(|| {
                format!("{topic} queue {queue} offset {offset}: not the bytes that were sent")
            });
            return None;
        };
        let Payload {
            producer, number, ..
        } = payload;
        let numbers = self.producers.entry(producer).or_default();
        let (is_new, is_late) = numbers.take(number);
        if !is_new || payload.queue != queue {
            findings.add(|| {
                format!("{topic} queue {queue} offset {offset}: message {number} of producer {producer} once more")
            });
            return None;
        }
        self.out_of_order += u64::from(is_late);
        Some(payload)
    }
}
