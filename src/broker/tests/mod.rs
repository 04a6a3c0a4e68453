//! Tests of the handlers over a real store on a simulated disk, with the shard's part played by [`Desk`].

mod administration;
pub mod config_files;
mod holds;
mod property;
pub mod pulls;
mod queries;
mod replies;
mod report;
pub mod sends;

use super::*;
use crate::io::{Completion, Io};
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::{Command, FLAG_ONE_WAY, Scratch};
use crate::protocol::frame::{self, Split};
use crate::protocol::message::{Record, StoredMessage};
use crate::protocol::response::{
    Body, MessageIds, PullResponseHeader, Request, ResponseHeader, SendResponseHeader,
};
use crate::storage::{FetchDone, FlushMode, IndexConfig, IndexSizes, RetentionConfig, StoreConfig};
pub use crate::testing::config::broker_config;
use crate::testing::sim_io::SimIo;
use bytes::BytesMut;
use std::collections::BTreeMap;

pub const ASYNC: FlushMode = FlushMode::Async {
    interval_ms: 50,
    bytes: 1 << 20,
};
/// Reads of one request after which a test gives up; the shard's limit is higher.
const STEPS_MAX: u32 = 40;

pub fn store_config() -> StoreConfig {
    StoreConfig {
        root: "/store".into(),
        commit_log: "/store/commitlog".into(),
        consume_queue: "/store/consumequeue".into(),
        segment_bytes: 1 << 20,
        queue_file_bytes: 20 * 4000,
        flush: ASYNC,
        tail_cache_bytes: 64 << 20,
        entry_cache_bytes: 1 << 20,
        disk_full_percent: 90,
        zero_fill: false,
        delay_levels: DelayLevels::default(),
        retention: RetentionConfig::default(),
        index: IndexConfig {
            is_enabled: true,
            sizes: IndexSizes {
                slots: 50,
                units: 200,
            },
        },
    }
}

/// For messages of the largest size.
pub fn big_store_config() -> StoreConfig {
    StoreConfig {
        segment_bytes: 16 << 20,
        ..store_config()
    }
}

pub const fn connection(index: u32) -> ConnectionId {
    ConnectionId {
        index,
        generation: 1,
    }
}

fn peer(connection: ConnectionId) -> Peer {
    Peer {
        connection,
        address: ([10, 0, 0, 9], 40_000).into(),
    }
}

enum Cold {
    Frame(Peer, Vec<u8>),
    Pull(pull::PullRequest),
    Task(internal::Task),
}

/// One answer on its way to a client.
pub struct Answered {
    pub connection: ConnectionId,
    pub opaque: i32,
    pub response: Response,
}

/// A broker, its store and disk, and a loop that runs on demand.
pub struct Desk {
    pub io: SimIo,
    pub store: Store,
    pub broker: Broker,
    pub effects: Effects,
    pub counters: Counters,
    pub answers: Vec<Answered>,
    pub one_ways: u32,
    next_opaque: i32,
    acks: Vec<(ConnectionId, i32, Acknowledgement)>,
    cold: BTreeMap<u64, (Cold, u32)>,
    next_key: u64,
    /// Reads that were started, over all requests.
    pub reads: u32,
    done: Vec<FetchDone>,
    closed: Vec<ConnectionId>,
    /// What was to be told to clients, and the newest contents of each configuration file.
    pub notifications: Vec<Notification>,
    /// Requests to clients, and mail for other shards.
    pub calls: Vec<relay::AddressedCall>,
    pub letters: Vec<relay::Letter>,
    pub files: BTreeMap<&'static str, bytes::Bytes>,
    /// Registrations that were asked for.
    pub registrations: u32,
}

/// The context of a handler over the fields of a desk.
macro_rules! context {
    ($desk:ident, $fetched:expr, $first_run:expr) => {
        &mut Context {
            store: &mut $desk.store,
            now: $desk.io.now(),
            fetched: $fetched,
            first_run: $first_run,
            effects: &mut $desk.effects,
            counters: &mut $desk.counters,
        }
    };
}

impl Desk {
    pub fn new() -> Self {
        Self::open(broker_config(), store_config())
    }

    pub fn open(broker: BrokerConfig, store: StoreConfig) -> Self {
        Self::open_with(broker, store, ConfigFiles::default())
    }

