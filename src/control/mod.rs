//! The control thread: the embedded name server, registration with external ones, signals, stop. Runs on
//! `tokio-uring`, never on the path of a message; talks to shards through bounded queues.
//!
//! One loop owns the state of shards and of the stop. Tasks beside it each own one thing that may take its time: a
//! connection of the name server, an external name server. They share the embedded name server's state and
//! otherwise only report. Nothing waits inside the loop, and without traffic it wakes for deadlines only.

mod connect;
mod embedded;
mod external;
pub mod http;
mod log;
pub mod mail;
mod server;
mod shards;
mod signals;

pub use signals::{Signals, catch_signals};

use crate::clock::Clock;
use crate::ids::ShardId;
use crate::namesrv::{Broker, NameServer, Settings, Source};
use crate::protocol::bodies::{self, Registration, TopicConfig};
use crate::protocol::calls::{CallError, CallResult, ForwardedCall};
use bytes::Bytes;
use embedded::Embedded;
use external::{External, Report, RouteWanted};
use mail::{FromShard, ToShard};
use shards::Shard;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep_until};

/// How often shards are registered again. Source: apache/rocketmq `registerNameServerPeriod`.
const REGISTER_PERIOD: Duration = Duration::from_secs(30);
/// The embedded name server answers once all shards have registered, or after this long: before, routes would miss
/// some of them. Clients wait in the backlog.
const SHARDS_TIMEOUT: Duration = Duration::from_secs(1);
/// Most that a stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Most that external name servers may delay it.
const UNREGISTER_TIMEOUT: Duration = Duration::from_millis(1500);
/// A second signal this soon is the first one, sent twice: some tools signal the process and its group.
const SIGNAL_REPEAT: Duration = Duration::from_millis(300);
/// A shard's full mailbox is tried again after this long.
const MAIL_RETRY: Duration = Duration::from_millis(20);
/// Registrations wait at most this long for a shard that has not taken up a new topic. One that serves does within
/// a turn.
const SPREAD_TIMEOUT: Duration = Duration::from_secs(1);
/// Mail taken before anything else is looked at.
const MAIL_BATCH: usize = 1024;

/// How one shard is known outside.
#[derive(Clone, Debug)]
pub struct ShardIdentity {
    pub shard: ShardId,
    pub cluster: String,
    pub broker_name: String,
    pub broker_id: i64,
    pub address: String,
    pub ha_address: String,
}

/// Gives mail to a shard; `Err` when its box is full.
pub type ToShardSender = Box<dyn Fn(ToShard) -> Result<(), ToShard> + Send>;

pub struct ControlConfig {
    /// The embedded name server, from [`open_name_server`]; `None`: off.
    pub name_server: Option<OpenNameServer>,
    /// External name servers, `host:port`.
    pub external: Vec<String>,
    pub shards: Vec<(ShardIdentity, ToShardSender)>,
    pub mail: Receiver<FromShard>,
    /// See [`catch_signals`].
    pub signals: Signals,
}

/// An embedded name server that holds its port and has read its file, and does not answer yet.
#[derive(Debug)]
pub struct OpenNameServer {
    listener: TcpListener,
    state: NameServer,
    kv_path: PathBuf,
}

impl OpenNameServer {
    /// Where it listens; the kernel's choice where port 0 was asked for.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Binds the port and reads `kvConfig.json`. Called before anything else starts, so that what is wrong is told at once.
///
/// **Errors**: one line that says what to do. A file that can't be read is one of them: starting without it would
/// overwrite it.
pub fn open_name_server(address: SocketAddr, kv_path: PathBuf) -> Result<OpenNameServer, String> {
    let listener = server::bind(address)?;
    let kv_file = match std::fs::read(&kv_path) {
        Ok(contents) => Some(contents),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(format!("{}: {error}", kv_path.display())),
    };
    let settings = Settings {
        listen_port: listener.local_addr().map_or(0, |a| a.port()),
        ..Settings::default()
    };
    let state = NameServer::new(settings, kv_file.as_deref())
        .map_err(|error| format!("{}: {error}", kv_path.display()))?;
    Ok(OpenNameServer {
        listener,
        state,
        kv_path,
    })
}

/// Why the process ends.
#[derive(Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// Asked to, and everything was closed in order.
    Stopped,
    /// A shard failed, or did not stop in time, or there was a second signal.
    Failed(String),
}

