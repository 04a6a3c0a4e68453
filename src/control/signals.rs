//! SIGTERM and SIGINT: the first stops the process in order, the second ends it at once.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Signals as bytes to read, also those that came before anybody read.
#[derive(Debug)]
pub struct Signals {
    pub(super) bytes: UnixStream,
    /// Handlers that end the process at the second signal as long as the control thread does not run.
    while_starting: Vec<SigId>,
}

/// From here on SIGTERM and SIGINT end the process in order, also while it still starts.
pub fn catch_signals() -> io::Result<Signals> {
    let (read, write) = UnixStream::pair()?;
    let second = Arc::new(AtomicBool::new(false));
    let mut while_starting = Vec::new();
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal arms the flag after it was looked at.
        let ends = flag::register_conditional_shutdown(signal, 1, Arc::clone(&second))?;
        let arms = flag::register(signal, Arc::clone(&second))?;
        while_starting.extend([ends, arms]);
        low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(Signals {
        bytes: read,
        while_starting,
    })
}

impl Signals {
    /// The control thread runs and looks at signals itself.
    pub(super) fn take_over(&mut self) {
        for id in self.while_starting.drain(..) {
            low_level::unregister(id);
        }
    }
}

/// Every byte read is a signal; for tests.
impl From<UnixStream> for Signals {
    fn from(bytes: UnixStream) -> Self {
        Self {
            bytes,
            while_starting: Vec::new(),
        }
    }
}
