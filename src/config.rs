//! Configuration: RocketMQ's `broker.conf` keys and our own, from a file and from flags; flags win. Parsed once,
//! validated as a whole, then immutable.

use crate::io::WriteMode;
use java_properties::{LineContent, PropertiesIter};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Integer { min: i64, max: i64 },
    Text,
    OneOf(&'static [&'static str]),
}

/// A key that has an effect.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    pub help: &'static str,
}

const fn key(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key {
        name,
        kind,
        default,
        help,
    }
}

const fn int(min: i64, max: i64) -> Kind {
    Kind::Integer { min, max }
}

/// All keys that have an effect, in the order of `--help`.
pub const KEYS: &[Key] = &[
    key(
        "brokerClusterName",
        Kind::Text,
        "DefaultCluster",
        "cluster that the shards belong to",
    ),
    key(
        "brokerName",
        Kind::Text,
        "broker-a",
        "name of the broker; with several shards name-0, name-1, …",
    ),
    key(
        "brokerIP1",
        Kind::Text,
        "",
        "address or host name that clients are told; default: the bind address",
    ),
    key(
        "bindAddress",
        Kind::Text,
        "127.0.0.1",
        "address to listen on; 0.0.0.0 opens the broker to the network",
    ),
    key(
        "listenPort",
        int(0, 65_000),
        "10911",
        "port of the first shard; shard i listens on this + 10 i",
    ),
    key(
        "shards",
        int(0, 256),
        "0",
        "number of shards; 0: one per available core",
    ),
    key(
        "namesrvListenPort",
        int(1, 65_535),
        "9876",
        "port of the embedded name server",
    ),
    key(
        "namesrvAddr",
        Kind::Text,
        "",
        "external name servers, host:port;…; the embedded one is off then",
    ),
    key(
        "embeddedNamesrv",
        Kind::OneOf(&["auto", "true", "false"]),
        "auto",
        "auto: on unless namesrvAddr is set",
    ),
    key(
        "storePathRootDir",
        Kind::Text,
        "ringmq-data",
        "folder of the store",
    ),
    key(
        "mappedFileSizeCommitLog",
        int(65_536, 1 << 31),
        "1073741824",
        "bytes of a commit log segment",
    ),
    key(
        "mappedFileSizeConsumeQueue",
        int(20, 1 << 30),
        "6000000",
        "bytes of a consume queue file, a multiple of 20",
    ),
    key(
        "flushDiskType",
        Kind::OneOf(&["ASYNC_FLUSH", "SYNC_FLUSH"]),
        "ASYNC_FLUSH",
        "acknowledge when written, or when flushed",
    ),
    key(
        "flushIntervalCommitLog",
        int(1, 60_000),
        "200",
        "ASYNC_FLUSH: milliseconds until written bytes are flushed",
    ),
    key(
        "flushCommitLogBytes",
        int(4096, 1 << 30),
        "1048576",
        "ASYNC_FLUSH: bytes that are flushed at once",
    ),
    key(
        "zeroFillSegments",
        Kind::Bool,
        "true",
        "fill segments with zeros ahead of use",
    ),
    key(
        "tailCacheBytes",
        int(65_536, 1 << 36),
        "67108864",
        "recent log bytes of a shard kept in memory",
    ),
    key(
        "entryCacheBytes",
        int(65_536, 1 << 34),
        "33554432",
        "consume queue entries of a shard kept in memory",
    ),
    key(
        "writeMode",
        Kind::OneOf(&["auto", "inline", "ring"]),
        "auto",
        "how the log is written; auto: by file system",
    ),
    key(
        "autoCreateTopicEnable",
        Kind::Bool,
        "true",
        "create topics at their first send",
    ),
    key(
        "autoCreateSubscriptionGroup",
        Kind::Bool,
        "true",
        "create consumer groups at their first heartbeat",
    ),
    key(
        "defaultTopicQueueNums",
        int(1, 1024),
        "8",
        "queues of an auto-created topic, divided over the shards",
    ),
    key(
        "maxMessageSize",
        int(1, 12 << 20),
        "4194304",
        "largest message body in bytes",
    ),
    key("brokerPermission", int(0, 7), "6", "4 read, 2 write"),
    key(
        "longPollingEnable",
        Kind::Bool,
        "true",
        "hold pulls as long as the client asks",
    ),
    key(
        "shortPollingTimeMills",
        int(1, 29_000),
        "1000",
        "hold of a pull when longPollingEnable is off",
    ),
    key(
        "litePullMessageEnable",
        Kind::Bool,
        "true",
        "answer code 361",
    ),
    key(
        "traceTopicEnable",
        Kind::Bool,
        "false",
        "create RMQ_SYS_TRACE_TOPIC",
    ),
    key(
        "traceOn",
        Kind::Bool,
        "true",
        "value of the TRACE_ON property",
    ),
    key(
        "flushConsumerOffsetInterval",
        int(100, 60_000),
        "5000",
        "milliseconds until committed offsets are persisted",
    ),
];

