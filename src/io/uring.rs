//! The kernel backend.