/// A stop that has begun.
struct Stop {
    since: Instant,
    result: Result<(), String>,
}

struct Control {
    embedded: Option<Rc<Embedded>>,
    /// Until the embedded name server accepts, and when it does at the latest.
    listener: Option<(TcpListener, Instant)>,
    external: Vec<ExternalState>,
    shards: Vec<Shard>,
    reports: UnboundedReceiver<Report>,
    next_register: Instant,
    /// Registrations wait for shards that take up a new topic, until this time; `None`: none does.
    spread_deadline: Option<Instant>,
    stop: Option<Stop>,
}

struct ExternalState {
    external: External,
    /// Shards don't wait for it.
    is_lost: bool,
    has_finished: bool,
}

/// Runs until all shards have stopped. Called on a thread of its own.
pub fn run(config: ControlConfig) -> ExitReason {
    let runtime = match tokio_uring::Runtime::new(&tokio_uring::builder()) {
        Ok(runtime) => runtime,
        Err(error) => {
            return ExitReason::Failed(format!("the control thread has no io_uring: {error}"));
        }
    };
    runtime.block_on(async move {
        let ControlConfig {
            name_server,
            external,
            shards,
            mail,
            mut signals,
        } = config;
        signals.take_over();
        let bytes = signals.bytes.set_nonblocking(true);
        let bytes = bytes.and_then(|()| tokio::net::UnixStream::from_std(signals.bytes));
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => return ExitReason::Failed(format!("signals can't be handled: {error}")),
        };
        let control = Control::start(name_server, external, shards);
        control.serve(mail, bytes).await
    })
}

impl Control {
    fn start(
        name_server: Option<OpenNameServer>,
        addresses: Vec<String>,
        shards: Vec<(ShardIdentity, ToShardSender)>,
    ) -> Self {
        let now = Instant::now();
        let (mut embedded, mut listener) = (None, None);
        if let Some(open) = name_server {
            let shared = Rc::new(Embedded::new(open.state, Clock::new(), open.kv_path));
            tokio_uring::spawn(Rc::clone(&shared).expire());
            embedded = Some(shared);
            listener = Some((open.listener, now + SHARDS_TIMEOUT));
        }
        let (sender, reports) = unbounded_channel();
        let identities = shards.iter().map(|(identity, _)| identity.clone());
        let external = addresses
            .into_iter()
            .enumerate()
            .map(|(server, address)| ExternalState {
                external: External::start(server, address, identities.clone(), sender.clone()),
                is_lost: false,
                has_finished: false,
            });
        Self {
            embedded,
            listener,
            external: external.collect(),
            shards: shards
                .into_iter()
                .map(|(identity, send)| Shard::new(identity, send))
                .collect(),
            reports,
            next_register: now + REGISTER_PERIOD,
            spread_deadline: None,
            stop: None,
        }
    }