    /// A desk over configuration files.
    pub fn open_with(broker: BrokerConfig, store: StoreConfig, files: ConfigFiles<'_>) -> Self {
        let mut io = SimIo::new();
        let now = io.now();
        let (store, _) = Store::open(store, now, &mut io).unwrap();
        Self {
            io,
            store,
            broker: Broker::load(broker, files).unwrap(),
            effects: Effects::default(),
            counters: Counters::default(),
            answers: Vec::new(),
            one_ways: 0,
            next_opaque: 0,
            acks: Vec::new(),
            cold: BTreeMap::new(),
            next_key: 0,
            reads: 0,
            done: Vec::new(),
            closed: Vec::new(),
            notifications: Vec::new(),
            calls: Vec::new(),
            letters: Vec::new(),
            files: BTreeMap::new(),
            registrations: 0,
        }
    }

    /// The desk of a next process over the disk as it is now: the one before was killed.
    pub fn killed(mut self, broker: BrokerConfig, store: StoreConfig) -> Self {
        let (now, disk) = (self.io.now(), self.io.disk().clone());
        let mut io = SimIo::with_disk(disk);
        let passed_ms = now.wall_ms - io.now().wall_ms;
        io.advance_ms(passed_ms);
        let now = io.now();
        let file = |name: &str| self.files.get(name).map(|contents| &contents[..]);
        let files = ConfigFiles {
            topics: file("config/topics.json"),
            groups: file("config/subscriptionGroup.json"),
            offsets: file("config/consumerOffset.json"),
            delays: file(delay::FILE),
            timers: file(delay::TIMERS_FILE),
            transactions: file(transactions::FILE),
            modes: file(pop::MODES_FILE),
        };
        let (store, _) = Store::open(store, now, &mut io).unwrap();
        Self {
            io,
            store,
            broker: Broker::load(broker, files).unwrap(),
            ..Self::new()
        }
    }

    // ---- the shard's part ----

    /// Hands a request to the broker; its answer, if there is one already, is in `answers`.
    pub fn start_flagged(
        &mut self,
        from: ConnectionId,
        code: i32,
        fields: &[(&str, &str)],
        body: &[u8],
        flag: i32,
    ) -> i32 {
        self.next_opaque += 1;
        let mut frame = BytesMut::new();
        let request = Request {
            code,
            opaque: self.next_opaque,
            one_way: flag & FLAG_ONE_WAY != 0,
            encoding: Encoding::Json,
            fields,
            body,
        };
        request.encode(&mut frame);
        self.run_frame(peer(from), frame.to_vec(), Fetched::default(), 0);
        self.next_opaque
    }

