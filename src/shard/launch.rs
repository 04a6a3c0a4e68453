//! From a configuration to running threads, and back.

use super::acks::Acks;
use super::cold::ColdRequests;
use super::connection::Connections;
use super::files::ConfigFiles;
use super::mailbox::{MailSender, mailbox};
use super::outgoing::Outgoing;
use super::{Core, Phase, Shard};
use crate::broker::{self, Broker, BrokerConfig, Effects};
use crate::config::Config;
use crate::control::mail::{FromShard, ToShard};
use crate::control::{
    ControlConfig, ExitReason, OpenNameServer, ShardIdentity, run as run_control,
};
use crate::ids::ShardId;
use crate::io::uring::{Uring, UringConfig};
use crate::io::{FileSystem, Io};
use crate::limits::{MAILBOX_SLOTS, RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS};
use crate::protocol::command::Scratch;
use crate::stats::Counters;
use crate::storage::{FlushMode, Store, StoreConfig};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::mpsc;

/// What one shard is made from.
#[derive(Clone, Debug)]
struct Plan {
    id: ShardId,
    core: Option<core_affinity::CoreId>,
    listen: SocketAddr,
    broker: BrokerConfig,
    store: StoreConfig,
    uring: UringConfig,
}

fn plan(config: &Config, shard: u16, core: Option<core_affinity::CoreId>) -> Plan {
    let root = config.shard_root(shard);
    let flush = match config.text("flushDiskType") {
        "SYNC_FLUSH" => FlushMode::Sync,
        _ => FlushMode::Async {
            interval_ms: config.integer("flushIntervalCommitLog") as u64,
            bytes: config.integer("flushCommitLogBytes") as u64,
        },
    };
    Plan {
        id: ShardId(shard),
        core,
        listen: SocketAddr::new(config.bind, config.shard_port(shard)),
        broker: BrokerConfig {
            cluster_name: config.text("brokerClusterName").to_owned(),
            broker_name: config.shard_name(shard),
            broker_id: 0,
            address: config.shard_address(shard),
            auto_create_topics: config.bool("autoCreateTopicEnable"),
            auto_create_groups: config.bool("autoCreateSubscriptionGroup"),
            default_topic_queue_nums: config.topic_queues(),
            message_bytes_max: config.integer("maxMessageSize") as u32,
            region: "DefaultRegion".to_owned(),
            trace_on: config.bool("traceOn"),
            trace_topic_enable: config.bool("traceTopicEnable"),
            long_polling: config.bool("longPollingEnable"),
            short_polling_ms: config.integer("shortPollingTimeMills") as u64,
            permission: config.integer("brokerPermission") as u32,
            lite_pull_enable: config.bool("litePullMessageEnable"),
            young_queues_start_at_zero: config.bool("youngQueuesStartAtZero"),
            offsets_persist_ms: config.integer("flushConsumerOffsetInterval") as u64,
        },
        store: StoreConfig {
            commit_log: config.commit_log(shard),
            consume_queue: config.consume_queue(shard),
            segment_bytes: config.integer("mappedFileSizeCommitLog") as u64,
            queue_file_bytes: config.integer("mappedFileSizeConsumeQueue") as u64,
            flush,
            tail_cache_bytes: config.integer("tailCacheBytes") as u64,
            entry_cache_bytes: config.integer("entryCacheBytes") as u64,
            zero_fill: config.bool("zeroFillSegments"),
            root: root.clone(),
        },
        uring: UringConfig {
            receive_buffers: RECEIVE_BUFFERS,
            receive_buffer_bytes: RECEIVE_BUFFER_BYTES,
            write_mode: config.write_mode(),
            store: config.commit_log(shard),
        },
    }
}

