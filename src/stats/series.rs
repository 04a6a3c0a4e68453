//! Traffic by topic, and by consumer group and topic. The number of series is bounded: those beyond share one, and
//! one that has been idle gives its place to a busy one.

use crate::ids::{NameMap, QueueIndex};
use crate::limits::{DELIVERY_SERIES_MAX, SERIES_IDLE_SECONDS, TOPIC_SERIES_MAX};
use crate::stats::Histogram;
use std::collections::HashMap;
use std::rc::Rc;

/// Name of the topic and the group of what has no series of its own; no topic or group can be called so.
pub const OTHERS: &str = "~others";

const IDLE_US: u64 = SERIES_IDLE_SECONDS * 1_000_000;
/// Pause between two searches for an idle series.
const EVICT_US: u64 = 1_000_000;
/// Two parts an octave: series are many, and are shown in coarser buckets.
const LATENCY_BITS: u32 = 1;

/// Upper bounds of message sizes in bytes. Source: apache/rocketmq 5.3.x `BrokerMetricsManager`.
pub const SIZE_BOUNDS: [u64; 6] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

/// What a message is for RocketMQ's metrics. Source: apache/rocketmq 5.3.x `TopicMessageType`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageType {
    Normal,
    Fifo,
    Delay,
    Transaction,
}

impl MessageType {
    pub const ALL: [Self; 4] = [Self::Normal, Self::Fifo, Self::Delay, Self::Transaction];

    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Fifo => "fifo",
            Self::Delay => "delay",
            Self::Transaction => "transaction",
        }
    }
}

/// Messages of one topic and type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub messages: u64,
    /// Of their records.
    pub bytes: u64,
    /// Counts by size, see [`SIZE_BOUNDS`]; the last one has those above all bounds.
    pub sizes: [u64; SIZE_BOUNDS.len() + 1],
}

impl Traffic {
    fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        for (count, more) in self.sizes.iter_mut().zip(other.sizes) {
            *count += more;
        }
    }
}

/// Traffic into one topic.
#[derive(Clone, Debug)]
pub struct TopicSeries {
    pub topic: Box<str>,
    /// In the order of [`MessageType::ALL`].
    pub types: [Traffic; 4],
    active_us: u64,
}

impl TopicSeries {
    fn new(topic: &str, now_us: u64) -> Self {
        Self {
            topic: topic.into(),
            types: Default::default(),
            active_us: now_us,
        }
    }
}

/// Messages that came in at once.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    pub queue: QueueIndex,
    pub kind: MessageType,
    pub messages: u64,
    pub bytes: u64,
    pub now_us: u64,
}

/// When a series was last looked for that can go.
#[derive(Clone, Copy, Debug, Default)]
struct Eviction {
    next_us: u64,
}

impl Eviction {
    /// The series that has been idle the longest, if that is long enough; the first one has what is left over.
    fn choose(&mut self, active_us: impl Iterator<Item = u64>, now_us: u64) -> Option<usize> {
        if now_us < self.next_us {
            return None;
        }
        self.next_us = now_us + EVICT_US;
        let oldest = active_us.enumerate().skip(1).min_by_key(|(_, at)| *at)?;
        (oldest.1 + IDLE_US <= now_us).then_some(oldest.0)
    }
}

/// All topics that messages came for.
///
/// **Invariant**: a queue's place, where it has one, names a series of its topic, or the first.
#[derive(Debug)]
pub struct Topics {
    /// By queue index, the place of its topic's series plus one; 0: not looked up yet, or looked up in vain.
    places: Vec<u16>,
    series: Vec<TopicSeries>,
    names: NameMap<u16>,
    eviction: Eviction,
}

impl Default for Topics {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            series: vec![TopicSeries::new(OTHERS, 0)],
            names: NameMap::default(),
            eviction: Eviction::default(),
        }
    }
}

impl Topics {
    pub fn count(&mut self, topic: &str, incoming: Incoming) {
        let known = self.places.get(incoming.queue.index()).copied();
        let place = match known {
            Some(place @ 1..) => place - 1,
            _ => self.look_up(topic, incoming.queue, incoming.now_us),
        };
        let series = &mut self.series[usize::from(place)];
        series.active_us = incoming.now_us;
        let traffic = &mut series.types[incoming.kind as usize];
        traffic.messages += incoming.messages;
        traffic.bytes += incoming.bytes;
        let size = incoming.bytes.checked_div(incoming.messages).unwrap_or(0);
        let above = SIZE_BOUNDS.iter().take_while(|bound| size > **bound);
        traffic.sizes[above.count()] += incoming.messages;
    }