    pub fn start(
        &mut self,
        from: ConnectionId,
        code: i32,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> i32 {
        self.start_flagged(from, code, fields, body, 0)
    }

    fn run_frame(&mut self, peer: Peer, frame: Vec<u8>, fetched: Fetched, steps: u32) {
        let Ok(Split::Frame(whole)) = frame::split(&frame) else {
            panic!("a whole frame");
        };
        let mut scratch = Scratch::default();
        let command = Command::decode(&whole, &mut scratch).unwrap();
        let (opaque, is_one_way) = (command.opaque, command.is_one_way());
        let first_run = steps == 0;
        let outcome = handler::handle(
            &mut self.broker,
            &command,
            peer,
            context!(self, &fetched, first_run),
        );
        match outcome {
            Outcome::Nothing => self.one_ways += 1,
            Outcome::Read(missing) => {
                let cold = Cold::Frame(peer, frame.clone());
                self.read(cold, steps, &missing, fetched);
            }
            _ if is_one_way => panic!("a one-way request ended in {outcome:?}"),
            Outcome::Reply(response) | Outcome::AwaitRegistration(response) => {
                self.answer(peer.connection, opaque, response);
            }
            Outcome::Append(acknowledgement) => {
                self.acks.push((peer.connection, opaque, acknowledgement));
            }
            Outcome::Held => {}
        }
    }

    fn answer(&mut self, connection: ConnectionId, opaque: i32, response: Response) {
        self.answers.push(Answered {
            connection,
            opaque,
            response,
        });
    }

    fn read(&mut self, cold: Cold, steps: u32, missing: &[Missing], have: Fetched) {
        assert!(steps < STEPS_MAX, "a request reads for ever: {missing:?}");
        assert!(!missing.is_empty());
        self.reads += 1;
        self.next_key += 1;
        self.cold.insert(self.next_key, (cold, steps));
        let done = self.store.fetch(self.next_key, missing, have, &mut self.io);
        self.done.extend(done);
    }

    fn run_again(&mut self, done: FetchDone) {
        let (cold, steps) = self.cold.remove(&done.key).unwrap();
        let connection = match &cold {
            Cold::Frame(peer, _) => Some(peer.connection),
            Cold::Pull(request) => Some(request.connection),
            Cold::Task(_) => None,
        };
        if connection.is_some_and(|connection| self.closed.contains(&connection)) {
            return;
        }
        let fetched = done.result.unwrap();
        let request = match cold {
            Cold::Frame(peer, frame) => return self.run_frame(peer, frame, fetched, steps + 1),
            Cold::Pull(request) => request,
            Cold::Task(task) => return self.run_task(task, fetched, steps + 1),
        };
        let (connection, opaque) = (request.connection, request.opaque);
        let again = Cold::Pull(request.clone());
        match pull::resume(&mut self.broker, request, context!(self, &fetched, false)) {
            Outcome::Reply(response) => self.answer(connection, opaque, response),
            Outcome::Held => {}
            Outcome::Read(missing) => self.read(again, steps + 1, &missing, fetched),
            other => panic!("a pull ended in {other:?}"),
        }
    }

    fn run_task(&mut self, task: internal::Task, fetched: Fetched, steps: u32) {
        let before = std::mem::take(&mut self.effects.task_reads);
        internal::run(&mut self.broker, task, context!(self, &fetched, false));
        let reads = std::mem::replace(&mut self.effects.task_reads, before);
        assert!(reads.len() <= 1, "one read of a task at a time: {reads:?}");
        if let Some((task, missing)) = reads.into_iter().next() {
            self.read(Cold::Task(task), steps, &missing, fetched);
        }
    }

    /// Runs completions and what they make possible until nothing is left.
    pub fn settle(&mut self) {
        loop {
            let mut completions = Vec::new();
            self.io.ready(&mut completions);
            let done = std::mem::take(&mut self.done);
            if completions.is_empty() && done.is_empty() {
                break;
            }
            self.handle(completions);
            for done in done {
                self.run_again(done);
            }
        }
    }

    pub fn handle(&mut self, completions: Vec<Completion>) {
        let now = self.io.now();
        for completion in completions {
            self.store
                .on_completion(completion, now, &mut self.io, &mut self.done);
        }
    }

    /// Delivers what became visible: wakes, acknowledgements, effects.
    pub fn deliver(&mut self) {
        let mut arrivals = Vec::new();
        self.store.take_arrivals(&mut arrivals);
        for arrival in arrivals {
            let none = Fetched::default();
            self.broker.on_arrival(arrival, context!(self, &none, true));
        }
        let visible = self.store.visible();
        for (connection, opaque, acknowledgement) in std::mem::take(&mut self.acks) {
            if acknowledgement.end <= visible {
                let header = acknowledgement.header;
                self.answer(connection, opaque, Response::with_header(header));
            } else {
                self.acks.push((connection, opaque, acknowledgement));
            }
        }
        self.perform();
    }

    pub fn perform(&mut self) {
        let none = Fetched::default();
        self.broker.end_turn(context!(self, &none, true));
        for addressed in std::mem::take(&mut self.effects.replies) {
            self.answer(addressed.connection, addressed.opaque, addressed.response);
        }
        for (request, missing) in std::mem::take(&mut self.effects.reads) {
            self.read(Cold::Pull(request), 0, &missing, Fetched::default());
        }
        for (task, missing) in std::mem::take(&mut self.effects.task_reads) {
            self.read(Cold::Task(task), 0, &missing, Fetched::default());
        }
        self.notifications.append(&mut self.effects.notifications);
        self.calls.append(&mut self.effects.calls);
        self.letters.append(&mut self.effects.letters);
        self.effects.created_topics.clear();
        self.files.extend(self.effects.files.drain(..));
        self.registrations += u32::from(std::mem::take(&mut self.effects.register));
    }

    /// Calls something that needs a context; what it causes is performed.
    pub fn with<T>(&mut self, run: impl FnOnce(&mut Broker, &mut Context<'_>) -> T) -> T {
        let none = Fetched::default();
        let result = run(&mut self.broker, context!(self, &none, true));
        self.perform();
        result
    }

    /// One turn of the loop.
    pub fn turn(&mut self) {
        let now = self.io.now();
        self.store.seal(now, &mut self.io);
        self.settle();
        self.deliver();
        self.settle();
        self.perform();
        self.check_holds();
    }

    /// Lets time pass and runs what is due at its end.
    pub fn pass_ms(&mut self, ms: u64) {
        self.io.advance_ms(ms);
        self.expire();
        self.turn();
    }

    pub fn expire(&mut self) {
        let none = Fetched::default();
        self.broker.expire(context!(self, &none, true));
        self.perform();
    }

    pub fn close(&mut self, connection: ConnectionId) {
        self.closed.push(connection);
        let none = Fetched::default();
        self.broker
            .on_closed(connection, context!(self, &none, true));
        self.perform();
    }

    pub fn begin_stop(&mut self) {
        let none = Fetched::default();
        self.broker.begin_stop(context!(self, &none, true));
        self.perform();
    }

    /// The invariant of the holds: nobody waits for something that is there.
    pub fn check_holds(&self) {
        for hold in self.broker.holds.iter() {
            let queue = self.store.queue(hold.topic, hold.queue_id);
            let max = self.store.bounds(queue.unwrap()).max;
            assert_eq!(hold.cursor, max, "stranded hold: {hold:?}");
        }
        assert_eq!(self.counters.holds_now, self.broker.holds.len() as u64);
    }

    // ---- the client's part ----

    /// The answer to a request, if it came.
    pub fn take(&mut self, opaque: i32) -> Option<Response> {
        let place = self.answers.iter().position(|a| a.opaque == opaque)?;
        Some(self.answers.remove(place).response)
    }

    /// A request that is answered in this turn.
    pub fn call(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Response {
        let opaque = self.start(connection(0), code, fields, body);
        self.turn();
        self.take(opaque).expect("an answer in this turn")
    }

    pub fn send(
        &mut self,
        topic: &str,
        queue_id: i32,
        tag: &str,
        body: &[u8],
    ) -> SendResponseHeader {
        let properties = if tag.is_empty() {
            String::new()
        } else {
            format!("TAGS\u{1}{tag}\u{2}")
        };
        let sending = Sending {
            topic,
            queue_id,
            properties: &properties,
            body,
            ..Sending::default()
        };
        sent(&self.send_message(&sending))
    }

    pub fn send_message(&mut self, sending: &Sending<'_>) -> Response {
        let opaque = self.start_send(sending);
        self.turn();
        self.take(opaque).expect("an answer in this turn")
    }

    pub fn start_send(&mut self, sending: &Sending<'_>) -> i32 {
        sending.with_fields(|fields| {
            let code = sending.code.0;
            self.start(connection(0), code, fields, sending.body)
        })
    }

    pub fn start_pull(&mut self, pulling: &Pulling<'_>) -> i32 {
        pulling.with_fields(|fields| self.start(pulling.from, pulling.code.0, fields, &[]))
    }

    /// A pull that is answered in this turn.
    pub fn pull(&mut self, pulling: &Pulling<'_>) -> Response {
        let opaque = self.start_pull(pulling);
        self.turn();
        self.take(opaque).expect("an answer in this turn")
    }
}

/// The fields of a send; by default one that is accepted.
#[derive(Clone, Copy)]
pub struct Sending<'a> {
    pub code: RequestCode,
    pub topic: &'a str,
    pub default_topic: &'a str,
    pub queue_id: i32,
    pub sys_flag: i32,
    pub flag: i32,
    pub properties: &'a str,
    pub reconsume_times: i32,
    pub max_reconsume_times: Option<i32>,
    pub batch: &'a str,
    pub body: &'a [u8],
}

impl Default for Sending<'_> {
    fn default() -> Self {
        Self {
            code: RequestCode::SEND_MESSAGE_V2,
            topic: "T",
            default_topic: "TBW102",
            queue_id: 0,
            sys_flag: 0,
            flag: 0,
            properties: "",
            reconsume_times: 0,
            max_reconsume_times: None,
            batch: "false",
            body: b"body",
        }
    }
}

impl Sending<'_> {
    fn with_fields<T>(&self, run: impl FnOnce(&[(&str, &str)]) -> T) -> T {
        let (queue_id, sys_flag) = (self.queue_id.to_string(), self.sys_flag.to_string());
        let (flag, reconsume_times) = (self.flag.to_string(), self.reconsume_times.to_string());
        let max = self.max_reconsume_times.map(|max| max.to_string());
        let names = if self.code == RequestCode::SEND_MESSAGE {
            [
                "producerGroup",
                "topic",
                "defaultTopic",
                "defaultTopicQueueNums",
                "queueId",
                "sysFlag",
                "bornTimestamp",
                "flag",
                "properties",
                "reconsumeTimes",
                "batch",
                "maxReconsumeTimes",
            ]
        } else {
            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "m", "l"]
        };
        let values = [
            "PG",
            self.topic,
            self.default_topic,
            "4",
            &queue_id,
            &sys_flag,
            "1699999999999",
            &flag,
            self.properties,
            &reconsume_times,
            self.batch,
            max.as_deref().unwrap_or_default(),
        ];
        let fields: Vec<_> = names.into_iter().zip(values).collect();
        run(&fields)
    }
}

