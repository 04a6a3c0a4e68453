//! All keys: what they take, their defaults, what they do. Parsing, checks, `--help` and the warnings about keys
//! without an effect come from these tables.

use crate::protocol::delay::DEFAULT_LEVELS;

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Integer {
        min: i64,
        max: i64,
    },
    /// One of these words, whatever their case.
    OneOf(&'static [&'static str]),
    /// Name of a cluster or a broker; they become topics, so the characters are those of topics.
    Name,
    Ip,
    /// An IP address or a host name.
    Host,
    /// `host:port;host:port`.
    Addresses,
    Path,
    /// Processors: `0-3,6`.
    Processors,
    /// Hours of the day: `04` or `04;16`.
    Hours,
    /// Delay levels: `1s 5s 10m 2h`.
    Delays,
    Text,
}

impl Kind {
    /// What is allowed, for messages and `--help`.
    pub fn allowed(self) -> String {
        match self {
            Kind::Bool => "true|false".to_owned(),
            Kind::Integer { min, max } => format!("{min}..{max}"),
            Kind::OneOf(words) => words.join("|"),
            Kind::Name => "NAME".to_owned(),
            Kind::Ip => "IP".to_owned(),
            Kind::Host => "IP|HOST".to_owned(),
            Kind::Addresses => "HOST:PORT;…".to_owned(),
            Kind::Path => "PATH".to_owned(),
            Kind::Processors => "0-3,6".to_owned(),
            Kind::Hours => "HH;…".to_owned(),
            Kind::Delays => "1s 5s 1m 2h…".to_owned(),
            Kind::Text => "TEXT".to_owned(),
        }
    }
}

/// What becomes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Full,
    /// Checked, and reported as not in effect yet.
    Later,
    /// Anything but these values is refused: to go on without it would be worse than not to start. The reason is the
    /// key's help. None at all: the key has to be left out.
    Only(&'static [&'static str]),
}

#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    /// Another spelling that means the same; the name itself wins.
    pub alias: &'static str,
    pub area: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    pub help: &'static str,
    pub effect: Effect,
}

const fn key(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key {
        name,
        alias: "",
        area: "",
        kind,
        default,
        help,
        effect: Effect::Full,
    }
}

const fn aliased(alias: &'static str, key: Key) -> Key {
    Key { alias, ..key }
}

const fn later(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key {
        effect: Effect::Later,
        ..key(name, kind, default, help)
    }
}

/// The first value is the default.
const fn only(
    name: &'static str,
    kind: Kind,
    values: &'static [&'static str],
    help: &'static str,
) -> Key {
    let default = match values {
        [default, ..] => default,
        [] => "",
    };
    Key {
        effect: Effect::Only(values),
        ..key(name, kind, default, help)
    }
}

const fn int(min: i64, max: i64) -> Kind {
    Kind::Integer { min, max }
}

const KIB: i64 = 1024;
const MIB: i64 = 1024 * KIB;
const GIB: i64 = 1024 * MIB;

const NAMES: &[Key] = &[
    key(
        "brokerClusterName",
        Kind::Name,
        "DefaultCluster",
        "cluster that the shards belong to",
    ),
    key(
        "brokerName",
        Kind::Name,
        "broker-a",
        "name of the broker; with several shards name-0, name-1, …",
    ),
    key(
        "shards",
        int(0, 256),
        "0",
        "brokers in this process; 0: as many as the store has, a new one gets one per processor",
    ),
    key(
        "cores",
        Kind::Processors,
        "",
        "processors for the shards, in turn; default: all that are allowed",
    ),
];