    async fn serve(
        mut self,
        mut mail: Receiver<FromShard>,
        mut signals: tokio::net::UnixStream,
    ) -> ExitReason {
        let (mut byte, mut has_signals, mut has_mail) = ([0; 1], true, true);
        loop {
            self.accept_if_ready();
            let deadline = self.next_deadline();
            tokio::select! {
                from = mail.recv(), if has_mail => match from {
                    Some(from) => self.on_mail(from, &mut mail),
                    // After a stop, name servers may still have to answer.
                    None if self.shards.iter().all(|s| s.has_stopped) => has_mail = false,
                    None => return ExitReason::Failed("all shards are gone".to_owned()),
                },
                Some(report) = self.reports.recv() => self.on_report(report),
                result = signals.read_exact(&mut byte), if has_signals => match result {
                    Ok(_) => if let Some(reason) = self.on_signal() {
                        return reason;
                    },
                    Err(_) => has_signals = false,
                },
                () = sleep_until(deadline) => {}
            }
            let now = Instant::now();
            self.pass_registrations(now);
            if now >= self.next_register {
                self.next_register = now + REGISTER_PERIOD;
                (0..self.shards.len()).for_each(|index| self.register(index, None));
            }
            for shard in &mut self.shards {
                shard.settle(now);
                shard.outbox.flush();
            }
            if let Some(reason) = self.finished(now) {
                return reason;
            }
        }
    }