/// RocketMQ keys that are understood and have no effect here.
const NO_EFFECT: &[&str] = &[
    "sendMessageThreadPoolNums",
    "pullMessageThreadPoolNums",
    "useReentrantLockWhenPutMessage",
    "transientStorePoolEnable",
    "warmMapedFileEnable",
    "waitTimeMillsInSendQueue",
    "osPageCacheBusyTimeOutMills",
    "queryMessageThreadPoolNums",
    "adminBrokerThreadPoolNums",
    "clientManageThreadPoolNums",
    "consumerManageThreadPoolNums",
    "heartbeatThreadPoolNums",
    "endTransactionThreadPoolNums",
    "brokerId",
    "brokerRole",
    "brokerIP2",
    "haListenPort",
    "deleteWhen",
    "fileReservedTime",
    "diskMaxUsedSpaceRatio",
    "enablePropertyFilter",
    "slaveReadEnable",
    "messageDelayLevel",
    "timerWheelEnable",
    "transactionTimeOut",
    "transactionCheckMax",
    "transactionCheckInterval",
    "aclEnable",
    "rejectTransactionMessage",
    "metricsExporterType",
    "metricsPromExporterPort",
    "enableLmq",
    "inSyncReplicas",
    "storePathCommitLog",
    "storePathConsumeQueue",
    "storePathIndex",
    "storeCheckpoint",
    "abortFile",
    "rocketmqHome",
];

/// Everything the process needs to know; see [`KEYS`] for the meaning.
#[derive(Clone, Debug)]
pub struct Config {
    values: BTreeMap<&'static str, String>,
    pub shards: u16,
    pub bind: IpAddr,
    pub advertised: IpAddr,
    pub namesrv_addresses: Vec<String>,
    pub embedded_namesrv: bool,
    pub root: PathBuf,
    /// Things worth a warning, for the start log.
    pub warnings: Vec<String>,
}

/// One clear line: file, line, key, value and what is allowed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// A value and where it came from.
struct Given {
    value: String,
    origin: String,
}

impl Config {
    /// Reads the file, then the flags (name and value). **Errors**: the first bad value.
    pub fn load(file: Option<&Path>, flags: &[(String, String)]) -> Result<Self, ConfigError> {
        let mut given: BTreeMap<String, Given> = BTreeMap::new();
        if let Some(path) = file {
            read_file(path, &mut given)?;
        }
        for (name, value) in flags {
            given.insert(
                name.clone(),
                Given {
                    value: value.clone(),
                    origin: format!("--{name}"),
                },
            );
        }
        if !given.contains_key("namesrvAddr")
            && let Ok(value) = std::env::var("NAMESRV_ADDR")
        {
            given.insert(
                "namesrvAddr".to_owned(),
                Given {
                    value,
                    origin: "environment NAMESRV_ADDR".to_owned(),
                },
            );
        }
        Self::resolve(given)
    }

    fn resolve(mut given: BTreeMap<String, Given>) -> Result<Self, ConfigError> {
        // The old spelling, which Apache keeps as well.
        for (old, new) in [
            ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog"),
            ("mapedFileSizeConsumeQueue", "mappedFileSizeConsumeQueue"),
        ] {
            if let Some(value) = given.remove(old) {
                given.entry(new.to_owned()).or_insert(value);
            }
        }
        let mut values = BTreeMap::new();
        for key in KEYS {
            let value = match given.remove(key.name) {
                Some(given) => check(key, &given)?,
                None => key.default.to_owned(),
            };
            values.insert(key.name, value);
        }
        let warnings = given.keys().map(|name| unknown(name)).collect();
        let mut config = Self {
            values,
            shards: 0,
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            advertised: IpAddr::V4(Ipv4Addr::LOCALHOST),
            namesrv_addresses: Vec::new(),
            embedded_namesrv: true,
            root: PathBuf::new(),
            warnings,
        };
        config.derive()?;
        Ok(config)
    }