const NETWORK: &[Key] = &[
    key(
        "bindAddress",
        Kind::Ip,
        "127.0.0.1",
        "address to listen on; 0.0.0.0 opens broker and name server to the network",
    ),
    key(
        "listenPort",
        int(1, 65_534),
        "10911",
        "port of the first shard; shard i listens on this + 10 i",
    ),
    key(
        "brokerIP1",
        Kind::Host,
        "",
        "what clients are told to connect to; default: bindAddress, or the first address of this machine",
    ),
    key(
        "serverChannelMaxIdleTimeSeconds",
        int(1, 86_400),
        "120",
        "seconds after which a client is disconnected that neither sends nor takes anything",
    ),
    key(
        "brokerPermission",
        int(0, 7),
        "6",
        "what name servers are told: 4 read, 2 write",
    ),
];

const METRICS: &[Key] = &[
    aliased(
        "metricsPromExporterPort",
        key(
            "metricsPort",
            int(0, 65_535),
            "5557",
            "port of metrics, health and holds, on bindAddress; 0: off",
        ),
    ),
    key(
        "metricsExporterType",
        Kind::OneOf(&["PROM", "DISABLE", "OTLP_GRPC", "LOG"]),
        "PROM",
        "PROM: Prometheus fetches them; DISABLE: off; the others are not there and mean PROM",
    ),
];

const NAME_SERVER: &[Key] = &[
    key(
        "namesrvAddr",
        Kind::Addresses,
        "",
        "name servers to register with; default: $NAMESRV_ADDR",
    ),
    key(
        "embeddedNamesrv",
        Kind::OneOf(&["auto", "true", "false"]),
        "auto",
        "name server in this process; auto: unless namesrvAddr is set",
    ),
    key(
        "namesrvListenPort",
        int(1, 65_535),
        "9876",
        "port of the name server in this process",
    ),
];

const STORE: &[Key] = &[
    key(
        "storePathRootDir",
        Kind::Path,
        "ringmq-data",
        "folder of the store; with several shards shard-0, shard-1, … in it",
    ),
    key(
        "storePathCommitLog",
        Kind::Path,
        "",
        "folder of the commit log, with one shard only; default: commitlog in the store",
    ),
    key(
        "storePathConsumeQueue",
        Kind::Path,
        "",
        "folder of the consume queues, with one shard only; default: consumequeue in the store",
    ),
    aliased(
        "mapedFileSizeCommitLog",
        key(
            "mappedFileSizeCommitLog",
            int(64 * KIB, 2 * GIB),
            "1073741824",
            "bytes of a commit log segment",
        ),
    ),
    aliased(
        "mapedFileSizeConsumeQueue",
        key(
            "mappedFileSizeConsumeQueue",
            int(20, GIB),
            "6000000",
            "bytes of a consume queue file, a multiple of 20",
        ),
    ),
    key(
        "messageIndexEnable",
        Kind::Bool,
        "true",
        "index files: messages are found by their keys",
    ),
    key(
        "maxHashSlotNum",
        int(1, 100_000_000),
        "5000000",
        "hash slots of an index file; 4 bytes of memory for each that is used",
    ),
    key(
        "maxIndexNum",
        int(2, 100_000_000),
        "20000000",
        "keys of an index file, which is sparse",
    ),
    key(
        "flushDiskType",
        Kind::OneOf(&["ASYNC_FLUSH", "SYNC_FLUSH"]),
        "ASYNC_FLUSH",
        "acknowledge and deliver messages when written, or when flushed",
    ),
    key(
        "flushIntervalCommitLog",
        int(1, 60_000),
        "200",
        "ASYNC_FLUSH: milliseconds until written bytes are flushed",
    ),
    key(
        "flushCommitLogBytes",
        int(4 * KIB, GIB),
        "1048576",
        "ASYNC_FLUSH: written bytes that are flushed at once",
    ),
    key(
        "diskSpaceWarningLevelRatio",
        int(10, 100),
        "90",
        "percent of the log's disk in use from which on sends are refused, until there is room again",
    ),
    key(
        "flushConsumerOffsetInterval",
        int(100, 60_000),
        "5000",
        "milliseconds until committed offsets are persisted",
    ),
    key(
        "zeroFillSegments",
        Kind::Bool,
        "true",
        "fill segments with zeros ahead of use, for faster flushes",
    ),
    key(
        "busyPollMicros",
        int(0, 1000),
        "0",
        "microseconds that a shard polls for work before it sleeps, while traffic makes that pay; costs up to a whole processor",
    ),
    key(
        "ringFeatures",
        Kind::OneOf(&["auto", "plain"]),
        "auto",
        "auto: what the kernel has; plain: as on a kernel before 6.0, slower",
    ),
    key(
        "writeMode",
        Kind::OneOf(&["auto", "inline", "ring"]),
        "auto",
        "how the log is written; auto: by file system",
    ),
    key(
        "tailCacheBytes",
        int(64 * KIB, 64 * GIB),
        "67108864",
        "recent log bytes that a shard keeps in memory",
    ),
    key(
        "entryCacheBytes",
        int(64 * KIB, 16 * GIB),
        "33554432",
        "consume queue entries that a shard keeps in memory, in bytes",
    ),
];