    #[cold]
    fn look_up(&mut self, topic: &str, queue: QueueIndex, now_us: u64) -> u16 {
        let place = match self.names.get(topic) {
            Some(place) => *place,
            None if self.series.len() <= TOPIC_SERIES_MAX => {
                self.series.push(TopicSeries::new(topic, now_us));
                self.named(topic, self.series.len() - 1)
            }
            None => {
                let active = self.series.iter().map(|series| series.active_us);
                match self.eviction.choose(active, now_us) {
                    Some(place) => self.replace(place, topic, now_us),
                    // Not remembered: an idle series may give way later.
                    None => return 0,
                }
            }
        };
        if self.places.len() <= queue.index() {
            self.places.resize(queue.index() + 1, 0);
        }
        self.places[queue.index()] = place + 1;
        place
    }

    fn named(&mut self, topic: &str, place: usize) -> u16 {
        let place = place as u16;
        self.names.insert(topic.into(), place);
        place
    }

    fn replace(&mut self, place: usize, topic: &str, now_us: u64) -> u16 {
        let series = TopicSeries::new(topic, now_us);
        let old = std::mem::replace(&mut self.series[place], series);
        for (sum, more) in self.series[0].types.iter_mut().zip(&old.types) {
            sum.add(more);
        }
        self.names.remove(&old.topic);
        let taken = place as u16 + 1;
        for queue in self.places.iter_mut().filter(|queue| **queue == taken) {
            *queue = 0;
        }
        self.named(topic, place)
    }

    pub fn all(&self) -> &[TopicSeries] {
        &self.series
    }
}

/// What one group got of one topic.
#[derive(Clone, Debug)]
pub struct DeliverySeries {
    pub group: Rc<str>,
    pub topic: Rc<str>,
    pub messages: u64,
    /// Of their records.
    pub bytes: u64,
    /// Microseconds from the arrival of a message that a held pull waited for to its queued reply.
    pub latency: Histogram,
    /// By queue id, the offset behind what was delivered last; 0 before.
    pub pulled: Vec<u64>,
    active_us: u64,
}

impl DeliverySeries {
    fn new(group: Rc<str>, topic: Rc<str>, now_us: u64) -> Self {
        Self {
            group,
            topic,
            messages: 0,
            bytes: 0,
            latency: Histogram::new(LATENCY_BITS),
            pulled: Vec::new(),
            active_us: now_us,
        }
    }

    fn key(&self) -> (usize, usize) {
        (address(&self.group), address(&self.topic))
    }
}

/// Names are shared, so that their addresses tell them apart; a series keeps its own alive. A group that was deleted
/// and made again has a second series under the same name: whoever reads adds them up.
fn address(name: &Rc<str>) -> usize {
    Rc::as_ptr(name).cast::<u8>() as usize
}

/// Messages that left at once.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    pub queue_id: u32,
    /// The offset behind them.
    pub next: u64,
    pub messages: u64,
    pub bytes: u64,
    pub now_us: u64,
}

/// All pairs of group and topic that messages left for.
#[derive(Debug)]
pub struct Deliveries {
    places: HashMap<(usize, usize), u16, ahash::RandomState>,
    series: Vec<DeliverySeries>,
    eviction: Eviction,
}

impl Default for Deliveries {
    fn default() -> Self {
        let (group, topic) = (Rc::from(OTHERS), Rc::from(OTHERS));
        Self {
            places: HashMap::default(),
            series: vec![DeliverySeries::new(group, topic, 0)],
            eviction: Eviction::default(),
        }
    }
}

impl Deliveries {
    /// Counts what left and returns the place of its series.
    pub fn count(&mut self, group: &Rc<str>, topic: &Rc<str>, outgoing: Outgoing) -> u16 {
        let key = (address(group), address(topic));
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None => self.add(group, topic, outgoing.now_us),
        };
        let series = &mut self.series[usize::from(place)];
        series.active_us = outgoing.now_us;
        series.messages += outgoing.messages;
        series.bytes += outgoing.bytes;
        if place > 0 {
            let queue = outgoing.queue_id as usize;
            if series.pulled.len() <= queue {
                series.pulled.resize(queue + 1, 0);
            }
            series.pulled[queue] = outgoing.next;
        }
        place
    }

    #[cold]
    fn add(&mut self, group: &Rc<str>, topic: &Rc<str>, now_us: u64) -> u16 {
        let series = DeliverySeries::new(Rc::clone(group), Rc::clone(topic), now_us);
        let key = series.key();
        let place = if self.series.len() <= DELIVERY_SERIES_MAX {
            self.series.push(series);
            self.series.len() - 1
        } else {
            let active = self.series.iter().map(|series| series.active_us);
            let Some(place) = self.eviction.choose(active, now_us) else {
                return 0;
            };
            let old = std::mem::replace(&mut self.series[place], series);
            self.places.remove(&old.key());
            let others = &mut self.series[0];
            others.messages += old.messages;
            others.bytes += old.bytes;
            others.latency.add(&old.latency);
            place
        };
        self.places.insert(key, place as u16);
        place as u16
    }

    pub fn record_latency(&mut self, place: u16, micros: u64) {
        self.series[usize::from(place)].latency.record(micros);
    }

    pub fn find(&self, group: &Rc<str>, topic: &Rc<str>) -> Option<&DeliverySeries> {
        let place = self.places.get(&(address(group), address(topic)))?;
        self.series.get(usize::from(*place))
    }

    pub fn all(&self) -> &[DeliverySeries] {
        &self.series
    }
}

