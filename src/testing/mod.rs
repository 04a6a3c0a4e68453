//! What the test suites share: a simulated disk and clock behind the seam of [`crate::io`].

pub mod disk;
pub mod sim_io;