const RETENTION: &[Key] = &[
    key(
        "fileReservedTime",
        int(1, 1_000_000),
        "72",
        "hours for which messages are kept",
    ),
    key(
        "deleteWhen",
        Kind::Hours,
        "04",
        "hours of the day, in this machine's time zone, at which older segments are deleted",
    ),
    key(
        "diskMaxUsedSpaceRatio",
        int(1, 99),
        "75",
        "used percent of the disk from which on older segments are deleted at any hour",
    ),
    key(
        "cleanFileForciblyEnable",
        Kind::Bool,
        "true",
        "delete segments of any age when the disk is full (diskSpaceCleanForciblyRatio), consumed or not",
    ),
    key(
        "diskSpaceCleanForciblyRatio",
        int(1, 99),
        "85",
        "used percent of the disk from which on it counts as full",
    ),
    key(
        "maxCommitLogBytes",
        int(0, i64::MAX),
        "0",
        "bytes of segments above which a shard deletes the oldest, whatever its age; 0: no limit",
    ),
    key(
        "deleteCommitLogFilesInterval",
        int(0, 60_000),
        "100",
        "milliseconds between two segments that a shard deletes",
    ),
];

const TOPICS: &[Key] = &[
    key(
        "autoCreateTopicEnable",
        Kind::Bool,
        "true",
        "create topics at their first send",
    ),
    key(
        "defaultTopicQueueNums",
        int(1, 1024),
        "8",
        "queues of such a topic, divided over the shards",
    ),
    key(
        "autoCreateSubscriptionGroup",
        Kind::Bool,
        "true",
        "create consumer groups at their first heartbeat",
    ),
    key(
        "maxMessageSize",
        int(1, 4 * MIB),
        "4194304",
        "largest message body in bytes",
    ),
    key(
        "traceTopicEnable",
        Kind::Bool,
        "false",
        "create RMQ_SYS_TRACE_TOPIC",
    ),
    key(
        "regionId",
        Kind::Name,
        "DefaultRegion",
        "part of every message, and of what clients trace",
    ),
    key(
        "traceOn",
        Kind::Bool,
        "true",
        "tell clients to trace their messages",
    ),
];

const CONSUMERS: &[Key] = &[
    key(
        "longPollingEnable",
        Kind::Bool,
        "true",
        "hold pulls for as long as the client asks",
    ),
    key(
        "shortPollingTimeMills",
        int(1, 29_000),
        "1000",
        "hold of a pull in milliseconds when longPollingEnable is false",
    ),
    key(
        "litePullMessageEnable",
        Kind::Bool,
        "true",
        "serve lite pull consumers",
    ),
    key(
        "enablePropertyFilter",
        Kind::Bool,
        "true",
        "filter by SQL92 expressions over the properties of messages",
    ),
    key(
        "youngQueuesStartAtZero",
        Kind::Bool,
        "true",
        "a new group starts at 0 where a queue's first message is still in memory, as with Apache; false: where the client says",
    ),
];

