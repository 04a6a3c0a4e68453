// SPDX-License-Identifier: Apache-2.0

//! What is sent, what arrived, and how the two compare. Knows no client.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

pub type Outcome<T> = Result<T, String>;

/// Bounds each single wait for a condition.
pub fn wait_limit() -> Duration {
    static LIMIT: OnceLock<Duration> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let secs = std::env::var("RINGMQ_COMPAT_WAIT_SECS").ok().and_then(|s| s.parse().ok());
        Duration::from_secs(secs.unwrap_or(30))
    })
}

pub async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) -> Outcome<()> {
    let end = Instant::now() + wait_limit();
    while !condition() {
        if Instant::now() > end {
            return Err(format!("waited {:?} for {what}", wait_limit()));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// The future's value, or an error once it takes longer than a wait may take.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> Outcome<T> {
    tokio::time::timeout(wait_limit(), future).await.map_err(|_| format!("waited {:?} for {what}", wait_limit()))
}

/// The content of one message, a pure function of its number.
#[derive(Clone)]
pub struct Sample {
    pub id: String,
    pub tag: String,
    pub keys: Vec<String>,
    pub props: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

impl Sample {
    pub fn new(number: usize, tag: &str) -> Sample {
        let id = format!("m{number:05}");
        let body = match number % 5 {
            0 => format!("plain {id}").into_bytes(),
            1 => format!("ünïcode 汉字 🚀 {id}").into_bytes(),
            2 => (0..=255).chain(id.bytes()).collect(), // every byte value
            3 => format!("compress me {id} ").repeat(1000).into_bytes(), // the client compresses it
            _ => noise(number as u32, 20_000),          // large, and compression does not help
        };
        Sample {
            tag: tag.to_string(),
            keys: vec![id.clone(), format!("second-{id}")],
            props: vec![
                ("id", id.clone()),
                ("number", number.to_string()),
                ("sentence", "two words, 100% {\"json\":true}; ünïcode 汉字".to_string()),
            ],
            id,
            body,
        }
    }

    fn difference(&self, got: &Received) -> Option<String> {
        if got.body != self.body {
            let (got, sent) = (got.body.len(), self.body.len());
            return Some(format!("body has {got} bytes instead of the {sent} sent, or differs"));
        }
        let property = |name: &str| got.props.get(name).map_or("", String::as_str);
        let keys = self.keys.join(" ");
        let mut expected = vec![("TAGS", &self.tag), ("KEYS", &keys)];
        expected.extend(self.props.iter().map(|(name, value)| (*name, value)));
        for (name, value) in expected {
            if property(name) != value {
                return Some(format!("property {name} is {:?} instead of {value:?}", property(name)));
            }
        }
        if got.born_timestamp == 0 || got.store_timestamp == 0 || got.store_host.is_empty() {
            return Some("store host, born or store time is missing".to_string());
        }
        if got.reconsume_times != 0 {
            return Some(format!("reconsumed {} times", got.reconsume_times));
        }
        None
    }
}

pub fn samples(numbers: std::ops::Range<usize>, tag: &str) -> Vec<Sample> {
    numbers.map(|n| Sample::new(n, tag)).collect()
}

/// Content that compression does not shrink (xorshift32).
fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut x = seed.wrapping_add(0x9e37_79b9);
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A message as a client handed it out.
#[derive(Clone)]
pub struct Received {
    pub body: Vec<u8>,
    pub props: BTreeMap<String, String>,
    pub queue_id: i32,
    pub born_timestamp: i64,
    pub store_timestamp: i64,
    pub store_host: String,
    pub reconsume_times: i32,
}

pub const FENCE: &str = "fence";

#[derive(Default)]
struct State {
    got: HashMap<String, Vec<Received>>,
    /// Fence token to the queues on which it arrived; their numbers repeat from broker to broker.
    fences: HashMap<String, BTreeSet<(String, i32)>>,
    seen: usize,
}

#[derive(Default)]
pub struct Collector(Mutex<State>);

impl Collector {
    pub fn add(&self, mut message: Received) {
        // Breaks every seventh message that arrives, to show that the checks notice: lose, twice or body.
        static FAULT: OnceLock<String> = OnceLock::new();
        let fault = FAULT.get_or_init(|| std::env::var("RINGMQ_COMPAT_FAULT").unwrap_or_default());

        let mut state = self.0.lock().unwrap();
        if let Some(token) = message.props.get(FENCE) {
            let queue = (message.store_host.clone(), message.queue_id);
            state.fences.entry(token.clone()).or_default().insert(queue);
            return;
        }
        let id = message.props.get("id").cloned().unwrap_or_default();
        state.seen += 1;
        let hit = state.seen % 7 == 0;
        match fault.as_str() {
            "lose" if hit => return,
            "twice" if hit => state.got.entry(id.clone()).or_default().push(message.clone()),
            "body" if hit => message.body.push(b'!'),
            _ => {}
        }
        state.got.entry(id).or_default().push(message);
    }

    pub fn has(&self, id: &str) -> bool {
        self.0.lock().unwrap().got.contains_key(id)
    }

    pub fn has_all(&self, samples: &[Sample]) -> bool {
        samples.iter().all(|s| self.has(&s.id))
    }

    /// The number of different messages that arrived.
    pub fn distinct(&self) -> usize {
        self.0.lock().unwrap().got.len()
    }

    pub fn fences(&self, token: &str) -> usize {
        self.0.lock().unwrap().fences.get(token).map_or(0, BTreeSet::len)
    }

    /// The queues on which those of the samples that are here have come.
    pub fn queues_of(&self, samples: &[Sample]) -> Vec<i32> {
        let state = self.0.lock().unwrap();
        let mut queues: Vec<i32> =
            samples.iter().filter_map(|s| state.got.get(&s.id)).map(|list| list[0].queue_id).collect();
        queues.sort_unstable();
        queues
    }

    /// Waits until each of the samples has arrived at least once.
    pub async fn wait_all(&self, samples: &[Sample]) -> Outcome<()> {
        wait_for("messages", || self.has_all(samples)).await.map_err(|late| {
            let missing = self.missing(samples);
            format!("{late}: {} of {} did not arrive: {}", missing.len(), samples.len(), some(&missing))
        })
    }

    pub fn missing(&self, samples: &[Sample]) -> Vec<String> {
        samples.iter().map(|s| s.id.clone()).filter(|id| !self.has(id)).collect()
    }

    /// Checks that the samples arrived once each, unchanged, and nothing else did.
    pub fn exactly(&self, samples: &[Sample]) -> Outcome<()> {
        let state = self.0.lock().unwrap();
        let mut problems = problems_of(&state, samples);
        let expected: BTreeSet<_> = samples.iter().map(|s| s.id.as_str()).collect();
        for (id, list) in &state.got {
            if !expected.contains(id.as_str()) {
                problems.push(format!("{id:?} was not expected ({} times)", list.len()));
            }
        }
        none(problems)
    }

    /// Checks that the samples arrived once each, unchanged; others do not matter.
    pub fn once_each(&self, samples: &[Sample]) -> Outcome<()> {
        none(problems_of(&self.0.lock().unwrap(), samples))
    }
}

fn problems_of(state: &State, samples: &[Sample]) -> Vec<String> {
    let mut problems = Vec::new();
    for s in samples {
        let list = state.got.get(&s.id).map_or(&[][..], Vec::as_slice);
        if list.len() != 1 {
            problems.push(format!("{} arrived {} times", s.id, list.len()));
        }
        problems.extend(list.iter().filter_map(|m| s.difference(m)).map(|d| format!("{}: {d}", s.id)));
    }
    problems
}

fn none(mut problems: Vec<String>) -> Outcome<()> {
    if problems.is_empty() {
        return Ok(());
    }
    problems.sort();
    Err(format!("{} problems: {}", problems.len(), some(&problems)))
}

pub fn some(list: &[String]) -> String {
    let more = if list.len() > 5 { ", ..." } else { "" };
    list[..list.len().min(5)].join(", ") + more
}
