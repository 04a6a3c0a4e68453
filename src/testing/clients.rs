//! Simulated clients: producers, consumers with held pulls and filters, commits, restarts; what they learn goes into
//! the ledger.

use super::host::Host;
use super::ledger::{Event, Ledger, Place, Seen, Value};
use crate::io::Socket;
use crate::protocol::command::{Command, Encoding, Scratch};
use crate::protocol::frame::{Split, split};
use crate::protocol::message::{Record, StoredMessage};
use crate::protocol::response::Request;
use bytes::BytesMut;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub const TOPIC: &str = "T";
pub const GROUP: &str = "G";
pub const QUEUES: u32 = 3;
const TAGS: [&str; 3] = ["A", "B", "C"];
/// Sends of a producer that wait for their answers.
const PIPELINE: usize = 5;
const HOLD_MS: &str = "15000";

/// The text of a message, all of which follows from its value.
fn body(value: Value) -> Vec<u8> {
    let mixed = value.sequence.wrapping_mul(2_654_435_761) ^ u64::from(value.producer) << 7;
    let length = (mixed >> 5) % 700;
    let letter = char::from(b'a' + (mixed % 26) as u8);
    let filler = letter.to_string().repeat(length as usize);
    format!("{} {} {filler}", value.producer, value.sequence).into_bytes()
}

fn seen(bytes: &[u8]) -> Seen {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut words = text.split(' ');
    let producer = words.next()?.parse().ok()?;
    let sequence = words.next()?.parse().ok()?;
    let value = Value { producer, sequence };
    (body(value) == bytes).then_some(value)
}

fn tag(value: Value) -> usize {
    (value.sequence % TAGS.len() as u64) as usize
}

/// A frame that a client got.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub opaque: i32,
    remark: String,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    pub fn number(&self, name: &str) -> Option<i64> {
        self.fields.get(name)?.parse().ok()
    }

    /// Offsets and values of the records; `None` where the bytes are no record of a whole message.
    pub fn messages(&self) -> Vec<(u64, Seen)> {
        let mut rest = &self.body[..];
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let Ok(Record::Message(message)) = StoredMessage::decode(rest) else {
                messages.push((u64::MAX, None));
                break;
            };
            messages.push((message.queue_offset.0, seen(message.body)));
            rest = &rest[message.bytes.len()..];
        }
        messages
    }
}

pub fn request(code: i32, opaque: i32, fields: &[(&str, &str)], body: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    Request {
        code,
        opaque,
        one_way: false,
        encoding: Encoding::Json,
        fields,
        body,
    }
    .encode(&mut out);
    out
}

/// Takes the next answer off the front of what was received; requests of the broker are skipped.
pub fn take_answer(received: &mut Vec<u8>) -> Result<Option<Answer>, String> {
    loop {
        let (answer, bytes) = match split(received).map_err(|e| format!("a reply: {e}"))? {
            Split::Incomplete { .. } => return Ok(None),
            Split::Frame(frame) => {
                let mut scratch = Scratch::default();
                let command = Command::decode(&frame, &mut scratch);
                let command = command.map_err(|e| format!("the header of a reply: {e}"))?;
                let fields = command.fields.iter();
                let fields = fields.map(|(n, v)| (n.to_owned(), v.to_owned()));
                let answer = Answer {
                    code: command.code,
                    opaque: command.opaque,
                    remark: command.remark.unwrap_or_default().to_owned(),
                    fields: fields.collect(),
                    body: frame.body.to_vec(),
                };
                (command.is_response().then_some(answer), frame.bytes)
            }
        };
        received.drain(..bytes);
        if answer.is_some() {
            return Ok(answer);
        }
    }
}

/// A pull of [`TOPIC`] as consumers send it.
pub fn pull_fields<'a>(
    queue: &'a str,
    offset: &'a str,
    hold: bool,
    tags: &'a str,
) -> [(&'static str, &'a str); 10] {
    [
        ("consumerGroup", GROUP),
        ("topic", TOPIC),
        ("queueId", queue),
        ("queueOffset", offset),
        ("maxMsgNums", "32"),
        ("sysFlag", if hold { "6" } else { "4" }),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", if hold { HOLD_MS } else { "0" }),
        ("subscription", tags),
        ("subVersion", "0"),
    ]
}

