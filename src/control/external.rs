//! Registration with external name servers: one task and one connection per address, so that a slow or dead one
//! delays nobody else (apache/rocketmq#7870). Shards that want to know the route of a topic ask over it too.
//!
//! A task has no queue of registrations: it knows the newest body of every shard and which one the name server has
//! answered. However slow the name server is, at most one registration per shard is under way, and the next one
//! carries everything that changed meanwhile.
//!
//! ```text
//! waiting for a first body -> connecting -> connected: register all, then on change and every 30 s
//!                                 ^              |
//!                                 +-- pause <----+ closed, or no answer within 3 s
//! ```

use super::ShardIdentity;
use super::connect::{Link, Reply, connect};
use super::log::Limit;
use crate::ids::ShardId;
use crate::limits::CLIENT_CALLS_MAX;
use crate::protocol::calls::ClientAnswer;
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::Encoding;
use crate::protocol::hash::body_crc;
use crate::protocol::response::Request;
use bytes::{Bytes, BytesMut};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, sleep_until};

/// Most that one registration may take, and one attempt to connect.
pub const TIMEOUT: Duration = Duration::from_secs(3);
/// Most that unregistering may take at a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Pauses between attempts to connect: doubled from the first to the last, back to the first after an answer.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_LAST: Duration = Duration::from_secs(10);

/// What a task tells the main loop. At most one per answer or lost connection, so bounded by what the name servers do.
#[derive(Debug, PartialEq, Eq)]
pub enum Report {
    /// The name server has answered a shard's registration of this generation.
    Answered {
        server: usize,
        shard: usize,
        generation: u64,
    },
    /// What it says of a topic, or why it says nothing.
    Route {
        shard: ShardId,
        id: u64,
        answer: ClientAnswer,
    },
    /// It can't be reached; nobody waits for it until it answers again.
    Lost { server: usize },
    /// It has been told of the stop, as far as it could be.
    Finished { server: usize },
}

/// A shard wants to know the route of a topic.
#[derive(Debug)]
pub struct RouteWanted {
    pub shard: ShardId,
    /// Its number for the question.
    pub id: u64,
    pub topic: String,
}

/// The answer where there is none of a name server.
pub fn no_route(remark: &str) -> ClientAnswer {
    ClientAnswer {
        code: ResponseCode::SYSTEM_ERROR.0,
        remark: Some(remark.to_owned()),
        body: Bytes::new(),
    }
}

/// The main loop's end of a task.
pub struct External {
    inbox: Rc<Inbox>,
}

struct Inbox {
    shards: RefCell<Vec<Wanted>>,
    routes: RefCell<VecDeque<RouteWanted>>,
    is_stopping: Cell<bool>,
    changed: Notify,
}

/// What a name server has to know of one shard.
struct Wanted {
    identity: ShardIdentity,
    /// Newest body; `None` until the shard has one.
    body: Option<Bytes>,
    /// Counts bodies, and repetitions every 30 s.
    generation: u64,
}

impl External {
    /// Starts the task of the name server with this index.
    pub fn start(
        server: usize,
        address: String,
        identities: impl Iterator<Item = ShardIdentity>,
        reports: UnboundedSender<Report>,
    ) -> Self {
        let wanted = identities.map(|identity| Wanted {
            identity,
            body: None,
            generation: 0,
        });
        let inbox = Rc::new(Inbox {
            shards: RefCell::new(wanted.collect()),
            routes: RefCell::default(),
            is_stopping: Cell::new(false),
            changed: Notify::new(),
        });
        let task = Task {
            server,
            address,
            inbox: Rc::clone(&inbox),
            reports,
            is_reachable: Cell::new(None),
            refused_log: Limit::new(),
        };
        tokio_uring::spawn(task.run());
        Self { inbox }
    }

