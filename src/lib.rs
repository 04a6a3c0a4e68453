//! ringmq: a message broker for Linux that speaks the Apache RocketMQ wire protocol.
//!
//! One process holds a name server and one shard per core. A shard is a whole broker to the outside: it owns
//! an io_uring, a commit log, consume queues, and the pulls that wait (holds). Data flows in one direction:
//!
//! ```text
//! frame -> command -> handler -> open batch -> write completion -> dispatch -> wake -> reply -> send
//! ```
//!
//! Modules in reading order: [`limits`], [`ids`], [`protocol`] (bytes in, views out), [`io`] (the only module
//! that knows the kernel), [`storage`] (log and queues), [`broker`] (what RocketMQ means), [`shard`] (where
//! they meet), [`namesrv`] and [`control`] (routes, registration, signals).

pub mod bench;
pub mod broker;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod ids;
pub mod io;
pub mod limits;
pub mod namesrv;
pub mod protocol;
pub mod shard;
pub mod stats;
pub mod storage;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