#[derive(Debug)]
enum Asked {
    Send {
        queue: u32,
        values: Vec<Value>,
        counts: bool,
    },
    Offset,
    Pull,
    Commit {
        offset: u64,
    },
}

#[derive(Debug)]
enum Role {
    Producer {
        number: u32,
        sequence: u64,
    },
    /// Reads a queue from the committed offset and commits.
    Group {
        queue: u32,
        position: u64,
        offset: Option<u64>,
        committed: u64,
    },
    /// Reads what has one tag from the start of a queue.
    Filtered {
        queue: u32,
        tag: usize,
        offset: u64,
        got: BTreeSet<u64>,
    },
}

#[derive(Debug)]
struct Client {
    role: Role,
    socket: Socket,
    received: Vec<u8>,
    opaque: i32,
    waiting: BTreeMap<i32, Asked>,
    act_us: u64,
}

/// How clients misbehave, for a whole run; chances in ten thousand per action.
#[derive(Clone, Copy, Debug)]
pub struct ClientFaults {
    pub reset: u32,
    pub end: u32,
    pub stall: u32,
    /// Until a commit counts as kept, in milliseconds; `None`: it can be lost.
    pub commit_ms: Option<u64>,
    /// Most time between two actions, in microseconds.
    pub pause_us: u64,
}

/// All clients of a run, and what they know.
#[derive(Debug)]
pub struct Clients {
    pub ledger: Ledger,
    pub findings: Vec<String>,
    faults: ClientFaults,
    list: Vec<Client>,
    /// What consumers with filters had when their machine died, until it was checked.
    past: Vec<Role>,
    producers: u32,
    positions: u64,
    commits: VecDeque<(u64, u32, u64)>,
    /// They send, and misbehave.
    pub is_busy: bool,
    pub acknowledged: u64,
    pub delivered: u64,
}

impl Clients {
    pub fn new(ledger: Ledger, faults: ClientFaults) -> Self {
        Self {
            ledger,
            findings: Vec::new(),
            faults,
            list: Vec::new(),
            past: Vec::new(),
            producers: 0,
            positions: 0,
            commits: VecDeque::new(),
            is_busy: true,
            acknowledged: 0,
            delivered: 0,
        }
    }

    /// The machine that they talk to died. `is_kept`: what they had must still be there.
    pub fn lose(&mut self, is_kept: bool) {
        let list = std::mem::take(&mut self.list);
        let roles = list.into_iter().map(|client| client.role);
        self.past = roles.filter(|_| is_kept).collect();
        self.commits.clear();
    }

    /// All start anew.
    pub fn restart(&mut self, host: &mut Host) {
        self.past.clear();
        for _ in 0..2 {
            let role = self.new_producer();
            self.join(role, host);
        }
        for queue in 0..QUEUES {
            let role = self.new_group_consumer(queue);
            self.join(role, host);
        }
        for (tag, queue) in [(0, 0), (1, 0), (2, 1)] {
            let role = Role::Filtered {
                queue,
                tag,
                offset: 0,
                got: BTreeSet::new(),
            };
            self.join(role, host);
        }
    }

    fn new_producer(&mut self) -> Role {
        self.producers += 1;
        Role::Producer {
            number: self.producers,
            sequence: 0,
        }
    }

    fn new_group_consumer(&mut self, queue: u32) -> Role {
        Role::Group {
            queue,
            position: self.next_position(),
            offset: None,
            committed: 0,
        }
    }

    fn next_position(&mut self) -> u64 {
        self.positions += 1;
        self.positions
    }

    fn join(&mut self, role: Role, host: &mut Host) {
        self.list.push(Client {
            role,
            socket: host.network.connect(),
            received: Vec::new(),
            opaque: 0,
            waiting: BTreeMap::new(),
            act_us: host.now_us(),
        });
    }

