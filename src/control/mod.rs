//! The control thread: name server connections, registration, signals. Runs on `tokio-uring`, never on the path of a
//! message; talks to shards through bounded queues.

mod external;
pub mod mail;
mod server;

use crate::clock::Clock;
use crate::ids::ShardId;
use crate::namesrv::{Broker, NameServer, Source};
use crate::protocol::bodies;
use bytes::Bytes;
use external::External;
use mail::{FromShard, ToShard};
use std::cell::RefCell;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until, timeout};

/// How often shards are registered again. Source: apache/rocketmq `registerNameServerPeriod`.
const REGISTER_PERIOD: Duration = Duration::from_secs(30);
/// Most that a stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// The embedded name server's listener, bound already; `None`: off.
    pub name_server: Option<TcpListener>,
    /// External name servers, `host:port`.
    pub external: Vec<String>,
    pub shards: Vec<(ShardIdentity, ToShardSender)>,
    pub mail: Receiver<FromShard>,
    /// A byte per SIGTERM or SIGINT, non-blocking; see [`catch_signals`].
    pub signals: UnixStream,
    /// `kvConfig.json` of the embedded name server.
    pub kv_path: PathBuf,
}

/// Why the process ends.
#[derive(Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// Asked to, and everything was closed in order.
    Stopped,
    /// A shard failed, or did not stop in time.
    Failed(String),
}

/// From here on SIGTERM and SIGINT end the process in order, also while it still starts.
pub fn catch_signals() -> std::io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
}

struct Control {
    state: Rc<RefCell<NameServer>>,
    embedded: bool,
    external: Vec<External>,
    shards: Vec<(ShardIdentity, ToShardSender)>,
    /// Last registration body of each shard.
    bodies: Vec<Option<Bytes>>,
    stopped: Vec<bool>,
    clock: Clock,
    kv_path: PathBuf,
    /// Registrations that all name servers have answered: shard and sequence. One per registration, so bounded by them.
    confirmed: UnboundedSender<(usize, u64)>,
    /// Set once a stop has begun.
    stop: Option<(Instant, Result<(), String>)>,
}

/// Runs until all shards have stopped. Called on a thread of its own.
pub fn run(config: ControlConfig) -> ExitReason {
    tokio_uring::start(async move {
        match Control::start(
            &config.kv_path,
            config.name_server,
            &config.external,
            config.shards,
        ) {
            Ok((control, confirmed)) => control.serve(config.mail, config.signals, confirmed).await,
            Err(reason) => ExitReason::Failed(reason),
        }
    })
}

impl Control {
    fn start(
        kv_path: &std::path::Path,
        name_server: Option<TcpListener>,
        external: &[String],
        shards: Vec<(ShardIdentity, ToShardSender)>,
    ) -> Result<(Self, UnboundedReceiver<(usize, u64)>), String> {
        let (confirmed, confirmations) = unbounded_channel();
        let kv = std::fs::read(kv_path).ok();
        let state = Rc::new(RefCell::new(NameServer::new(kv.as_deref())?));
        let clock = Clock::new();
        let embedded = name_server.is_some();
        if let Some(listener) = name_server {
            tokio_uring::spawn(server::accept(listener, Rc::clone(&state), clock));
        }
        let control = Self {
            state,
            embedded,
            external: external
                .iter()
                .map(|address| External::start(address.clone()))
                .collect(),
            bodies: vec![None; shards.len()],
            stopped: vec![false; shards.len()],
            shards,
            clock,
            kv_path: kv_path.to_owned(),
            confirmed,
            stop: None,
        };
        Ok((control, confirmations))
    }

    async fn serve(
        mut self,
        mut mail: Receiver<FromShard>,
        signals: UnixStream,
        mut confirmed: UnboundedReceiver<(usize, u64)>,
    ) -> ExitReason {
        let mut signals = match tokio::net::UnixStream::from_std(signals) {
            Ok(signals) => signals,
            Err(error) => return ExitReason::Failed(format!("signals can't be handled: {error}")),
        };
        let mut byte = [0; 1];
        let mut next_register = Instant::now() + REGISTER_PERIOD;
        loop {
            let deadline = self.next_deadline(next_register);
            tokio::select! {
                from = mail.recv() => match from {
                    Some(from) => self.on_mail(from),
                    None => return ExitReason::Failed("all shards are gone".to_owned()),
                },
                Some((index, sequence)) = confirmed.recv() => {
                    let _ = (self.shards[index].1)(ToShard::Registered { sequence });
                }
                _ = signals.read_exact(&mut byte) => self.on_signal().await,
                () = sleep_until(deadline) => {}
            }
            if let Some(reason) = self.finished() {
                return reason;
            }
            if Instant::now() >= next_register {
                next_register += REGISTER_PERIOD;
                (0..self.shards.len()).for_each(|index| self.register(index, None));
            }
            self.state.borrow_mut().expire(self.clock.now());
            self.save_kv();
        }
    }