/// Runs the process until it is told to stop. **Errors**: one line that says what could not be had.
pub fn run(config: &Config) -> Result<(), String> {
    config
        .notes
        .iter()
        .for_each(|note| tracing::info!("{note}"));
    config
        .warnings
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    let signals =
        crate::control::catch_signals().map_err(|e| format!("signals can't be handled: {e}"))?;
    raise_file_limit();
    let name_server = if config.embedded_namesrv {
        Some(open_name_server(config)?)
    } else {
        None
    };
    let (report, mail) = mpsc::channel(MAILBOX_SLOTS);
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let allowed: Vec<usize> = allowed.into_iter().map(|core| core.id).collect();
    let mut shards = Vec::new();
    let mut threads = Vec::new();
    for shard in 0..config.shards {
        let core = config.core(shard, &allowed);
        if core.is_none() && !config.cores.is_empty() {
            tracing::warn!(
                shard,
                "not pinned: its processor (cores) is none that this process may use"
            );
        }
        let core = core.map(|id| core_affinity::CoreId { id });
        let plan = plan(config, shard, core);
        let identity = ShardIdentity {
            shard: plan.id,
            cluster: plan.broker.cluster_name.clone(),
            broker_name: plan.broker.broker_name.clone(),
            broker_id: plan.broker.broker_id,
            address: plan.broker.address.to_string(),
            ha_address: SocketAddr::new(plan.broker.address.ip(), plan.broker.address.port() + 1)
                .to_string(),
        };
        let (started, start) = channel();
        let report = report.clone();
        let thread = std::thread::Builder::new()
            .name(format!("ringmq-shard-{shard}"))
            .spawn(move || shard_thread(&plan, report, &started))
            .map_err(|e| format!("a shard's thread can't be started: {e}"))?;
        threads.push(thread);
        let sender = start
            .recv()
            .map_err(|_| format!("shard {shard} ended while it started"))??;
        let send = move |mail| sender.try_send(mail);
        shards.push((identity, Box::new(send) as crate::control::ToShardSender));
    }
    drop(report);
    announce(config);
    let control = ControlConfig {
        name_server,
        external: config.namesrv_addresses.clone(),
        shards,
        mail,
        signals,
    };
    let reason = run_control(control);
    if reason == ExitReason::Stopped {
        for thread in threads {
            thread
                .join()
                .map_err(|_| "a shard's thread panicked".to_owned())?;
        }
        tracing::info!("stopped");
    }
    match reason {
        ExitReason::Stopped => Ok(()),
        ExitReason::Failed(reason) => Err(reason),
    }
}

fn open_name_server(config: &Config) -> Result<OpenNameServer, String> {
    let port = config.integer("namesrvListenPort") as u16;
    let kv_path = config.root.join("kvConfig.json");
    crate::control::open_name_server(SocketAddr::new(config.bind, port), kv_path)
}

fn announce(config: &Config) {
    let reach = if config.bind.is_loopback() {
        "this machine only (bindAddress)"
    } else {
        "the network"
    };
    for shard in 0..config.shards {
        tracing::info!(
            shard,
            broker = config.shard_name(shard),
            listen = %SocketAddr::new(config.bind, config.shard_port(shard)),
            clients_are_told = %config.shard_address(shard),
            "shard serves"
        );
    }
    let port = config.integer("namesrvListenPort");
    if config.embedded_namesrv {
        tracing::info!(address = %SocketAddr::new(config.bind, port as u16), "name server serves");
    } else {
        tracing::info!(
            addresses = config.namesrv_addresses.join(";"),
            "registered with external name servers"
        );
    }
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        shards = config.shards,
        open_to = reach,
        "ready"
    );
}

fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!(
            limit = limit.current,
            "the limit of open files could not be raised"
        );
    }
}

/// The whole life of a shard's thread.
fn shard_thread(
    plan: &Plan,
    report: mpsc::Sender<FromShard>,
    started: &Sender<Result<MailSender<ToShard>, String>>,
) {
    if let Some(core) = plan.core {
        core_affinity::set_for_current(core);
    }
    let failed = report.clone();
    let built = build(plan, report);
    let mut shard = match built {
        Ok((shard, sender)) => {
            // The launcher waits for exactly this.
            let _ = started.send(Ok(sender));
            shard
        }
        Err(reason) => {
            let _ = started.send(Err(reason));
            return;
        }
    };
    if let Err(error) = shard.run() {
        let reason = format!("io_uring failed: {error}");
        let _ = failed.blocking_send(FromShard::Failed {
            shard: plan.id,
            reason,
        });
    }
}

type Built<I> = (Shard<I>, MailSender<ToShard>);

fn build(plan: &Plan, report: mpsc::Sender<FromShard>) -> Result<Built<Uring>, String> {
    for folder in [&plan.store.root, &plan.store.commit_log] {
        std::fs::create_dir_all(folder)
            .map_err(|e| format!("the folder {} can't be made: {e}", folder.display()))?;
    }
    let io = Uring::new(&plan.uring).map_err(|e| e.to_string())?;
    build_on(plan, io, report)
}