    /// One turn of all clients: they read, learn and act.
    pub fn turn(&mut self, host: &mut Host) {
        let now_ms = host.now_us() / 1000;
        while let Some((due_ms, queue, offset)) = self.commits.front().copied()
            && due_ms <= now_ms
        {
            self.commits.pop_front();
            self.ledger.note(&Event::Committed { queue, offset });
        }
        let mut list = std::mem::take(&mut self.list);
        for client in &mut list {
            self.listen(client, host);
            if host.network.is_over(client.socket) {
                self.come_back(client, host);
            }
            if client.act_us <= host.now_us() {
                let pause_us = host.random.below(self.faults.pause_us);
                client.act_us = host.now_us() + 1 + pause_us;
                self.act(client, host);
            }
        }
        let next = list.iter().map(|client| client.act_us).min();
        host.clients_due_us = next.unwrap_or(u64::MAX);
        self.list = list;
    }

    /// Whether everything that was asked for is answered, and every consumer waits at the end of its queue.
    pub fn are_at_rest(&self, end: impl Fn(u32) -> u64) -> bool {
        self.list.iter().all(|client| match &client.role {
            Role::Producer { .. } => client.waiting.is_empty(),
            Role::Group { queue, offset, .. } => *offset == Some(end(*queue)),
            Role::Filtered { queue, offset, .. } => {
                // The last messages may be of other tags: the hold has examined them.
                *offset <= end(*queue) && client.waiting.len() == 1
            }
        })
    }

    pub fn consumers(&self) -> usize {
        let is_consumer = |client: &&Client| !matches!(client.role, Role::Producer { .. });
        self.list.iter().filter(is_consumer).count()
    }

    /// Why they are not at rest.
    pub fn describe(&self) -> String {
        let list: Vec<_> = self.list.iter().map(|c| (&c.role, &c.waiting)).collect();
        format!("the clients do not come to rest: {list:?}")
    }

    /// What the consumers with filters have not got of a queue that was read in whole.
    pub fn check_filtered(&mut self, queue: u32, messages: &[(u64, Seen)], is_at_rest: bool) {
        let roles = self.list.iter().map(|client| &client.role);
        for role in roles.chain(&self.past) {
            let Role::Filtered {
                queue: its,
                tag: wanted,
                offset,
                got,
            } = role
            else {
                continue;
            };
            let is_due = |at: u64| is_at_rest || at < *offset;
            let missed = messages.iter().find(|(at, seen)| {
                seen.is_some_and(|value| tag(value) == *wanted) && is_due(*at) && !got.contains(at)
            });
            if let Some((at, _)) = missed.filter(|_| *its == queue) {
                let tag = TAGS[*wanted];
                self.findings.push(format!(
                    "the consumer of tag {tag} in queue {queue} was led past offset {at}"
                ));
            }
        }
    }

    fn come_back(&mut self, client: &mut Client, host: &mut Host) {
        client.socket = host.network.connect();
        client.received.clear();
        client.waiting.clear();
        let role = match client.role {
            Role::Producer { .. } => Some(self.new_producer()),
            Role::Group { queue, .. } => Some(self.new_group_consumer(queue)),
            Role::Filtered { .. } => None,
        };
        client.role = role.unwrap_or(std::mem::replace(
            &mut client.role,
            Role::Producer {
                number: 0,
                sequence: 0,
            },
        ));
    }

    fn listen(&mut self, client: &mut Client, host: &mut Host) {
        let bytes = host.network.read(client.socket);
        host.trace.bytes(&bytes);
        client.received.extend_from_slice(&bytes);
        loop {
            match take_answer(&mut client.received) {
                Ok(Some(answer)) => self.learn(client, &answer, host.now_us() / 1000),
                Ok(None) => return,
                Err(reason) => {
                    self.findings.push(reason);
                    return;
                }
            }
        }
    }

