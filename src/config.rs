//! Configuration: RocketMQ's `broker.conf` keys and our own, from a file, flags and the environment; flags win.
//!
//! Parsed once, checked as a whole, then immutable. [`keys`] has every key; a value that can't be used is an error
//! with its place and what is allowed, a key that is not known or does nothing a warning, since a stock `broker.conf`
//! has to be good.

use crate::io::WriteMode;
use address::Interface;
use keys::{Effect, Kind};
use sources::{All, Given};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use without_effect::WITHOUT_EFFECT;

pub mod address;
pub mod keys;
mod layout;
mod sources;
#[cfg(test)]
mod tests;
mod values;
mod without_effect;

/// Similarity from which on a known key is offered for an unknown one.
const NEAR: f64 = 0.85;

/// Everything the process needs to know; see [`keys`] for the meaning of the values.
#[derive(Clone, Debug)]
pub struct Config {
    values: BTreeMap<&'static str, String>,
    pub shards: u16,
    pub bind: IpAddr,
    /// What clients are told.
    pub advertised: IpAddr,
    pub namesrv_addresses: Vec<String>,
    pub embedded_namesrv: bool,
    /// Where metrics are served; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// The port of the metrics is one that the configuration names: without it the start fails.
    pub metrics_are_wanted: bool,
    /// Folder of the store.
    pub root: PathBuf,
    /// Processors for the shards, in turn; empty: all that are allowed.
    pub cores: Vec<usize>,
    /// What the start log has to warn of.
    pub warnings: Vec<String>,
    /// What the start log has to mention.
    pub notes: Vec<String>,
}

/// One clear line: where, key, value and what is allowed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text}")]
pub struct ConfigError {
    pub text: String,
    /// The mistake is on the command line.
    pub is_usage: bool,
}

impl From<String> for ConfigError {
    fn from(text: String) -> Self {
        Self {
            text,
            is_usage: false,
        }
    }
}

/// What a configuration depends on besides its values.
struct Machine<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    interfaces: Vec<Interface>,
    resolve: &'a dyn Fn(&str) -> Option<IpAddr>,
    processors: u16,
}

