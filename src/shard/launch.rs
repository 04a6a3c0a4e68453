//! From a configuration to running threads, and back.

use super::acks::Acks;
use super::cold::ColdRequests;
use super::connection::Connections;
use super::files::ConfigFiles;
use super::mailbox::{MailSender, mailbox};
use super::outgoing::Outgoing;
use super::{Core, Phase, Shard};
use crate::broker::transactions::TransactionConfig;
use crate::broker::{self, Broker, BrokerConfig, Effects};
use crate::clock::Clock;
use crate::config::Config;
use crate::control::http::{self, WatchedShards};
use crate::control::mail::{FromShard, ToShard};
use crate::control::{
    ControlConfig, ExitReason, OpenNameServer, ShardIdentity, ToShardSender, run as run_control,
};
use crate::ids::ShardId;
use crate::io::fs::utc_offset_seconds;
use crate::io::uring::{Features, Uring, UringConfig};
use crate::io::{FileSystem, Io, WriteMode};
use crate::limits::{
    CONNECTIONS_MAX, FILES_ENOUGH, FILES_OF_PROCESS, FILES_OF_SHARD, MAILBOX_SLOTS, TIMER_MS_MAX,
};
use crate::protocol::command::Scratch;
use crate::protocol::delay::DelayLevels;
use crate::stats::Counters;
use crate::storage::{FlushMode, IndexConfig, IndexSizes, RetentionConfig, Store, StoreConfig};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
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
    /// Silence after which a connection is closed.
    idle_us: u64,
    connections_max: usize,
}

fn plan(config: &Config, shard: u16, core: Option<core_affinity::CoreId>) -> Plan {
    let root = config.shard_root(shard);
    Plan {
        id: ShardId(shard),
        core,
        listen: SocketAddr::new(config.bind, config.shard_port(shard)),
        broker: BrokerConfig {
            shard: ShardId(shard),
            cluster_name: config.text("brokerClusterName").to_owned(),
            broker_name: config.shard_name(shard),
            broker_id: 0,
            address: config.shard_address(shard),
            auto_create_topics: config.bool("autoCreateTopicEnable"),
            auto_create_groups: config.bool("autoCreateSubscriptionGroup"),
            default_topic_queue_nums: config.topic_queues(),
            message_bytes_max: config.integer("maxMessageSize") as u32,
            // Part of the answers to all sends, and there as long as the process.
            region: config.text("regionId").to_owned().leak(),
            trace_on: config.bool("traceOn"),
            trace_topic_enable: config.bool("traceTopicEnable"),
            long_polling: config.bool("longPollingEnable"),
            short_polling_ms: config.integer("shortPollingTimeMills") as u64,
            permission: config.integer("brokerPermission") as u32,
            lite_pull_enable: config.bool("litePullMessageEnable"),
            property_filter_enable: config.bool("enablePropertyFilter"),
            young_queues_start_at_zero: config.bool("youngQueuesStartAtZero"),
            settings: config.values(shard),
            offsets_persist_ms: config.integer("flushConsumerOffsetInterval") as u64,
            delay_levels: delay_levels(config),
            timers: config.bool("timerWheelEnable"),
            timer_ms_max: TIMER_MS_MAX,
            transactions: transactions(config),
        },
        store: StoreConfig {
            commit_log: config.commit_log(shard),
            consume_queue: config.consume_queue(shard),
            segment_bytes: config.integer("mappedFileSizeCommitLog") as u64,
            queue_file_bytes: config.integer("mappedFileSizeConsumeQueue") as u64,
            flush: flush_mode(config),
            tail_cache_bytes: config.integer("tailCacheBytes") as u64,
            entry_cache_bytes: config.integer("entryCacheBytes") as u64,
            disk_full_percent: config.integer("diskSpaceWarningLevelRatio") as u64,
            zero_fill: config.bool("zeroFillSegments"),
            delay_levels: delay_levels(config),
            retention: retention(config),
            index: IndexConfig {
                is_enabled: config.bool("messageIndexEnable"),
                sizes: IndexSizes {
                    slots: config.integer("maxHashSlotNum") as u32,
                    units: config.integer("maxIndexNum") as u32,
                },
            },
            root: root.clone(),
        },
        uring: UringConfig {
            write_mode: config.write_mode(),
            busy_poll_us: config.integer("busyPollMicros") as u64,
            features: match config.text("ringFeatures") {
                "plain" => Features::LEAST,
                _ => Features::BEST,
            },
            ..UringConfig::new(config.commit_log(shard))
        },
        idle_us: config.integer("serverChannelMaxIdleTimeSeconds") as u64 * 1_000_000,
        connections_max: CONNECTIONS_MAX,
    }
}