    fn derive(&mut self) -> Result<(), ConfigError> {
        let error = |text: String| Err(ConfigError(text));
        let cores = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(256) as u16;
        self.shards = match self.integer("shards") {
            0 => cores,
            count => count as u16,
        };
        let last_port = self.integer("listenPort") + 10 * i64::from(self.shards - 1);
        if last_port > 65_535 {
            return error(format!(
                "listenPort: the last of {} shards would listen on {last_port}",
                self.shards
            ));
        }
        let bind = self.text("bindAddress").to_owned();
        self.bind = match bind.parse() {
            Ok(ip) => ip,
            Err(_) => return error(format!("bindAddress: {bind:?} is not an IP address")),
        };
        self.advertised = self.find_advertised()?;
        if self.integer("mappedFileSizeConsumeQueue") % 20 != 0 {
            return error("mappedFileSizeConsumeQueue: not a multiple of 20 bytes".to_owned());
        }
        let addresses = self.text("namesrvAddr").split([';', ',']).map(str::trim);
        let addresses: Vec<String> = addresses
            .filter(|a| !a.is_empty())
            .map(str::to_owned)
            .collect();
        self.namesrv_addresses = addresses;
        self.embedded_namesrv = match self.text("embeddedNamesrv") {
            "true" => true,
            "false" => false,
            _ => self.namesrv_addresses.is_empty(),
        };
        self.root = PathBuf::from(self.text("storePathRootDir"));
        Ok(())
    }

    fn find_advertised(&mut self) -> Result<IpAddr, ConfigError> {
        let name = self.text("brokerIP1").to_owned();
        let ip = if name.is_empty() {
            if !self.bind.is_unspecified() {
                return Ok(self.bind);
            }
            outward_address()
        } else {
            let resolved = (name.as_str(), 0)
                .to_socket_addrs()
                .ok()
                .and_then(|mut all| all.next());
            resolved.map(|a| a.ip()).ok_or_else(|| {
                ConfigError(format!(
                    "brokerIP1: {name:?} is no address and no known host name"
                ))
            })?
        };
        if matches!(ip, IpAddr::V4(v4) if v4.octets()[0] == 172 && v4.octets()[1] == 17) {
            self.warnings.push(format!(
                "clients are told {ip}, an address of a container bridge; set brokerIP1"
            ));
        }
        Ok(ip)
    }

    /// Values are checked when they are read; a name that is not in [`KEYS`] is a mistake in this crate.
    pub fn text(&self, name: &str) -> &str {
        self.values.get(name).expect("a key of the table")
    }

    pub fn integer(&self, name: &str) -> i64 {
        self.text(name).parse().expect("checked when it was read")
    }

    pub fn bool(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    pub fn write_mode(&self) -> Option<WriteMode> {
        match self.text("writeMode") {
            "inline" => Some(WriteMode::Inline),
            "ring" => Some(WriteMode::Ring),
            _ => None,
        }
    }

    pub fn shard_name(&self, shard: u16) -> String {
        let name = self.text("brokerName");
        if self.shards == 1 {
            name.to_owned()
        } else {
            format!("{name}-{shard}")
        }
    }

    pub fn shard_port(&self, shard: u16) -> u16 {
        (self.integer("listenPort") + 10 * i64::from(shard)) as u16
    }

    /// One shard keeps a stock broker's layout; several have a folder each.
    pub fn shard_root(&self, shard: u16) -> PathBuf {
        if self.shards == 1 {
            self.root.clone()
        } else {
            self.root.join(format!("shard-{shard}"))
        }
    }

    pub fn shard_address(&self, shard: u16) -> SocketAddr {
        SocketAddr::new(self.advertised, self.shard_port(shard))
    }

    /// Refuses a store that was written with another number of shards: some of its data would not be served.
    pub fn check_layout(&self) -> Result<(), ConfigError> {
        let names = std::fs::read_dir(&self.root)
            .into_iter()
            .flatten()
            .flatten();
        let names: Vec<String> = names
            .filter_map(|e| e.file_name().into_string().ok())
            .collect();
        let shards = names
            .iter()
            .filter_map(|n| n.strip_prefix("shard-")?.parse::<u16>().ok());
        let highest = shards.max();
        let remedy = "move the data elsewhere or set shards to fit";
        if self.shards > 1 && names.iter().any(|n| n == "commitlog") {
            let root = self.root.display();
            return Err(ConfigError(format!(
                "{root} holds the store of one shard, shards is {}: {remedy}",
                self.shards
            )));
        }
        match highest {
            Some(highest) if self.shards == 1 || highest >= self.shards => {
                let directory = self.root.join(format!("shard-{highest}"));
                Err(ConfigError(format!(
                    "{} has no shard to serve it, shards is {}: {remedy}",
                    directory.display(),
                    self.shards
                )))
            }
            _ => Ok(()),
        }
    }
}

fn read_file(path: &Path, given: &mut BTreeMap<String, Given>) -> Result<(), ConfigError> {
    let file =
        std::fs::File::open(path).map_err(|e| ConfigError(format!("{}: {e}", path.display())))?;
    for line in PropertiesIter::new_with_encoding(std::io::BufReader::new(file), encoding_rs::UTF_8)
    {
        let line = line.map_err(|e| ConfigError(format!("{}: {e}", path.display())))?;
        let origin = format!("{} line {}", path.display(), line.line_number());
        if let LineContent::KVPair(name, value) = line.consume_content() {
            given.insert(
                name,
                Given {
                    value: value.trim().to_owned(),
                    origin,
                },
            );
        }
    }
    Ok(())
}

fn check(key: &Key, given: &Given) -> Result<String, ConfigError> {
    let Given { value, origin } = given;
    let error = |allowed: String| {
        Err(ConfigError(format!(
            "{origin}: {} = {value:?}: {allowed}",
            key.name
        )))
    };
    if value.contains(" #") || value.contains(" //") {
        return error("a comment inside the value; put it on a line of its own".to_owned());
    }
    match key.kind {
        Kind::Bool => match value.to_ascii_lowercase().as_str() {
            lower @ ("true" | "false") => Ok(lower.to_owned()),
            _ => error("allowed are true and false".to_owned()),
        },
        Kind::Integer { min, max } => match value.parse::<i64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(number.to_string()),
            _ => error(format!("allowed are {min} to {max}")),
        },
        Kind::OneOf(names) => match names.iter().find(|n| n.eq_ignore_ascii_case(value)) {
            Some(name) => Ok((*name).to_owned()),
            None => error(format!("allowed are {}", names.join(", "))),
        },
        Kind::Text => Ok(value.clone()),
    }
}