/// The fields of a pull; by default one with a subscription to everything, so that no heartbeat is needed.
#[derive(Clone, Copy)]
pub struct Pulling<'a> {
    pub code: RequestCode,
    pub from: ConnectionId,
    pub group: &'a str,
    pub topic: &'a str,
    pub queue_id: i32,
    pub offset: i64,
    pub max: i32,
    pub sys_flag: i32,
    pub commit: i64,
    pub suspend_ms: i64,
    pub expression: &'a str,
    pub expression_type: &'a str,
    pub version: i64,
}

pub const COMMIT: i32 = 1;
pub const SUSPEND: i32 = 2;
pub const SUBSCRIPTION: i32 = 4;

impl Default for Pulling<'_> {
    fn default() -> Self {
        Self {
            code: RequestCode::PULL_MESSAGE,
            from: connection(1),
            group: "G",
            topic: "T",
            queue_id: 0,
            offset: 0,
            max: 32,
            sys_flag: SUBSCRIPTION,
            commit: 0,
            suspend_ms: 15_000,
            expression: "*",
            expression_type: "TAG",
            version: 0,
        }
    }
}

impl Pulling<'_> {
    fn with_fields<T>(&self, run: impl FnOnce(&[(&str, &str)]) -> T) -> T {
        let numbers = [
            i64::from(self.queue_id),
            self.offset,
            i64::from(self.max),
            i64::from(self.sys_flag),
            self.commit,
            self.suspend_ms,
            self.version,
        ]
        .map(|number| number.to_string());
        let [queue_id, offset, max, sys_flag, commit, suspend_ms, version] = &numbers;
        run(&[
            ("consumerGroup", self.group),
            ("topic", self.topic),
            ("queueId", queue_id),
            ("queueOffset", offset),
            ("maxMsgNums", max),
            ("sysFlag", sys_flag),
            ("commitOffset", commit),
            ("suspendTimeoutMillis", suspend_ms),
            ("subscription", self.expression),
            ("subVersion", version),
            ("expressionType", self.expression_type),
        ])
    }
}