    /// Registers a shard at once; the generation comes back in [`Report::Answered`].
    pub fn register(&self, shard: usize, body: &Bytes) -> u64 {
        let mut shards = self.inbox.shards.borrow_mut();
        let Some(wanted) = shards.get_mut(shard) else {
            return 0;
        };
        wanted.body = Some(body.clone());
        wanted.generation += 1;
        self.inbox.changed.notify_one();
        wanted.generation
    }

    /// False at the limit; otherwise [`Report::Route`] follows.
    pub fn ask_route(&self, wanted: RouteWanted) -> bool {
        let mut routes = self.inbox.routes.borrow_mut();
        let has_room = routes.len() < CLIENT_CALLS_MAX;
        if has_room {
            routes.push_back(wanted);
            self.inbox.changed.notify_one();
        }
        has_room
    }

    /// Unregisters all shards and ends; [`Report::Finished`] follows within a second or so.
    pub fn stop(&self) {
        self.inbox.is_stopping.set(true);
        self.inbox.changed.notify_one();
    }
}

struct Task {
    server: usize,
    address: String,
    inbox: Rc<Inbox>,
    reports: UnboundedSender<Report>,
    /// For the log: a line per change. `None` until it answered or failed once.
    is_reachable: Cell<Option<bool>>,
    refused_log: Limit,
}

/// A request that waits for its answer.
struct Pending {
    of: Asked,
    deadline: Instant,
}

enum Asked {
    Registration { shard: usize, generation: u64 },
    Route(RouteWanted),
}

impl Pending {
    fn is_of(&self, wanted: usize) -> bool {
        matches!(self.of, Asked::Registration { shard, .. } if shard == wanted)
    }
}

/// What goes on over one connection.
struct Exchange {
    link: Link,
    next_opaque: i32,
    pending: HashMap<i32, Pending>,
    /// Generation that was sent last, by shard.
    sent: Vec<u64>,
    /// Some registration was answered.
    has_answered: bool,
}

impl Task {
    async fn run(self) {
        let mut pause = PAUSE_FIRST;
        self.wait_for_work().await;
        while !self.inbox.is_stopping.get() {
            let connected = tokio::select! {
                connected = connect(&self.address, TIMEOUT) => connected,
                () = self.wait_for_stop() => break,
            };
            let error = match connected {
                Err(error) => error,
                Ok(link) => {
                    let mut exchange = Exchange::new(link, self.inbox.shards.borrow().len());
                    let ended = self.serve(&mut exchange).await;
                    self.give_up(exchange.pending.drain().map(|(_, pending)| pending.of));
                    if exchange.has_answered {
                        pause = PAUSE_FIRST;
                    }
                    match ended {
                        Ok(()) => break,
                        Err(error) => error,
                    }
                }
            };
            self.note_lost(&error);
            self.pause(pause).await;
            pause = (pause * 2).min(PAUSE_LAST);
        }
        self.report(Report::Finished {
            server: self.server,
        });
    }

    /// Until a shard has something to register, or the stop. A connection without traffic would only be closed.
    async fn wait_for_work(&self) {
        let has_work = || self.inbox.shards.borrow().iter().any(|w| w.body.is_some());
        while !has_work() && !self.inbox.is_stopping.get() {
            self.inbox.changed.notified().await;
        }
    }

    /// What changes meanwhile is seen once there is a connection.
    async fn wait_for_stop(&self) {
        while !self.inbox.is_stopping.get() {
            self.inbox.changed.notified().await;
        }
    }

    /// Changes don't shorten the pause: they are registered with the rest once the name server is back.
    async fn pause(&self, pause: Duration) {
        tokio::select! {
            () = sleep(pause) => {}
            () = self.wait_for_stop() => {}
        }
    }

    fn note_lost(&self, error: &str) {
        if self.is_reachable.replace(Some(false)) != Some(false) {
            tracing::warn!(address = self.address, error, "name server not reached");
        }
        self.report(Report::Lost {
            server: self.server,
        });
        let waiting = std::mem::take(&mut *self.inbox.routes.borrow_mut());
        self.give_up(waiting.into_iter().map(Asked::Route));
    }