fn flush_mode(config: &Config) -> FlushMode {
    match config.text("flushDiskType") {
        "SYNC_FLUSH" => FlushMode::Sync,
        _ => FlushMode::Async {
            interval_ms: config.integer("flushIntervalCommitLog") as u64,
            bytes: config.integer("flushCommitLogBytes") as u64,
        },
    }
}

fn delay_levels(config: &Config) -> DelayLevels {
    DelayLevels::parse(config.text("messageDelayLevel")).unwrap_or_default()
}

fn retention(config: &Config) -> RetentionConfig {
    let number = |key| config.integer(key) as u64;
    let hours = config.text("deleteWhen").split(';');
    let hours = hours.filter_map(|hour| hour.trim().parse::<u32>().ok());
    let now_s = (Clock::new().now().wall_ms / 1000) as i64;
    RetentionConfig {
        reserved_ms: number("fileReservedTime") * 3_600_000,
        hours: hours.fold(0, |all, hour| all | 1 << hour),
        utc_offset_s: utc_offset_seconds(now_s),
        used_percent_max: number("diskMaxUsedSpaceRatio"),
        forced_percent: match config.bool("cleanFileForciblyEnable") {
            true => number("diskSpaceCleanForciblyRatio"),
            false => u64::MAX,
        },
        log_bytes_max: match number("maxCommitLogBytes") {
            0 => u64::MAX,
            bytes => bytes,
        },
        pace_ms: number("deleteCommitLogFilesInterval"),
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
    let connections_max = raise_file_limit(config.shards)?;
    let name_server = if config.embedded_namesrv {
        Some(open_name_server(config)?)
    } else {
        None
    };
    let watched = watched_shards(config);
    start_metrics(config, &watched)?;
    let (report, mail) = mpsc::channel(MAILBOX_SLOTS);
    let (shards, threads) = start_shards(config, connections_max, &report, &watched)?;
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

type Started = (Vec<(ShardIdentity, ToShardSender)>, Vec<JoinHandle<()>>);

/// Starts one thread per shard, all at once, and waits until every one serves. Where one can't, the others close
/// their stores again. **Errors**: the first reason.
fn start_shards(
    config: &Config,
    connections_max: usize,
    report: &mpsc::Sender<FromShard>,
    watched: &WatchedShards,
) -> Result<Started, String> {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let allowed: Vec<usize> = allowed.into_iter().map(|core| core.id).collect();
    let (mut starting, mut threads) = (Vec::new(), Vec::new());
    for shard in 0..config.shards {
        let core = config.core(shard, &allowed);
        if core.is_none() && !config.cores.is_empty() {
            tracing::warn!(
                shard,
                "not pinned: its processor (cores) is none that this process may use"
            );
        }
        let core = core.map(|id| core_affinity::CoreId { id });
        let plan = Plan {
            connections_max,
            ..plan(config, shard, core)
        };
        let identity = identity(&plan);
        let (started, start) = channel();
        let report = report.clone();
        let thread = std::thread::Builder::new()
            .name(format!("ringmq-shard-{shard}"))
            .spawn(move || shard_thread(&plan, report, &started))
            .map_err(|e| format!("a shard's thread can't be started: {e}"))?;
        threads.push(thread);
        starting.push((identity, start));
    }
    let (mut shards, mut failed) = (Vec::new(), None);
    for (identity, start) in starting {
        let shard = identity.shard;
        let ended = || format!("shard {shard} ended while it started");
        match start.recv().unwrap_or_else(|_| Err(ended())) {
            Ok(sender) => {
                let watching = sender.clone();
                watched.started(&identity, Box::new(move |mail| watching.try_send(mail)));
                let send = move |mail| sender.try_send(mail);
                shards.push((identity, Box::new(send) as ToShardSender));
            }
            Err(reason) => failed = failed.or(Some(reason)),
        }
    }
    let Some(reason) = failed else {
        return Ok((shards, threads));
    };
    for (_, send) in &mut shards {
        // A mailbox that nobody has written to has room.
        let _ = send(ToShard::Stop);
    }
    for thread in threads {
        // One that panicked has said so; the first reason is what counts.
        let _ = thread.join();
    }
    Err(reason)
}

fn watched_shards(config: &Config) -> WatchedShards {
    let plans = (0..config.shards).map(|shard| plan(config, shard, None));
    WatchedShards::new(plans.map(|plan| (identity(&plan), plan.store.root)))
}

/// Serves metrics from here on, so that a start can be watched. **Errors**: the port that the configuration names is
/// taken; the usual one may be, by another process of this kind.
fn start_metrics(config: &Config, watched: &WatchedShards) -> Result<(), String> {
    let Some(address) = config.metrics else {
        return Ok(());
    };
    match http::open(address) {
        Ok(listener) => {
            http::start(listener, watched.clone())?;
            tracing::info!(%address, "metrics, health and holds are served");
            Ok(())
        }
        Err(reason) if config.metrics_are_wanted => Err(reason),
        Err(reason) => {
            tracing::warn!("there are no metrics: {reason}");
            Ok(())
        }
    }
}

fn identity(plan: &Plan) -> ShardIdentity {
    let address = plan.broker.address;
    ShardIdentity {
        shard: plan.id,
        cluster: plan.broker.cluster_name.clone(),
        broker_name: plan.broker.broker_name.clone(),
        broker_id: plan.broker.broker_id,
        address: address.to_string(),
        ha_address: SocketAddr::new(address.ip(), address.port() + 1).to_string(),
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

/// How many clients a shard may have. **Errors**: fewer files than the shards need before the first client comes.
fn raise_file_limit(shards: u16) -> Result<usize, String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_ok() {
        limit = raised;
    }
    let needed = FILES_OF_PROCESS + FILES_OF_SHARD * u64::from(shards);
    match limit.current {
        Some(files) if files < needed => Err(format!(
            "the limit of open files is {files}, {shards} shards need {needed} and one more for each client: raise it (ulimit -n)"
        )),
        Some(files) => {
            let connections = connections_of_shard(files - needed, shards);
            if files < FILES_ENOUGH {
                tracing::warn!(
                    limit = files,
                    connections,
                    "few open files are allowed; further clients of a shard are refused (ulimit -n)"
                );
            }
            Ok(connections)
        }
        None => Ok(CONNECTIONS_MAX),
    }
}

/// Clients that a shard accepts, so that there are files left for the stores. A quarter is the name server's.
fn connections_of_shard(files: u64, shards: u16) -> usize {
    let share = files / 4 * 3 / u64::from(shards);
    (share as usize).clamp(1, CONNECTIONS_MAX)
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

/// A shard, and how to write to it.
pub type Built<I> = (Shard<I>, MailSender<ToShard>);

fn build(plan: &Plan, report: mpsc::Sender<FromShard>) -> Result<Built<Uring>, String> {
    for folder in [&plan.store.root, &plan.store.commit_log] {
        std::fs::create_dir_all(folder)
            .map_err(|e| format!("the folder {} can't be made: {e}", folder.display()))?;
    }
    let io = Uring::new(&plan.uring).map_err(|e| e.to_string())?;
    if io.features() != Features::BEST {
        tracing::info!(shard = %plan.id, features = ?io.features(), "the ring does without some features of Linux 6.1");
    }
    build_on(plan, io, report)
}

/// A shard of this configuration on a backend of a test.
#[cfg(any(test, feature = "testing"))]
pub fn build_simulated<I: Io>(
    config: &Config,
    io: I,
    report: mpsc::Sender<FromShard>,
) -> Result<Built<I>, String> {
    build_on(&plan(config, 0, None), io, report)
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
        shard = %plan.id, core = plan.core.map(|core| core.id), store = %root.display(), write_mode = write_mode(plan, io.write_mode()), clean = recovered.clean,
        segments = recovered.segments, queues = recovered.queues, end = %recovered.end,
        messages_scanned = recovered.scanned_messages, bytes_cut = recovered.cut_bytes,
        milliseconds = recovered.milliseconds, "store open"
    );
    if recovered.is_unmarked {
        tracing::warn!(shard = %plan.id, "the store has no durable mark: whatever its log's first unsound record was, the log ends there");
    }
    let mut broker = load_broker(plan, &io)?;
    restore_topics(plan, &store, &mut broker);
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
        accept_again_us: None,
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

/// How the log is written, and why.
fn write_mode(plan: &Plan, mode: WriteMode) -> &'static str {
    match (mode, plan.uring.write_mode.is_some()) {
        (WriteMode::Inline, true) => "inline (writeMode)",
        (WriteMode::Ring, true) => "ring (writeMode)",
        (WriteMode::Inline, false) => "inline (its file system can block)",
        (WriteMode::Ring, false) => "ring (its file system need not block)",
    }
}

fn transactions(config: &Config) -> TransactionConfig {
    TransactionConfig {
        timeout_ms: config.integer("transactionTimeOut") as u64,
        interval_ms: config.integer("transactionCheckInterval") as u64,
        checks_max: config.integer("transactionCheckMax") as u32,
        is_refused: config.bool("rejectTransactionMessage"),
    }
}

fn load_broker(plan: &Plan, io: &impl FileSystem) -> Result<Broker, String> {
    let read = |name: &str| -> Result<Option<Vec<u8>>, String> {
        let path = plan.store.root.join("config").join(name);
        read_config(&path, io)
    };
    let (topics, groups) = (read("topics.json")?, read("subscriptionGroup.json")?);
    let offsets = read("consumerOffset.json")?;
    let delays = read("delayOffset.json")?;
    let timers = read("ringmqTimers.json")?;
    let transactions = read("ringmqTransactions.json")?;
    let modes = read("messageRequestMode.json")?;
    let files = broker::ConfigFiles {
        topics: topics.as_deref(),
        groups: groups.as_deref(),
        offsets: offsets.as_deref(),
        delays: delays.as_deref(),
        timers: timers.as_deref(),
        transactions: transactions.as_deref(),
        modes: modes.as_deref(),
    };
    Broker::load(plan.broker.clone(), files)
}

/// Topics whose file was not replaced any more when the process before this one ended: it died, or its disk refused the
/// file until the stop gave up. The queues of deleted topics are not in the store any more.
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
        adopted: 0,
        closing: Vec::new(),
        pausing: Vec::new(),
        resumed: Vec::new(),
        fetches_wanted: Vec::new(),
        unsent: VecDeque::new(),
        report: Box::new(send),
        connections_max: plan.connections_max,
        idle_us: plan.idle_us,
        stuck_scan_us: 0,
        idle_scan_us: None,
        has_delivered: false,
        next_opaque: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_stores() {
        assert_eq!(connections_of_shard(0, 2), 1);
        assert_eq!(connections_of_shard(904, 2), 339);
        assert_eq!(connections_of_shard(1 << 20, 2), CONNECTIONS_MAX);
    }
}