impl Config {
    /// Reads the file, then the flags (name and value). **Errors**: the first value that can't be used.
    pub fn load(file: Option<&Path>, flags: &[(String, String)]) -> Result<Self, ConfigError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let machine = Machine {
            variable: &|name| std::env::var(name).ok(),
            interfaces: address::interfaces(),
            resolve: &address::resolve,
            processors: processors.min(256) as u16,
        };
        Self::load_on(file, flags, &machine)
    }

    fn load_on(
        file: Option<&Path>,
        flags: &[(String, String)],
        machine: &Machine<'_>,
    ) -> Result<Self, ConfigError> {
        let (mut given, mut warnings, mut notes) = (All::new(), Vec::new(), Vec::new());
        if let Some(path) = file {
            sources::read_file(path, &mut given, &mut warnings)?;
        }
        sources::add_flags(flags, &mut given);
        sources::add_environment(machine.variable, &mut given, &mut notes);
        let mut config = Self {
            values: BTreeMap::new(),
            shards: 0,
            bind: IpAddr::from([127, 0, 0, 1]),
            advertised: IpAddr::from([127, 0, 0, 1]),
            namesrv_addresses: Vec::new(),
            embedded_namesrv: true,
            metrics: None,
            metrics_are_wanted: false,
            root: PathBuf::new(),
            cores: Vec::new(),
            warnings,
            notes,
        };
        config.take_values(&mut given)?;
        config.report_rest(&given);
        config.derive(machine)?;
        Ok(config)
    }

    /// Checks the values of all known keys and takes them out of what was given.
    fn take_values(&mut self, given: &mut All) -> Result<(), ConfigError> {
        let mut later = Vec::new();
        for key in keys::all() {
            // Apache keeps an old spelling of two keys.
            let alias = given.remove(key.alias);
            let value = match given.remove(key.name).or(alias) {
                None => key.default.to_owned(),
                Some(found) => {
                    let value = check(&key, &found)?;
                    self.metrics_are_wanted |= key.name == "metricsPort";
                    if key.effect == Effect::Later {
                        later.push(key.name);
                    }
                    value
                }
            };
            self.values.insert(key.name, value);
        }
        if !later.is_empty() {
            let names = later.join(", ");
            self.warnings
                .push(format!("not in effect yet in this version: {names}"));
        }
        Ok(())
    }

    /// Reports the keys that no table of ours has.
    fn report_rest(&mut self, given: &All) {
        let mut idle = Vec::new();
        for (name, found) in given {
            if WITHOUT_EFFECT.binary_search(&name.as_str()).is_ok() {
                idle.push(name.as_str());
                continue;
            }
            let mut warning = format!("{}: unknown key {name:?} is ignored", found.origin);
            if let Some(near) = nearest(name) {
                let _ = write!(warning, "; is it {near}?");
            }
            self.warnings.push(warning);
        }
        if !idle.is_empty() {
            let names = idle.join(", ");
            self.notes.push(format!(
                "keys of Apache RocketMQ without an effect here: {names}"
            ));
        }
    }

    fn derive(&mut self, machine: &Machine<'_>) -> Result<(), ConfigError> {
        self.root = PathBuf::from(self.text("storePathRootDir"));
        self.cores = values::processors(self.text("cores"))?;
        self.namesrv_addresses = values::addresses(self.text("namesrvAddr"))?;
        self.embedded_namesrv = match self.text("embeddedNamesrv") {
            "true" => true,
            "false" => false,
            _ => self.namesrv_addresses.is_empty(),
        };
        if !self.embedded_namesrv && self.namesrv_addresses.is_empty() {
            self.warnings.push(
                "there is no name server: embeddedNamesrv is false and namesrvAddr is not set"
                    .to_owned(),
            );
        }
        let bind = self.text("bindAddress").parse();
        self.bind = bind.map_err(|_| "bindAddress is no IP address".to_owned())?;
        self.advertised = address::advertised(
            self.values.get("brokerIP1").map_or("", String::as_str),
            self.bind,
            &machine.interfaces,
            machine.resolve,
            &mut self.warnings,
        )?;
        self.metrics = self.find_metrics();
        if self.text("brokerRole") == "SYNC_MASTER" {
            self.warnings.push(
                "brokerRole SYNC_MASTER: there are no replicas in this version; messages are acknowledged as by ASYNC_MASTER"
                    .to_owned(),
            );
        }
        let layout = layout::find(&self.root)?;
        let configured = self.integer("shards") as u16;
        self.shards = layout::shard_count(&layout, configured, machine.processors, &self.root)?;
        self.check_ports()?;
        self.check_store()
    }

    fn find_metrics(&mut self) -> Option<SocketAddr> {
        let exporter = self.text("metricsExporterType").to_owned();
        let port = self.integer("metricsPort") as u16;
        if exporter == "DISABLE" || port == 0 {
            return None;
        }
        if exporter != "PROM" {
            self.warnings.push(format!(
                "metricsExporterType {exporter} is not there; Prometheus can fetch the metrics on metricsPort"
            ));
        }
        Some(SocketAddr::new(self.bind, port))
    }

    fn check_ports(&self) -> Result<(), ConfigError> {
        let first = self.integer("listenPort");
        let last = first + 10 * i64::from(self.shards - 1);
        // The port behind it is the one of its replication.
        if last > 65_534 {
            let (shards, most) = (self.shards, 65_534 - 10 * i64::from(self.shards - 1));
            return Err(format!(
                "listenPort = {first}: the last of {shards} shards would listen on {last}; with so many it is at most {most}"
            )
            .into());
        }
        let name_server = self.integer("namesrvListenPort");
        let mut others = Vec::new();
        if self.embedded_namesrv {
            others.push(("namesrvListenPort", name_server));
        }
        if let Some(metrics) = self.metrics {
            let port = i64::from(metrics.port());
            if self.embedded_namesrv && port == name_server {
                let text = format!("metricsPort = {port}: the name server listens there");
                return Err(text.into());
            }
            others.push(("metricsPort", port));
        }
        for (key, port) in others {
            let shard = (0..self.shards).find(|shard| i64::from(self.shard_port(*shard)) == port);
            if let Some(shard) = shard {
                return Err(format!(
                    "{key} = {port}: shard {shard} listens there (listenPort + 10 for each shard)"
                )
                .into());
            }
        }
        Ok(())
    }

    fn check_store(&mut self) -> Result<(), ConfigError> {
        let queue_file = self.integer("mappedFileSizeConsumeQueue");
        if queue_file % 20 != 0 {
            let text =
                format!("mappedFileSizeConsumeQueue = {queue_file}: it is no multiple of 20");
            return Err(text.into());
        }
        for key in ["storePathCommitLog", "storePathConsumeQueue"] {
            let path = self.text(key);
            if !path.is_empty() && self.shards > 1 {
                let shards = self.shards;
                let text = format!(
                    "{key} = {path:?}: {shards} shards have a folder each below storePathRootDir; leave it out"
                );
                return Err(text.into());
            }
        }
        let (segment, body) = (
            self.integer("mappedFileSizeCommitLog"),
            self.integer("maxMessageSize"),
        );
        // Room for topic, properties and the end of the segment.
        if segment < body + 65_536 {
            self.warnings.push(format!(
                "messages close to maxMessageSize = {body} don't fit a segment of mappedFileSizeCommitLog = {segment} bytes \
                 and are refused"
            ));
        }
        Ok(())
    }

    /// Values are checked when they are read; a name that no table has is a mistake in this crate.
    pub fn text(&self, name: &str) -> &str {
        self.values.get(name).expect("a key of the tables")
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
            self.root.join(layout::shard_folder(shard))
        }
    }

    /// Folder of a shard's commit log.
    pub fn commit_log(&self, shard: u16) -> PathBuf {
        self.folder("storePathCommitLog", "commitlog", shard)
    }

    /// Folder of a shard's consume queues.
    pub fn consume_queue(&self, shard: u16) -> PathBuf {
        self.folder("storePathConsumeQueue", "consumequeue", shard)
    }

    fn folder(&self, key: &str, name: &str, shard: u16) -> PathBuf {
        match self.text(key) {
            "" => self.shard_root(shard).join(name),
            path => PathBuf::from(path),
        }
    }

    /// What clients are told for a shard.
    pub fn shard_address(&self, shard: u16) -> SocketAddr {
        SocketAddr::new(self.advertised, self.shard_port(shard))
    }

    /// Queues of an auto-created topic on each shard.
    pub fn topic_queues(&self) -> u32 {
        let all = self.integer("defaultTopicQueueNums") as u32;
        (all / u32::from(self.shards)).max(1)
    }

    /// The processor for a shard, out of those that this process may use; `None`: wherever the system likes.
    pub fn core(&self, shard: u16, allowed: &[usize]) -> Option<usize> {
        let wanted = if self.cores.is_empty() {
            allowed
        } else {
            &self.cores
        };
        let place = usize::from(shard).checked_rem(wanted.len())?;
        let core = wanted[place];
        allowed.contains(&core).then_some(core)
    }

    /// All values in the format of the file, with what follows from them as comments.
    pub fn print(&self) -> String {
        let mut out = String::new();
        let mut area = "";
        for key in keys::all().filter(|key| key.effect == Effect::Full) {
            if key.area != area {
                area = key.area;
                let _ = writeln!(out, "# {area}");
            }
            let value = escape(self.text(key.name));
            let _ = writeln!(out, "{} = {value}", key.name);
        }
        for shard in 0..self.shards {
            let (name, root) = (self.shard_name(shard), self.shard_root(shard));
            let address = self.shard_address(shard);
            let _ = writeln!(
                out,
                "# shard {shard}: {name}, {address}, {}",
                root.display()
            );
        }
        let embedded = if self.embedded_namesrv { "on" } else { "off" };
        let _ = writeln!(out, "# name server in this process: {embedded}");
        out
    }
}