const _: () = assert!(TOPIC_SERIES_MAX < u16::MAX as usize, "places are u16");
const _: () = assert!(DELIVERY_SERIES_MAX < u16::MAX as usize, "places are u16");

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming(queue: usize, now_us: u64) -> Incoming {
        Incoming {
            queue: QueueIndex(queue as u32),
            kind: MessageType::Fifo,
            messages: 2,
            bytes: 2 * 1025,
            now_us,
        }
    }

    #[test]
    fn messages_count_for_their_topic_type_and_size() {
        let mut topics = Topics::default();
        topics.count("T", incoming(7, 1));
        topics.count("T", incoming(0, 2));
        let series = &topics.all()[1];
        assert_eq!(&*series.topic, "T");
        let fifo = series.types[MessageType::Fifo as usize];
        assert_eq!((fifo.messages, fifo.bytes), (4, 4100));
        assert_eq!(fifo.sizes, [0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(series.types[0], Traffic::default());
    }

    #[test]
    fn topics_beyond_the_limit_share_a_series_until_one_is_idle() {
        let mut topics = Topics::default();
        for index in 0..TOPIC_SERIES_MAX + 5 {
            topics.count(&format!("T{index}"), incoming(index, 10));
        }
        assert_eq!(topics.all().len(), TOPIC_SERIES_MAX + 1);
        let others = |topics: &Topics| topics.all()[0].types[1].messages;
        assert_eq!(others(&topics), 10);
        let later = 10 + IDLE_US;
        for index in 1..TOPIC_SERIES_MAX {
            topics.count(&format!("T{index}"), incoming(index, later));
        }
        topics.count("new", incoming(9_999, later));
        let names: Vec<&str> = topics.all().iter().map(|s| &*s.topic).collect();
        assert!(names.contains(&"new"), "it took the place of T0");
        assert!(!names.contains(&"T0"));
        assert_eq!(others(&topics), 12, "what T0 had is not lost");
        topics.count("T0", incoming(0, later));
        assert_eq!(others(&topics), 14, "its queue goes to nobody else");
    }

    fn outgoing(queue_id: u32, next: u64, now_us: u64) -> Outgoing {
        Outgoing {
            queue_id,
            next,
            messages: 1,
            bytes: 100,
            now_us,
        }
    }

    #[test]
    fn deliveries_count_for_group_and_topic() {
        let mut deliveries = Deliveries::default();
        let names = ["G", "H", "T"].map(Rc::<str>::from);
        let [g, h, t] = &names;
        assert_eq!(deliveries.count(g, t, outgoing(2, 5, 1)), 1);
        assert_eq!(deliveries.count(h, t, outgoing(0, 1, 1)), 2);
        assert_eq!(deliveries.count(g, t, outgoing(0, 9, 1)), 1);
        deliveries.record_latency(1, 30);
        let series = deliveries.find(g, t).expect("it got messages");
        assert_eq!((series.messages, series.bytes), (2, 200));
        assert_eq!(series.pulled, [9, 0, 5]);
        assert_eq!(series.latency.count(), 1);
        assert!(deliveries.find(t, g).is_none());
    }

    #[test]
    fn pairs_beyond_the_limit_share_a_series_until_one_is_idle() {
        let mut deliveries = Deliveries::default();
        let topic = Rc::<str>::from("T");
        let group = |index: usize| Rc::<str>::from(format!("G{index}"));
        let groups: Vec<_> = (0..DELIVERY_SERIES_MAX + 3).map(group).collect();
        for group in &groups {
            deliveries.count(group, &topic, outgoing(0, 1, 10));
        }
        assert_eq!(deliveries.all().len(), DELIVERY_SERIES_MAX + 1);
        assert_eq!(deliveries.all()[0].messages, 3);
        let late = &groups[DELIVERY_SERIES_MAX];
        let place = deliveries.count(late, &topic, outgoing(0, 2, 10 + IDLE_US));
        assert_eq!(place, 1, "it took the place of the first");
        assert!(deliveries.find(&groups[0], &topic).is_none());
        assert_eq!(deliveries.all()[0].messages, 4, "nothing is lost");
        let total: u64 = deliveries.all().iter().map(|s| s.messages).sum();
        assert_eq!(total, groups.len() as u64 + 1);
    }
}