fn unknown(name: &str) -> String {
    if NO_EFFECT.contains(&name) {
        return format!("{name} has no effect in this version");
    }
    let nearest = KEYS
        .iter()
        .map(|k| k.name)
        .max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name)));
    format!(
        "unknown key {name}, the nearest known one is {}",
        nearest.unwrap_or_default()
    )
}

/// The address that leads out of this machine; loopback if none does. Connecting a datagram socket sends nothing.
fn outward_address() -> IpAddr {
    let probe = || {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        socket.local_addr().ok()
    };
    probe().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |a| a.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, flags: &[(&str, &str)]) -> Result<Config, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("broker.conf");
        std::fs::write(&path, text).expect("written");
        let flags: Vec<_> = flags
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        let error = |e: ConfigError| {
            e.to_string()
                .replace(&*path.to_string_lossy(), "broker.conf")
        };
        Config::load(Some(&path), &flags).map_err(error)
    }

    #[test]
    fn flags_win_over_the_file_and_old_spellings_count() {
        let text = "# a comment\nlistenPort=20911\nshards = 2\nmapedFileSizeCommitLog=262144\nbrokerName=b\n";
        let config = load(text, &[("listenPort", "30911")]).expect("good");
        assert_eq!(
            (config.shard_port(0), config.shard_port(1)),
            (30_911, 30_921)
        );
        assert_eq!(config.integer("mappedFileSizeCommitLog"), 262_144);
        assert_eq!(
            (config.shard_name(1), config.shard_root(1)),
            ("b-1".into(), "ringmq-data/shard-1".into())
        );
    }

    /// Source of the comment inside a value: apache/rocketmq#6631.
    #[test]
    fn a_bad_value_is_named_with_file_line_and_range() {
        let check = |text: &str, expected: &str| {
            assert_eq!(load(text, &[]).map(|_| ()), Err(expected.to_owned()))
        };
        check(
            "\nlistenPort=x\n",
            "broker.conf line 2: listenPort = \"x\": allowed are 0 to 65000",
        );
        check(
            "flushDiskType=MAYBE\n",
            "broker.conf line 1: flushDiskType = \"MAYBE\": allowed are ASYNC_FLUSH, SYNC_FLUSH",
        );
        check(
            "brokerIP1=10.0.0.1 # eth0\n",
            "broker.conf line 1: brokerIP1 = \"10.0.0.1 # eth0\": a comment inside the value; put it on a line of its own",
        );
    }

    #[test]
    fn unknown_and_idle_keys_are_reported() {
        let config = load("listenPrt=1\nsendMessageThreadPoolNums=4\n", &[]).expect("good");
        assert_eq!(
            config.warnings,
            [
                "unknown key listenPrt, the nearest known one is listenPort",
                "sendMessageThreadPoolNums has no effect in this version"
            ]
        );
    }
}