/// A value as the file has it.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\")
}

fn check(key: &keys::Key, found: &Given) -> Result<String, ConfigError> {
    let error = |reason: &str| ConfigError {
        text: format!(
            "{}: {} = {:?}: {reason}",
            found.origin, key.name, found.value
        ),
        is_usage: found.is_flag,
    };
    let value = values::check(key.kind, &found.value).map_err(|reason| error(&reason))?;
    match key.effect {
        Effect::Only(allowed) if !value.is_empty() && !allowed.contains(&value.as_str()) => {
            Err(error(&format!("{}: {}", only(allowed), key.help)))
        }
        _ => Ok(value),
    }
}

fn only(allowed: &[&str]) -> String {
    match allowed {
        [] => "leave it out".to_owned(),
        allowed => format!("this version takes only {}", allowed.join(" and ")),
    }
}

/// The known key that an unknown one most resembles, if it does.
fn nearest(name: &str) -> Option<&'static str> {
    let ours = keys::all().filter(|key| !matches!(key.effect, Effect::Only(_)));
    let similar = ours.map(|key| (strsim::jaro_winkler(key.name, name), key.name));
    let best = similar.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= NEAR).then_some(best.1)
}

/// What a key takes, and its default, for `--help`.
pub fn describe(key: &keys::Key) -> String {
    match key.effect {
        Effect::Only(allowed) => format!("{}: {}", only(allowed), key.help),
        _ if key.default.is_empty() || matches!(key.kind, Kind::Delays) => key.help.to_owned(),
        _ => format!("{} [default: {}]", key.help, key.default),
    }
}