    fn learn(&mut self, client: &mut Client, answer: &Answer, now_ms: u64) {
        let Some(asked) = client.waiting.remove(&answer.opaque) else {
            let text = format!("an answer nobody waits for: {answer:?}");
            return self.findings.push(text);
        };
        match asked {
            Asked::Send {
                queue,
                values,
                counts,
            } => {
                self.learn_send(answer, queue, values, counts, now_ms);
            }
            Asked::Offset => {
                if let Role::Group {
                    offset, committed, ..
                } = &mut client.role
                    && [0, 22].contains(&answer.code)
                {
                    let start = answer.number("offset").unwrap_or(0).max(0) as u64;
                    (*offset, *committed) = (Some(start), start);
                }
            }
            Asked::Pull => self.learn_pull(&mut client.role, answer, now_ms),
            Asked::Commit { offset } => {
                if let Role::Group {
                    queue, committed, ..
                } = &mut client.role
                    && answer.code == 0
                {
                    *committed = offset;
                    let queue = *queue;
                    let due_ms = self.faults.commit_ms.map(|ms| (now_ms + ms, queue, offset));
                    self.commits.extend(due_ms);
                }
            }
        }
    }

    fn learn_send(
        &mut self,
        answer: &Answer,
        queue: u32,
        values: Vec<Value>,
        counts: bool,
        at_ms: u64,
    ) {
        let is_read_only = answer.remark.contains("read-only until restart");
        for (index, value) in (0..).zip(values) {
            match answer.code {
                0 => {
                    let Some(first) = answer.number("queueOffset") else {
                        self.findings.push(format!("a send's answer: {answer:?}"));
                        return;
                    };
                    let offset = first as u64 + index;
                    if counts {
                        self.acknowledged += 1;
                        self.ledger.note(&Event::Acknowledged {
                            value,
                            place: Place { queue, offset },
                            at_ms,
                        });
                    }
                }
                // The disk failed or is late: it may be there.
                1 | 10 => {}
                14 if is_read_only => {}
                2 | 14 => self.ledger.note(&Event::Refused { value }),
                _ => self.findings.push(format!("a send's answer: {answer:?}")),
            }
        }
    }

    fn learn_pull(&mut self, role: &mut Role, answer: &Answer, at_ms: u64) {
        let next = answer.number("nextBeginOffset").map(|next| next as u64);
        match (answer.code, next) {
            (0 | 19 | 20 | 21, Some(_)) => {}
            // No topic yet, a read that failed, too busy.
            (1 | 2 | 14 | 17, _) => return,
            _ => return self.findings.push(format!("a pull's answer: {answer:?}")),
        }
        let moved = (answer.code == 21).then(|| self.next_position());
        let next = next.unwrap_or_default();
        let messages = answer.messages();
        self.delivered += messages.len() as u64;
        for (at, seen) in messages {
            let (queue, position) = match role {
                Role::Producer { .. } => return,
                Role::Group {
                    queue, position, ..
                } => (*queue, *position),
                Role::Filtered {
                    queue,
                    tag: wanted,
                    got,
                    ..
                } => {
                    got.insert(at);
                    if seen.is_none_or(|value| tag(value) != *wanted) {
                        let text = format!("a filter let {seen:?} at {at} pass, wanted {wanted}");
                        self.findings.push(text);
                    }
                    (*queue, self.next_position())
                }
            };
            let place = Place { queue, offset: at };
            self.ledger.note(&Event::Delivered {
                position,
                place,
                seen,
                at_ms,
            });
        }
        match role {
            Role::Producer { .. } => {}
            Role::Group {
                offset, position, ..
            } => {
                *offset = Some(next);
                *position = moved.unwrap_or(*position);
            }
            Role::Filtered { offset, .. } => *offset = next,
        }
    }

