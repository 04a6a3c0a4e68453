//! The control thread: name server connections, registration, signals. Runs on `tokio-uring`.

pub mod mail;