/// A shard on any backend, its store recovered and its listener open. **Errors**: one line that says what could not
/// be had.
fn build_on<I: Io>(
    plan: &Plan,
    mut io: I,
    report: mpsc::Sender<FromShard>,
) -> Result<Built<I>, String> {
    let root = &plan.store.root;
    let now = io.now();
    let (store, recovered) =
        Store::open(plan.store.clone(), now, &mut io).map_err(|e| e.to_string())?;
    tracing::info!(
        shard = %plan.id, store = %root.display(), write_mode = ?io.write_mode(), clean = recovered.clean,
        segments = recovered.segments, queues = recovered.queues, end = %recovered.end,
        messages_scanned = recovered.scanned_messages, bytes_cut = recovered.cut_bytes,
        milliseconds = recovered.milliseconds, "store open"
    );
    let mut broker = load_broker(plan, &io)?;
    if !recovered.clean {
        restore_topics(plan, &store, &mut broker);
    }
    let clamped = broker.offsets.clamp(|topic, queue_id| {
        store
            .queue(topic, queue_id)
            .map_or(0, |queue| store.bounds(queue).max.0)
    });
    if clamped > 0 {
        tracing::warn!(shard = %plan.id, clamped, "committed offsets beyond the end of their queues were set to the end");
    }
    let (listener, _) = io.listen(plan.listen).map_err(|e| {
        format!(
            "shard {} can't listen on {}: {e}; set listenPort or stop the other process",
            plan.id, plan.listen
        )
    })?;
    let doorbell = io.doorbell().map_err(|e| format!("no doorbell: {e}"))?;
    let (sender, mailbox) = mailbox(MAILBOX_SLOTS, doorbell);
    let mut core = core(plan, store, broker, report);
    core.now = now;
    core.effects.register = true;
    let mut shard = Shard {
        core,
        io,
        listener,
        listening: true,
        accept_armed: false,
        mailbox,
        completions: Vec::new(),
        arrivals: Vec::new(),
        fetches: Vec::new(),
        lent: Vec::new(),
        starved: Vec::new(),
    };
    shard.begin();
    Ok((shard, sender))
}

fn load_broker(plan: &Plan, io: &impl FileSystem) -> Result<Broker, String> {
    let read = |name: &str| -> Result<Option<Vec<u8>>, String> {
        let path = plan.store.root.join("config").join(name);
        read_config(&path, io)
    };
    let (topics, groups) = (read("topics.json")?, read("subscriptionGroup.json")?);
    let offsets = read("consumerOffset.json")?;
    let files = broker::ConfigFiles {
        topics: topics.as_deref(),
        groups: groups.as_deref(),
        offsets: offsets.as_deref(),
    };
    Broker::load(plan.broker.clone(), files)
}

/// Topics whose file was not replaced any more when the process before this one died.
fn restore_topics(plan: &Plan, store: &Store, broker: &mut Broker) {
    let queues = store.queues();
    let names = queues.iter().map(|(topic, id, _)| (topic.as_str(), *id));
    broker.topics.restore(&plan.broker, names);
}

/// A configuration file; where it is missing, empty or no JSON, the one before it, which every replacement leaves
/// beside it. Apache does the same, and its replacement leaves a moment without the file.
fn read_config(path: &Path, io: &impl FileSystem) -> Result<Option<Vec<u8>>, String> {
    let backup = path.with_extension("json.bak");
    let whole = read_file(path, io)?;
    if whole.as_deref().is_some_and(is_json) || !io.exists(&backup) {
        return Ok(whole);
    }
    let before = read_file(&backup, io)?;
    if before.as_deref().is_some_and(is_json) {
        tracing::warn!(file = %path.display(), instead = %backup.display(),
            "a configuration file is missing or broken, the one before it is used");
        return Ok(before);
    }
    Ok(whole)
}

fn is_json(bytes: &[u8]) -> bool {
    crate::protocol::bodies::decode::<serde_json::Map<String, serde_json::Value>>(bytes).is_ok()
}

fn read_file(path: &Path, io: &impl FileSystem) -> Result<Option<Vec<u8>>, String> {
    if !io.exists(path) {
        return Ok(None);
    }
    io.read_whole(path)
        .map(Some)
        .map_err(|e| format!("{}: {e}", path.display()))
}

fn core(plan: &Plan, store: Store, broker: Broker, report: mpsc::Sender<FromShard>) -> Core {
    let send = move |mail| {
        report.try_send(mail).map_err(|e| match e {
            mpsc::error::TrySendError::Full(mail) | mpsc::error::TrySendError::Closed(mail) => mail,
        })
    };
    Core {
        id: plan.id,
        store,
        broker,
        counters: Counters::default(),
        phase: Phase::Serving,
        now: crate::clock::Now::default(),
        connections: Connections::default(),
        outgoing: Outgoing::default(),
        acks: Acks::default(),
        cold: ColdRequests::default(),
        files: ConfigFiles::new(&plan.store.root),
        effects: Effects::default(),
        scratch: Scratch::default(),
        registrations: VecDeque::new(),
        registration_sequence: 0,
        closing: Vec::new(),
        fetches_wanted: Vec::new(),
        unsent: VecDeque::new(),
        report: Box::new(send),
        idle_scan_us: None,
        next_opaque: 0,
    }
}