    /// Questions that this name server doesn't answer any more.
    fn give_up(&self, asked: impl Iterator<Item = Asked>) {
        for asked in asked {
            if let Asked::Route(RouteWanted { shard, id, .. }) = asked {
                let answer = no_route("the name server is not reached any more");
                self.report(Report::Route { shard, id, answer });
            }
        }
    }

    fn report(&self, report: Report) {
        // The main loop lives as long as the runtime.
        let _ = self.reports.send(report);
    }

    /// Registers over one connection until the stop. **Errors**: why the connection can't go on.
    async fn serve(&self, exchange: &mut Exchange) -> Result<(), String> {
        loop {
            if self.inbox.is_stopping.get() {
                self.unregister(exchange).await;
                return Ok(());
            }
            self.send_changes(exchange).await?;
            self.send_questions(exchange).await?;
            let deadline = exchange.pending.values().map(|p| p.deadline).min();
            // Without anything pending, this is only a wake-up without a cause.
            let deadline = deadline.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                reply = exchange.link.reply() => self.on_reply(exchange, reply?),
                () = self.inbox.changed.notified() => {}
                () = sleep_until(deadline) => {
                    if !exchange.pending.is_empty() {
                        return Err(format!("no answer within {} s", TIMEOUT.as_secs()));
                    }
                }
            }
        }
    }

    /// Sends the newest body of each shard that has one the name server was not sent, one at a time per shard.
    async fn send_changes(&self, exchange: &mut Exchange) -> Result<(), String> {
        for shard in 0..exchange.sent.len() {
            let job = {
                let shards = self.inbox.shards.borrow();
                let wanted = shards.get(shard);
                wanted.and_then(|w| {
                    let body = w.body.clone()?;
                    Some((w.identity.clone(), body, w.generation))
                })
            };
            let Some((identity, body, generation)) = job else {
                continue;
            };
            let is_under_way = exchange.pending.values().any(|p| p.is_of(shard));
            if is_under_way || exchange.sent.get(shard) == Some(&generation) {
                continue;
            }
            let opaque = exchange.take_opaque();
            exchange
                .link
                .send(frame(&identity, Some(&body), opaque))
                .await?;
            if let Some(sent) = exchange.sent.get_mut(shard) {
                *sent = generation;
            }
            exchange.pending.insert(
                opaque,
                Pending {
                    of: Asked::Registration { shard, generation },
                    deadline: Instant::now() + TIMEOUT,
                },
            );
        }
        Ok(())
    }

    async fn send_questions(&self, exchange: &mut Exchange) -> Result<(), String> {
        while exchange.pending.len() < CLIENT_CALLS_MAX {
            let Some(wanted) = self.inbox.routes.borrow_mut().pop_front() else {
                break;
            };
            let opaque = exchange.take_opaque();
            let question = route_frame(&wanted.topic, opaque);
            exchange.pending.insert(
                opaque,
                Pending {
                    of: Asked::Route(wanted),
                    deadline: Instant::now() + TIMEOUT,
                },
            );
            exchange.link.send(question).await?;
        }
        Ok(())
    }

    fn on_reply(&self, exchange: &mut Exchange, reply: Reply) {
        let Some(pending) = exchange.pending.remove(&reply.opaque) else {
            return;
        };
        let (shard, generation) = match pending.of {
            Asked::Registration { shard, generation } => (shard, generation),
            Asked::Route(RouteWanted { shard, id, .. }) => {
                let answer = ClientAnswer {
                    code: reply.code,
                    remark: reply.remark,
                    body: reply.body,
                };
                self.report(Report::Route { shard, id, answer });
                return;
            }
        };
        exchange.has_answered = true;
        match self.is_reachable.replace(Some(true)) {
            Some(true) => {}
            None => tracing::info!(address = self.address, "name server reached"),
            Some(false) => tracing::info!(address = self.address, "name server reached again"),
        }
        if reply.code != ResponseCode::SUCCESS.0
            && let Some(left_out) = self.refused_log.admit(Instant::now())
        {
            let (code, remark) = (reply.code, reply.remark);
            let address = &self.address;
            tracing::warn!(
                address,
                shard,
                code,
                remark,
                lines_left_out = left_out,
                "the name server refused a registration"
            );
        }
        self.report(Report::Answered {
            server: self.server,
            shard,
            generation,
        });
    }

    /// Best effort: a name server drops the shards anyway when the connection ends.
    async fn unregister(&self, exchange: &mut Exchange) {
        let all = async {
            self.give_up(exchange.pending.drain().map(|(_, pending)| pending.of));
            for shard in 0..exchange.sent.len() {
                let identity = {
                    let shards = self.inbox.shards.borrow();
                    let registered = shards.get(shard).filter(|w| w.body.is_some());
                    registered.map(|w| w.identity.clone())
                };
                if let Some(identity) = identity {
                    let opaque = exchange.take_opaque();
                    exchange.link.send(frame(&identity, None, opaque)).await?;
                    exchange.pending.insert(
                        opaque,
                        Pending {
                            of: Asked::Registration {
                                shard,
                                generation: 0,
                            },
                            deadline: Instant::now(),
                        },
                    );
                }
            }
            while !exchange.pending.is_empty() {
                let reply = exchange.link.reply().await?;
                exchange.pending.remove(&reply.opaque);
            }
            Ok::<(), String>(())
        };
        tokio::select! {
            result = all => if let Err(error) = result {
                tracing::warn!(address = self.address, error, "not unregistered");
            },
            () = sleep(STOP_TIMEOUT) => {
                tracing::warn!(address = self.address, "the name server did not answer the unregistration");
            }
        }
    }
}

