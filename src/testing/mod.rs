//! What the test suites share: a simulated disk, network and clock behind the seam of [`crate::io`], the
//! checker of what clients were told, and whole shards that live and die by a seed.

pub mod clients;
pub mod config;
pub mod disk;
pub mod host;
pub mod ledger;
pub mod network;
pub mod random;
pub mod sim_io;
pub mod simulation;
