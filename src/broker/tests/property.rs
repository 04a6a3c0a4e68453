//! Random histories of sends, filtered pulls, partial completions, deadlines, closes and deletions against a model.
//!
//! Each pull is answered exactly once, or never when its connection closed; each answer is what the model says for
//! its filter and offset; nobody waits for something that is there (checked after every delivery); and consumers that
//! go on from where they were told get all matching messages, once, in order.
//!
//! A failure prints its seed. More seeds than the usual: `SEEDS=1000 cargo test random_histories`.

use super::pulls::cold_desk;
use super::*;

const QUEUES: usize = 2;
const TAGS: [&str; 4] = ["A", "B", "Aa", "BB"];
const EXPRESSIONS: [&str; 6] = ["*", "A", "B", "A || B", "Aa", "BB || A"];
const STEPS: usize = 300;
const SEEDS: u64 = 30;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// A consumer of one queue with one pull at a time, as a client's pull loop.
#[derive(Clone)]
struct Consumer {
    connection: ConnectionId,
    queue: usize,
    expression: &'static str,
    next: i64,
    got: Vec<(u64, String)>,
    outstanding: Option<Outstanding>,
}

#[derive(Clone, Copy)]
struct Outstanding {
    opaque: i32,
    may_wait: bool,
    deadline_us: u64,
}

