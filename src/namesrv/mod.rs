//! The name server: which brokers are there, which topics they have, and a small key-value configuration.
//!
//! A state machine without I/O and without a clock, owned by the control thread. Requests and time go in; answers
//! and [`Effects`] come out. It keeps no data of its own beyond the key-value configuration: routes live as long as
//! the brokers register, and an empty table right after a start is normal (code 17, clients keep the routes that
//! they have).
//!
//! **Invariants**: a topic is in the table only with brokers that are registered; what answers show is sorted, so
//! that it doesn't depend on a hash. **Source**: apache/rocketmq 5.3 `namesrv/.../routeinfo/RouteInfoManager.java`
//! for what registration means; where this differs, the place says why.

mod kv;
mod registration;
mod requests;
mod routes;
#[cfg(test)]
mod tests;

use crate::clock::Now;
use crate::protocol::bodies::{TopicRoute, TopicTable};
use kv::KvConfig;
use routes::Routes;

/// Where a registration came from; its end takes the broker out at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Source {
    Connection(u64),
    /// A shard of this process; never closes before the process does. Its registrations always name all topics.
    Shard(u16),
}

/// A broker as the header of a registration (103) names it.
#[derive(Clone, Copy, Debug)]
pub struct Broker<'a> {
    pub cluster: &'a str,
    pub name: &'a str,
    /// 0 is the master.
    pub id: i64,
    pub address: &'a str,
    pub ha_address: &'a str,
    /// Silence after which it is dropped; `None` is the default of two minutes.
    pub timeout_ms: Option<u64>,
    /// Whether a slave may stand in for a missing master. `None`: a broker of 4.9, whose slaves register no topics.
    pub acting_master: Option<bool>,
}

/// What does not change while the name server runs. Names of keys: apache/rocketmq `NamesrvConfig`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Only shown (319).
    pub listen_port: u16,
    /// `orderMessageEnable`: routes carry the text of namespace `ORDER_TOPIC_CONFIG`. On, unlike Apache's: the
    /// namespace is empty until an administrator asks for a fixed order.
    pub order_message_enable: bool,
    /// `deleteTopicWithBrokerRegistration`: a changed registration takes away the topics that it does not name. Off:
    /// brokers of 5.x register single topics. Shards of this process always work this way.
    pub delete_topic_with_broker_registration: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen_port: 9876,
            order_message_enable: true,
            delete_topic_with_broker_registration: false,
        }
    }
}

/// What the owner has to do after a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// New contents of `kvConfig.json`, to be written before the request is answered.
    pub kv_file: Option<Vec<u8>>,
    /// Worth a line in the log.
    pub changes: Vec<Change>,
    /// A registration over the wire that was refused: from where and why.
    pub refused: Option<String>,
}

/// A change of the table of brokers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub kind: ChangeKind,
    pub broker: String,
    pub id: i64,
    pub address: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Registered,
    /// Another address has this name and id now; this is the old one.
    Replaced,
    Unregistered,
    /// The connection that registered it is gone.
    Closed,
    /// It was silent for too long.
    Expired,
}

impl ChangeKind {
    /// For the log.
    pub fn text(self) -> &'static str {
        match self {
            Self::Registered => "broker registered",
            Self::Replaced => "broker replaced by another address",
            Self::Unregistered => "broker unregistered",
            Self::Closed => "broker dropped, its connection is closed",
            Self::Expired => "broker dropped, it was silent for too long",
        }
    }
}

/// The whole state.
#[derive(Debug)]
pub struct NameServer {
    settings: Settings,
    routes: Routes,
    kv: KvConfig,
    refused: Option<String>,
}

impl NameServer {
    /// With the contents of `kvConfig.json`, if there is one.
    ///
    /// **Errors**: the file is not what it must be; starting without it would overwrite it at the next change.
    pub fn new(settings: Settings, kv_file: Option<&[u8]>) -> Result<Self, String> {
        Ok(Self {
            settings,
            routes: Routes::default(),
            kv: kv_file
                .map(KvConfig::decode)
                .transpose()?
                .unwrap_or_default(),
            refused: None,
        })
    }

    /// What happened since the last call; asked for after every other call.
    pub fn take_effects(&mut self) -> Effects {
        Effects {
            kv_file: self.kv.take_file(),
            changes: std::mem::take(&mut self.routes.changes),
            refused: self.refused.take(),
        }
    }

    /// Takes a broker in, or refreshes it; an unchanged data version does nothing more than that.
    ///
    /// **Errors**: text for the answer with code 1; nothing has changed then.
    pub fn register(
        &mut self,
        broker: &Broker<'_>,
        table: &TopicTable,
        source: Source,
        now: Now,
    ) -> Result<Master, String> {
        let is_whole = matches!(source, Source::Shard(_))
            || self.settings.delete_topic_with_broker_registration;
        self.routes.register(
            &registration::Registration {
                broker,
                table,
                is_whole,
                source,
            },
            now,
        )
    }

    /// The queues of a topic; `None` where no broker has it.
    pub fn route(&self, topic: &str) -> Option<TopicRoute> {
        self.routes.route(topic, None)
    }

    /// The connection is gone, and with it the brokers that registered over it last.
    pub fn on_closed(&mut self, source: Source) {
        self.routes
            .drop_where(ChangeKind::Closed, |member| member.source == source);
    }

    /// Drops the brokers that were silent for too long; they are among the effects.
    pub fn expire(&mut self, now: Now) {
        self.routes.drop_where(ChangeKind::Expired, |member| {
            member.expires_us <= now.monotonic_us
        });
    }

    /// When [`Self::expire`] has something to do, in monotonic microseconds.
    pub fn next_expiry(&self) -> Option<u64> {
        self.routes.next_expiry()
    }

    /// Drops what a shard of this process or a connection has registered, as 104 does.
    pub fn unregister_source(&mut self, source: Source) {
        self.routes
            .drop_where(ChangeKind::Unregistered, |member| member.source == source);
    }
}

/// The master of a broker name, as a slave needs it; both empty for a master, or where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Master {
    pub address: String,
    pub ha_address: String,
}