    fn next_deadline(&self, next_register: Instant) -> Instant {
        let now = self.clock.now().monotonic_us;
        let expiry = self.state.borrow().next_expiry();
        let expiry =
            expiry.map(|at| Instant::now() + Duration::from_micros(at.saturating_sub(now)));
        let stop = self.stop.as_ref().map(|(at, _)| *at);
        [Some(next_register), expiry, stop]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(next_register)
    }

    fn on_mail(&mut self, from: FromShard) {
        match from {
            FromShard::Ready { shard } => tracing::debug!(%shard, "shard serves"),
            FromShard::Register {
                shard,
                sequence,
                body,
            } => {
                let index = usize::from(shard.0);
                self.bodies[index] = Some(body);
                self.register(index, Some(sequence));
            }
            FromShard::TopicCreated { shard, topic } => {
                for (identity, send) in &self.shards {
                    if identity.shard != shard && send(ToShard::CreateTopic(topic.clone())).is_err()
                    {
                        tracing::error!(shard = %identity.shard, topic = topic.topic_name, "mailbox full, topic not created there");
                    }
                }
            }
            FromShard::Stopped { shard } => self.stopped[usize::from(shard.0)] = true,
            FromShard::Failed { shard, reason } => {
                tracing::error!(%shard, reason, "shard failed");
                self.stopped[usize::from(shard.0)] = true;
                self.begin_stop(Err(format!("shard {shard}: {reason}")));
            }
        }
    }

    /// Registers a shard everywhere; tells it when it waits for that.
    fn register(&mut self, index: usize, sequence: Option<u64>) {
        let Some(body) = self.bodies[index].clone() else {
            return;
        };
        let (identity, _) = &self.shards[index];
        if self.embedded {
            let broker = Broker {
                cluster: &identity.cluster,
                name: &identity.broker_name,
                id: identity.broker_id,
                address: &identity.address,
                ha_address: &identity.ha_address,
                timeout_ms: None,
            };
            let registered =
                bodies::decode(&body)
                    .map_err(|e| e.to_string())
                    .and_then(|registration| {
                        let source = Source::Shard(identity.shard.0);
                        self.state.borrow_mut().register(
                            &broker,
                            registration,
                            source,
                            self.clock.now(),
                        )
                    });
            if let Err(reason) = registered {
                tracing::error!(shard = %identity.shard, reason, "the shard was not registered");
            }
        }
        let waits: Vec<_> = self
            .external
            .iter()
            .map(|e| e.register(identity, body.clone()))
            .collect();
        if let Some(sequence) = sequence {
            self.confirm(index, sequence, waits);
        }
    }

    /// Answers the shard once every name server has answered, or its time is up.
    fn confirm(&self, index: usize, sequence: u64, waits: Vec<tokio::sync::oneshot::Receiver<()>>) {
        let send = &self.shards[index].1;
        if waits.is_empty() {
            // A full box means thousands of waiting confirmations; a later one covers this one.
            if send(ToShard::Registered { sequence }).is_err() {
                tracing::error!(sequence, "mailbox full, a confirmation was not delivered");
            }
            return;
        }
        let confirmed = self.confirmed.clone();
        tokio_uring::spawn(async move {
            for wait in waits {
                let _ = timeout(external::TIMEOUT, wait).await;
            }
            // The receiver lives as long as this runtime.
            let _ = confirmed.send((index, sequence));
        });
    }

    async fn on_signal(&mut self) {
        if self.stop.is_some() {
            tracing::error!("second signal, ending at once");
            std::process::exit(1);
        }
        tracing::info!("told to stop");
        let waits: Vec<_> = self
            .external
            .iter()
            .flat_map(|e| self.shards.iter().map(|(i, _)| e.unregister(i)))
            .collect();
        for wait in waits {
            let _ = timeout(Duration::from_secs(1), wait).await;
        }
        self.begin_stop(Ok(()));
    }

    fn begin_stop(&mut self, result: Result<(), String>) {
        if self.stop.is_some() {
            return;
        }
        self.stop = Some((Instant::now() + STOP_TIMEOUT, result));
        for (identity, send) in &self.shards {
            if send(ToShard::Stop).is_err() {
                tracing::error!(shard = %identity.shard, "mailbox full, the shard was not told to stop");
            }
        }
    }

    fn finished(&mut self) -> Option<ExitReason> {
        let (deadline, result) = self.stop.as_ref()?;
        if self.stopped.iter().all(|stopped| *stopped) {
            return Some(match result {
                Ok(()) => ExitReason::Stopped,
                Err(reason) => ExitReason::Failed(reason.clone()),
            });
        }
        (Instant::now() >= *deadline)
            .then(|| ExitReason::Failed("a shard did not stop within 5 s".to_owned()))
    }

    fn save_kv(&self) {
        let Some(contents) = self.state.borrow_mut().take_kv_file() else {
            return;
        };
        if let Err(error) = crate::io::fs::replace_file(&self.kv_path, &contents, true) {
            tracing::warn!(%error, "kvConfig.json was not written");
        }
    }
}
