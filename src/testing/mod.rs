//! What the test suites share: a simulated disk and clock behind the seam of [`crate::io`], and the
//! checker of what clients were told.

pub mod disk;
pub mod ledger;
pub mod sim_io;