/// Checked now, in effect in a later version.
const LATER: &[Key] = &[
    key(
        "messageDelayLevel",
        Kind::Delays,
        DEFAULT_LEVELS,
        "delay levels",
    ),
    key(
        "timerWheelEnable",
        Kind::Bool,
        "true",
        "delays of any length",
    ),
    key(
        "transactionTimeOut",
        int(1, 86_400_000),
        "6000",
        "milliseconds until a half message is checked",
    ),
    key(
        "transactionCheckMax",
        int(1, 1000),
        "15",
        "checks of a half message",
    ),
    key(
        "transactionCheckInterval",
        int(1, 86_400_000),
        "30000",
        "milliseconds between checks of half messages",
    ),
    key(
        "rejectTransactionMessage",
        Kind::Bool,
        "false",
        "refuse half messages (16)",
    ),
    later("enableLmq", Kind::Bool, "false", "light queues"),
    later("inSyncReplicas", int(1, 16), "1", "replicas"),
    later("slaveReadEnable", Kind::Bool, "false", "read from replicas"),
    later(
        "haListenPort",
        int(1, 65_535),
        "10912",
        "port of the replication",
    ),
    later("brokerIP2", Kind::Host, "", "address of the replication"),
    later(
        "storePathIndex",
        Kind::Path,
        "",
        "folder of the message index",
    ),
];

/// Promises that this version can't keep, and would break silently.
const ONLY: &[Key] = &[
    only(
        "brokerId",
        int(0, i64::MAX),
        &["0"],
        "there are no replicas in this version: every shard is a master",
    ),
    only(
        "brokerRole",
        Kind::OneOf(&["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]),
        &["ASYNC_MASTER", "SYNC_MASTER"],
        "there are no replicas in this version",
    ),
    only(
        "aclEnable",
        Kind::Bool,
        &["false"],
        "there is no access control in this version; without it keep bindAddress on this machine or a trusted network",
    ),
    only(
        "authenticationEnabled",
        Kind::Bool,
        &["false"],
        "there is no access control in this version; without it keep bindAddress on this machine or a trusted network",
    ),
    only(
        "authorizationEnabled",
        Kind::Bool,
        &["false"],
        "there is no access control in this version; without it keep bindAddress on this machine or a trusted network",
    ),
    only(
        "enableControllerMode",
        Kind::Bool,
        &["false"],
        "there are no replicas in this version",
    ),
    only(
        "enableDLegerCommitLog",
        Kind::Bool,
        &["false"],
        "there are no replicas in this version, and the log of a DLedger group has another format",
    ),
    only(
        "storeType",
        Kind::OneOf(&["default", "defaultRocksDB"]),
        &["default"],
        "consume queues in RocksDB can't be read",
    ),
    only(
        "storeCheckpoint",
        Kind::Path,
        &[],
        "the checkpoint lies in the store's folder",
    ),
    only(
        "abortFile",
        Kind::Path,
        &[],
        "the abort file lies in the store's folder",
    ),
];

/// Areas in the order of `--help`, and their keys.
pub const AREAS: &[(&str, &[Key])] = &[
    ("Names and shards", NAMES),
    ("Network", NETWORK),
    ("Name server", NAME_SERVER),
    ("Metrics", METRICS),
    ("Store", STORE),
    ("Retention", RETENTION),
    ("Topics and messages", TOPICS),
    ("Consumers", CONSUMERS),
    ("In effect in a later version", LATER),
    ("Only these values are possible in this version", ONLY),
];

/// All keys with their areas.
pub fn all() -> impl Iterator<Item = Key> {
    AREAS
        .iter()
        .flat_map(|(area, keys)| keys.iter().map(|key| Key { area, ..*key }))
}