impl Exchange {
    fn new(link: Link, shards: usize) -> Self {
        Self {
            link,
            next_opaque: 0,
            pending: HashMap::new(),
            sent: vec![0; shards],
            has_answered: false,
        }
    }

    fn take_opaque(&mut self) -> i32 {
        self.next_opaque = self.next_opaque.wrapping_add(1);
        self.next_opaque
    }
}

/// Request 103, or 104 without a body.
fn frame(identity: &ShardIdentity, body: Option<&Bytes>, opaque: i32) -> Vec<u8> {
    let id = identity.broker_id.to_string();
    let crc = body.map_or(0, |body| body_crc(body)).to_string();
    let mut fields = vec![
        ("brokerAddr", identity.address.as_str()),
        ("brokerId", &id),
        ("brokerName", &identity.broker_name),
        ("clusterName", &identity.cluster),
    ];
    if body.is_some() {
        fields.extend([
            ("bodyCrc32", crc.as_str()),
            ("compressed", "false"),
            ("haServerAddr", &identity.ha_address),
        ]);
    }
    let code = match body {
        Some(_) => RequestCode::REGISTER_BROKER,
        None => RequestCode::UNREGISTER_BROKER,
    };
    let mut out = BytesMut::new();
    Request {
        code: code.0,
        opaque,
        one_way: false,
        encoding: Encoding::Json,
        fields: &fields,
        body: body.map_or(&[], |body| body),
    }
    .encode(&mut out);
    out.to_vec()
}

/// Request 105.
fn route_frame(topic: &str, opaque: i32) -> Vec<u8> {
    let mut out = BytesMut::new();
    Request {
        code: RequestCode::GET_ROUTEINFO_BY_TOPIC.0,
        opaque,
        one_way: false,
        encoding: Encoding::Json,
        fields: &[("acceptStandardJsonOnly", "true"), ("topic", topic)],
        body: &[],
    }
    .encode(&mut out);
    out.to_vec()
}