pub fn sent(response: &Response) -> SendResponseHeader {
    match &response.header {
        ResponseHeader::Send(header) if response.code == ResponseCode::SUCCESS => header.clone(),
        _ => panic!("{response:?}"),
    }
}

pub fn message_id(header: &SendResponseHeader) -> &str {
    match &header.message_id {
        MessageIds::One(id) => id,
        MessageIds::Many(ids) => ids,
    }
}

pub fn pulled(response: &Response) -> PullResponseHeader {
    match &response.header {
        ResponseHeader::Pull(header) => *header,
        _ => panic!("{response:?}"),
    }
}

pub fn remark(response: &Response) -> &str {
    response.remark.as_deref().unwrap_or_default()
}

/// The bytes of the records of a pull's answer.
pub fn body_bytes(response: &Response) -> Vec<u8> {
    match &response.body {
        Body::None => Vec::new(),
        Body::Bytes(bytes) => bytes.to_vec(),
        Body::Stored { segments, bytes } => {
            let all = segments.concat();
            assert_eq!(all.len(), *bytes);
            all
        }
    }
}

/// Runs `check` over every record of an answer.
pub fn each_message(response: &Response, mut check: impl FnMut(&StoredMessage<'_>)) {
    let bytes = body_bytes(response);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        match StoredMessage::decode(rest).unwrap() {
            Record::Message(message) => {
                message.check_body_crc().unwrap();
                check(&message);
                rest = &rest[message.bytes.len()..];
            }
            Record::Blank(_) => panic!("a blank is never sent"),
        }
    }
}

/// Queue offset and body of every record of an answer.
pub fn messages(response: &Response) -> Vec<(u64, String)> {
    let mut found = Vec::new();
    each_message(response, |message| {
        let body = String::from_utf8(message.body.to_vec()).unwrap();
        found.push((message.queue_offset.0, body));
    });
    found
}

/// Code, remark and next offset of a pull's answer.
pub fn state(response: &Response) -> (i32, &str, i64) {
    let next = pulled(response).next_begin_offset;
    (response.code.0, remark(response), next)
}