struct World {
    desk: Desk,
    random: Random,
    /// Tag and body of every message sent, by queue; all are appended, a prefix of them is visible.
    sent: [Vec<(&'static str, String)>; QUEUES],
    consumers: Vec<Consumer>,
    generation: u32,
    context: String,
    /// The broker has answered all holds, whatever their time.
    stopped: bool,
}

fn matches(expression: &str, tag: &str) -> bool {
    expression == "*" || expression.split("||").any(|wanted| wanted.trim() == tag)
}

impl World {
    fn new(seed: u64, desk: Desk, context: &str) -> Self {
        let mut world = Self {
            desk,
            random: Random(seed),
            sent: Default::default(),
            consumers: Vec::new(),
            generation: 1,
            context: format!("{context} seed {seed}"),
            stopped: false,
        };
        world.desk.send("T", 0, "A", b"0");
        world.sent[0].push(("A", "0".to_owned()));
        for index in 0..6 {
            let consumer = Consumer {
                connection: connection(10 + index / 2),
                queue: index as usize % QUEUES,
                expression: EXPRESSIONS[index as usize],
                next: 0,
                got: Vec::new(),
                outstanding: None,
            };
            world.consumers.push(consumer);
        }
        world
    }

    fn send(&mut self) {
        let queue = self.random.below(QUEUES);
        let tag = TAGS[self.random.below(TAGS.len())];
        let body = self.sent[queue].len().to_string();
        let properties = format!("TAGS\u{1}{tag}\u{2}");
        let sending = Sending {
            queue_id: queue as i32,
            properties: &properties,
            body: body.as_bytes(),
            ..Sending::default()
        };
        self.desk.start_send(&sending);
        self.sent[queue].push((tag, body));
    }

    fn pull(&mut self, index: usize) {
        if self.consumers[index].outstanding.is_some() {
            return;
        }
        let may_wait = !self.random.one_in(5);
        let suspend_ms = [50, 1000, 15_000][self.random.below(3)];
        let consumer = &self.consumers[index];
        let pulling = Pulling {
            from: consumer.connection,
            group: "G",
            queue_id: consumer.queue as i32,
            offset: consumer.next,
            max: 1 + self.random.below(10) as i32,
            sys_flag: SUBSCRIPTION | if may_wait { SUSPEND } else { 0 },
            suspend_ms,
            expression: consumer.expression,
            ..Pulling::default()
        };
        let deadline_us = self.desk.io.now().after_ms(suspend_ms as u64);
        let opaque = self.desk.start_pull(&pulling);
        self.consumers[index].outstanding = Some(Outstanding {
            opaque,
            may_wait,
            deadline_us,
        });
        self.take_answers();
    }

    fn close(&mut self) {
        let victim = self.random.below(self.consumers.len());
        let old = self.consumers[victim].connection;
        self.desk.close(old);
        self.generation += 1;
        let new = ConnectionId {
            generation: self.generation,
            ..old
        };
        for consumer in &mut self.consumers {
            if consumer.connection == old {
                consumer.connection = new;
                consumer.outstanding = None;
            }
        }
    }

    fn complete_some(&mut self) {
        self.desk.io.hold(true);
        let now = self.desk.io.now();
        self.desk.store.seal(now, &mut self.desk.io);
        for _ in 0..self.random.below(4) {
            let pending = self.desk.io.pending().len();
            if pending == 0 {
                break;
            }
            let mut completions = Vec::new();
            let place = self.random.below(pending);
            self.desk.io.complete(place, &mut completions);
            self.desk.handle(completions);
        }
        if self.random.one_in(2) {
            self.deliver();
        }
        self.desk.io.hold(false);
    }

    fn deliver(&mut self) {
        self.desk.deliver();
        self.desk.check_holds();
        self.take_answers();
    }

    fn turn(&mut self) {
        self.desk.turn();
        self.take_answers();
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..3 => self.send(),
            3..7 => {
                let index = self.random.below(self.consumers.len());
                self.pull(index);
            }
            7 => self.complete_some(),
            8 => self.deliver(),
            9 => {
                let ms = [1, 49, 50, 1000, 4000][self.random.below(5)];
                self.desk.io.advance_ms(ms);
                self.desk.expire();
                self.take_answers();
            }
            10 if self.random.one_in(6) => self.close(),
            _ => self.turn(),
        }
    }

    /// Checks every answer against the model and lets its consumer go on.
    fn take_answers(&mut self) {
        for answered in std::mem::take(&mut self.desk.answers) {
            let ResponseHeader::Pull(_) = answered.response.header else {
                assert_eq!(answered.response.code.0, 0, "{}", self.context);
                continue;
            };
            let index = self.consumers.iter().position(|consumer| {
                consumer
                    .outstanding
                    .is_some_and(|o| o.opaque == answered.opaque)
            });
            let index = index
                .unwrap_or_else(|| panic!("an answer that nobody waits for: {}", self.context));
            self.check_answer(index, &answered);
        }
    }

    fn check_answer(&mut self, index: usize, answered: &Answered) {
        let context = &self.context;
        let now_us = self.desk.io.now().monotonic_us;
        let consumer = &mut self.consumers[index];
        let outstanding = consumer.outstanding.take().expect("found by it");
        assert_eq!(answered.connection, consumer.connection, "{context}");
        let (code, text, next) = state(&answered.response);
        let header = pulled(&answered.response);
        let found = messages(&answered.response);
        assert!(header.max_offset as usize <= self.sent[consumer.queue].len());
        assert!(
            consumer.next <= next && next <= header.max_offset,
            "{context}"
        );
        let range = consumer.next as usize..next as usize;
        let expected: Vec<(u64, String)> = (range.start as u64..)
            .zip(&self.sent[consumer.queue][range])
            .filter(|(_, (tag, _))| matches(consumer.expression, tag))
            .map(|(offset, (_, body))| (offset, body.clone()))
            .collect();
        assert_eq!(found, expected, "{context}");
        match code {
            0 => assert!(!found.is_empty(), "{context}"),
            20 => assert!(found.is_empty() && next > consumer.next, "{context}"),
            19 => {
                assert_eq!(next, consumer.next, "{context} {text}");
                let is_due = now_us >= outstanding.deadline_us;
                let may_answer = !outstanding.may_wait || is_due || self.stopped;
                assert!(may_answer, "an empty answer before its time: {context}");
            }
            other => panic!("{other} {text}: {context}"),
        }
        consumer.got.extend(found);
        consumer.next = next;
    }

    /// All that was sent becomes visible; every consumer goes on to the end.
    fn finish(mut self) {
        self.desk.io.hold(false);
        for _ in 0..4 {
            self.turn();
        }
        self.stopped = true;
        self.desk.begin_stop();
        self.take_answers();
        assert!(self.desk.broker.holds.is_empty());
        self.turn();
        for index in 0..self.consumers.len() {
            assert!(
                self.consumers[index].outstanding.is_none(),
                "an unanswered pull: {}",
                self.context
            );
            let all = self.sent[self.consumers[index].queue].len() as i64;
            for _ in 0..10_000 {
                if self.consumers[index].next == all {
                    break;
                }
                self.pull(index);
                self.turn();
                if self.consumers[index].outstanding.is_some() {
                    self.desk.io.advance_ms(15_000);
                    self.desk.expire();
                    self.turn();
                }
            }
            let consumer = &self.consumers[index];
            assert_eq!(consumer.next, all, "{}", self.context);
            let expected: Vec<(u64, String)> = (0..)
                .zip(&self.sent[consumer.queue])
                .filter(|(_, (tag, _))| matches(consumer.expression, tag))
                .map(|(offset, (_, body))| (offset, body.clone()))
                .collect();
            assert_eq!(consumer.got, expected, "{}", self.context);
        }
    }
}

fn run(context: &str, open: impl Fn() -> Desk) {
    let seeds = std::env::var("SEEDS")
        .ok()
        .and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(SEEDS) {
        let mut world = World::new(seed, open(), context);
        for _ in 0..STEPS {
            world.step();
        }
        world.finish();
    }
}

#[test]
fn random_histories_with_data_in_memory() {
    run("in memory", Desk::new);
}

#[test]
fn random_histories_with_data_on_disk() {
    run("on disk", cold_desk);
}

#[test]
fn random_histories_in_sync_flush() {
    run("in sync flush", || {
        let config = StoreConfig {
            flush: FlushMode::Sync,
            ..store_config()
        };
        Desk::open(broker_config(), config)
    });
}