    fn act(&mut self, client: &mut Client, host: &mut Host) {
        if self.is_busy {
            if host.random.chance(self.faults.reset) {
                return host.network.reset(client.socket);
            }
            if host.random.chance(self.faults.end) {
                return host.network.end(client.socket);
            }
            if host.random.chance(self.faults.stall) {
                let until_us = host.now_us() + host.random.below(2_000_000);
                host.network.stall(client.socket, until_us);
            }
        }
        match &mut client.role {
            Role::Producer { .. } => {
                if self.is_busy && client.waiting.len() < PIPELINE {
                    self.send(client, host);
                }
            }
            Role::Group { .. } | Role::Filtered { .. } if !client.waiting.is_empty() => {}
            Role::Group {
                queue,
                offset,
                committed,
                ..
            } => {
                let queue = queue.to_string();
                let group = [
                    ("consumerGroup", GROUP),
                    ("topic", TOPIC),
                    ("queueId", &*queue),
                ];
                let Some(offset) = *offset else {
                    return ask(client, host, 14, &group, &[], Asked::Offset);
                };
                let text = offset.to_string();
                if offset > *committed && (host.random.below(3) == 0 || !self.is_busy) {
                    let fields = [&group[..], &[("commitOffset", &*text)]].concat();
                    return ask(client, host, 15, &fields, &[], Asked::Commit { offset });
                }
                let fields = pull_fields(&queue, &text, true, "*");
                ask(client, host, 11, &fields, &[], Asked::Pull);
            }
            Role::Filtered {
                queue, tag, offset, ..
            } => {
                let (queue, offset, tag) = (queue.to_string(), offset.to_string(), TAGS[*tag]);
                let fields = pull_fields(&queue, &offset, true, tag);
                ask(client, host, 11, &fields, &[], Asked::Pull);
            }
        }
    }

    fn send(&mut self, client: &mut Client, host: &mut Host) {
        let Role::Producer { number, sequence } = &mut client.role else {
            return;
        };
        let queue = host.random.below(u64::from(QUEUES)) as u32;
        let is_batch = host.random.below(4) == 0;
        let count = if is_batch {
            1 + host.random.below(4)
        } else {
            1
        };
        let producer = *number;
        let values: Vec<Value> = (*sequence..*sequence + count)
            .map(|sequence| Value { producer, sequence })
            .collect();
        *sequence += count;
        for value in &values {
            let value = *value;
            self.ledger.note(&Event::Sent { value, queue });
        }
        let properties = format!("TAGS\u{1}{}", TAGS[tag(values[0])]);
        // What is not to wait for its flush may be lost with it.
        let counts = host.random.below(10) != 0;
        let wait = if counts { "" } else { "\u{2}WAIT\u{1}false" };
        let queue_text = queue.to_string();
        let all = format!("{properties}{wait}\u{2}");
        let mut fields = vec![
            ("a", "PG"),
            ("b", TOPIC),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", &*queue_text),
            ("f", "0"),
            ("g", "1700000000000"),
            ("h", "0"),
            ("i", &*all),
        ];
        if is_batch {
            fields.push(("m", "true"));
        }
        let (code, body) = match is_batch {
            true => (320, batch(&values)),
            false => (310, body(values[0])),
        };
        let asked = Asked::Send {
            queue,
            values,
            counts,
        };
        ask(client, host, code, &fields, &body, asked);
    }
}

fn ask(
    client: &mut Client,
    host: &mut Host,
    code: i32,
    fields: &[(&str, &str)],
    body: &[u8],
    asked: Asked,
) {
    client.opaque += 1;
    client.waiting.insert(client.opaque, asked);
    let frame = request(code, client.opaque, fields, body);
    let now_us = host.now_us();
    host.network
        .write(client.socket, &frame, now_us, &mut host.random);
}

/// The body of a batch, as clients encode it.
fn batch(values: &[Value]) -> Vec<u8> {
    let mut out = Vec::new();
    for value in values {
        let (body, properties) = (body(*value), format!("TAGS\u{1}{}", TAGS[tag(*value)]));
        out.extend_from_slice(&((22 + body.len() + properties.len()) as u32).to_be_bytes());
        out.extend_from_slice(&[0; 12]);
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
        out.extend_from_slice(&body);
        out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        out.extend_from_slice(properties.as_bytes());
    }
    out
}