    fn accept_if_ready(&mut self) {
        let (Some(embedded), Some((_, latest))) = (&self.embedded, &self.listener) else {
            return;
        };
        let has_all = self.shards.iter().all(|s| s.registered.is_some());
        if has_all || Instant::now() >= *latest {
            let embedded = Rc::clone(embedded);
            if let Some((listener, _)) = self.listener.take() {
                let bounds = server::Bounds::default();
                tokio_uring::spawn(server::accept(listener, embedded, bounds));
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        let mut next = self.next_register;
        let mut consider = |at: Instant| next = next.min(at);
        self.spread_deadline.into_iter().for_each(&mut consider);
        if let Some((_, latest)) = &self.listener {
            consider(*latest);
        }
        for shard in &self.shards {
            shard.next_deadline().into_iter().for_each(&mut consider);
            if !shard.outbox.is_empty() {
                consider(Instant::now() + MAIL_RETRY);
            }
        }
        if let Some(stop) = &self.stop {
            let unregistered = stop.since + UNREGISTER_TIMEOUT;
            if Instant::now() < unregistered {
                consider(unregistered);
            }
            consider(stop.since + STOP_TIMEOUT);
        }
        next
    }

    /// Takes all mail that is there, and of several registrations of a shard only the last.
    fn on_mail(&mut self, first: FromShard, mail: &mut Receiver<FromShard>) {
        self.on_letter(first);
        for _ in 1..MAIL_BATCH {
            match mail.try_recv() {
                Ok(letter) => self.on_letter(letter),
                Err(_) => break,
            }
        }
    }

    /// Passes on what shards have registered, unless a new topic is still on its way to some of them: clients learn of
    /// its queues on all shards at once. A producer that saw those of one shard alone would send to no other for as long
    /// as it keeps the route, 30 s with most clients.
    fn pass_registrations(&mut self, now: Instant) {
        let is_spreading = self.shards.iter().any(|s| s.adopting > 0);
        if is_spreading && self.spread_deadline.is_some_and(|deadline| now < deadline) {
            return;
        }
        self.spread_deadline = None;
        if is_spreading {
            tracing::warn!("a shard has not taken up a new topic within {SPREAD_TIMEOUT:?}");
            self.shards.iter_mut().for_each(|s| s.adopting = 0);
        }
        for index in 0..self.shards.len() {
            let received = self.shards.get_mut(index).and_then(|s| s.received.take());
            if let Some((sequence, body)) = received {
                self.on_registration(index, sequence, body);
            }
        }
    }

    /// A shard's new topic goes to all others.
    fn spread(&mut self, shard: ShardId, topic: &TopicConfig) {
        for other in self.shards.iter_mut().filter(|s| s.identity.shard != shard) {
            other.outbox.push(ToShard::CreateTopic(topic.clone()));
            other.adopting += 1;
            let deadline = Instant::now() + SPREAD_TIMEOUT;
            self.spread_deadline.get_or_insert(deadline);
        }
    }

    fn on_letter(&mut self, letter: FromShard) {
        match letter {
            FromShard::Ready { shard } => tracing::debug!(%shard, "shard serves"),
            FromShard::Register {
                shard,
                sequence,
                body,
            } => {
                if let Some(shard) = self.shard(shard) {
                    shard.received = Some((sequence, body));
                }
            }
            FromShard::TopicCreated { shard, topic } => self.spread(shard, &topic),
            FromShard::TopicsAdopted { shard, count } => {
                if let Some(shard) = self.shard(shard) {
                    shard.adopting = shard.adopting.saturating_sub(count);
                }
            }
            FromShard::Call { shard, call } => self.forward(shard, call),
            FromShard::CallAnswered { origin, id, result } => self.answer(origin, id, result),
            FromShard::Route { shard, id, topic } => self.route(RouteWanted { shard, id, topic }),
            FromShard::Stopped { shard } => {
                if let Some(stopped) = self.shard(shard) {
                    stopped.has_stopped = true;
                }
                self.begin_stop(Err(format!("shard {shard} stopped by itself")));
            }
            FromShard::Failed { shard, reason } => {
                tracing::error!(%shard, reason, "shard failed");
                if let Some(failed) = self.shard(shard) {
                    failed.has_stopped = true;
                }
                self.begin_stop(Err(format!("shard {shard}: {reason}")));
            }
        }
    }

    /// Hands a call on to the shard behind this one; when it has been everywhere, it goes back unanswered.
    fn forward(&mut self, shard: ShardId, call: Box<ForwardedCall>) {
        let at = self.shards.iter().position(|s| s.identity.shard == shard);
        let next = at.map_or(0, |at| (at + 1) % self.shards.len());
        let Some(next) = self.shards.get_mut(next) else {
            return;
        };
        let mail = if next.identity.shard == call.origin {
            let result = Err(CallError::NotConnected);
            ToShard::CallAnswered {
                id: call.id,
                result,
            }
        } else {
            ToShard::Call(call)
        };
        next.outbox.push(mail);
    }

    /// The route of a topic, from the own name server or from an external one that can be reached.
    fn route(&mut self, wanted: RouteWanted) {
        if let Some(embedded) = &self.embedded {
            let route = embedded.route(&wanted.topic);
            return self.answer(wanted.shard, wanted.id, Ok(route));
        }
        let (shard, id) = (wanted.shard, wanted.id);
        let reachable = self.external.iter().find(|state| !state.is_lost);
        if !reachable.is_some_and(|state| state.external.ask_route(wanted)) {
            self.answer(
                shard,
                id,
                Ok(external::no_route("no name server is reached")),
            );
        }
    }

    /// What a shard's call came to.
    fn answer(&mut self, shard: ShardId, id: u64, result: CallResult) {
        if let Some(shard) = self.shard(shard) {
            shard.outbox.push(ToShard::CallAnswered { id, result });
        }
    }

    fn shard(&mut self, id: ShardId) -> Option<&mut Shard> {
        let shard = self.shards.iter_mut().find(|s| s.identity.shard == id);
        if shard.is_none() {
            tracing::error!(shard = %id, "mail of an unknown shard");
        }
        shard
    }

    fn on_registration(&mut self, index: usize, sequence: u64, body: Bytes) {
        let Some(shard) = self.shards.get_mut(index) else {
            return;
        };
        match bodies::decode::<Registration>(&body) {
            Ok(read) => {
                let table = Rc::new(read.topic_config_serialize_wrapper);
                shard.registered = Some((body, table));
                self.register(index, Some(sequence));
            }
            Err(error) => {
                tracing::error!(shard = %shard.identity.shard, %error, "the shard's registration can't be read");
                shard.confirm_later(sequence, Vec::new(), Instant::now());
            }
        }
    }

    /// Registers a shard with all name servers; with a sequence, the shard is told once they have it.
    fn register(&mut self, index: usize, sequence: Option<u64>) {
        let Some(shard) = self.shards.get_mut(index) else {
            return;
        };
        let Some((body, table)) = shard.registered.clone() else {
            return;
        };
        if let Some(embedded) = self.embedded.as_ref().filter(|_| self.stop.is_none()) {
            let identity = &shard.identity;
            let broker = Broker {
                cluster: &identity.cluster,
                name: &identity.broker_name,
                id: identity.broker_id,
                address: &identity.address,
                ha_address: &identity.ha_address,
                timeout_ms: None,
                acting_master: None,
            };
            let source = Source::Shard(identity.shard.0);
            if let Err(reason) = embedded.register(&broker, &table, source) {
                tracing::error!(shard = %identity.shard, reason, "the shard was not registered");
            }
        }
        let mut servers = Vec::new();
        for (server, state) in self.external.iter().enumerate() {
            let generation = state.external.register(index, &body);
            if !state.is_lost {
                servers.push((server, generation));
            }
        }
        if let Some(sequence) = sequence {
            let deadline = Instant::now() + external::TIMEOUT;
            shard.confirm_later(sequence, servers, deadline);
        }
    }

    fn on_report(&mut self, report: Report) {
        match report {
            Report::Route { shard, id, answer } => self.answer(shard, id, Ok(answer)),
            Report::Answered {
                server,
                shard,
                generation,
            } => {
                if let Some(state) = self.external.get_mut(server) {
                    state.is_lost = false;
                }
                if let Some(shard) = self.shards.get_mut(shard) {
                    shard.on_answered(server, generation);
                }
            }
            Report::Lost { server } => {
                if let Some(state) = self.external.get_mut(server) {
                    state.is_lost = true;
                }
                self.shards.iter_mut().for_each(|s| s.on_lost(server));
            }
            Report::Finished { server } => {
                if let Some(state) = self.external.get_mut(server) {
                    state.has_finished = true;
                }
            }
        }
    }

    fn on_signal(&mut self) -> Option<ExitReason> {
        match &self.stop {
            None => {
                tracing::info!("told to stop");
                self.begin_stop(Ok(()));
                None
            }
            Some(stop) if stop.since.elapsed() < SIGNAL_REPEAT => None,
            Some(_) => Some(ExitReason::Failed(
                "second signal, ended at once".to_owned(),
            )),
        }
    }

    /// Name servers forget the shards while these stop; the first reason counts.
    fn begin_stop(&mut self, result: Result<(), String>) {
        if self.stop.is_some() {
            return;
        }
        self.stop = Some(Stop {
            since: Instant::now(),
            result,
        });
        for shard in &mut self.shards {
            if let Some(embedded) = &self.embedded {
                embedded.unregister(Source::Shard(shard.identity.shard.0));
            }
            if !shard.has_stopped {
                shard.outbox.push(ToShard::Stop);
            }
        }
        self.external.iter().for_each(|e| e.external.stop());
    }

    fn finished(&self, now: Instant) -> Option<ExitReason> {
        let stop = self.stop.as_ref()?;
        let elapsed = now.duration_since(stop.since);
        let waits: Vec<String> = self
            .shards
            .iter()
            .filter(|s| !s.has_stopped)
            .map(|s| s.identity.shard.to_string())
            .collect();
        if waits.is_empty() {
            let has_unregistered = self.external.iter().all(|e| e.has_finished);
            return (has_unregistered || elapsed >= UNREGISTER_TIMEOUT).then(|| {
                let failed = |reason: &String| ExitReason::Failed(reason.clone());
                stop.result
                    .as_ref()
                    .err()
                    .map_or(ExitReason::Stopped, failed)
            });
        }
        (elapsed >= STOP_TIMEOUT).then(|| {
            let seconds = STOP_TIMEOUT.as_secs();
            let text = format!("shard {} did not stop within {seconds} s", waits.join(", "));
            ExitReason::Failed(match &stop.result {
                Ok(()) => text,
                Err(reason) => format!("{reason}; {text}"),
            })
        })
    }
}
