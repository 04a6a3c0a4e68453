//! What the kernel gives: the ring with the best flags that it takes, and how it writes to the store's file system.

use crate::io::WriteMode;
use crate::limits::RING_ENTRIES;
use io_uring::IoUring;
use std::io;
use std::path::{Path, PathBuf};

/// What a ring is made with.
#[derive(Clone, Debug)]
pub struct UringConfig {
    pub receive_buffers: u16,
    pub receive_buffer_bytes: u32,
    /// `None`: by the file system of `store`.
    pub write_mode: Option<WriteMode>,
    /// Directory whose file system is probed; it exists.
    pub store: PathBuf,
    /// Microseconds to poll for completions before sleeping, where that pays; 0: never.
    pub busy_poll_us: u64,
}

/// Why the ring can't be had; one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(
        "io_uring is forbidden here ({0}): set kernel.io_uring_disabled=0, or allow io_uring in the container's seccomp profile"
    )]
    Forbidden(io::Error),
    #[error("not enough locked memory for io_uring ({0}): raise the memlock limit (ulimit -l)")]
    Memory(io::Error),
    #[error("the kernel lacks {feature} ({error}): Linux 6.1 or newer is needed")]
    Kernel {
        feature: &'static str,
        error: io::Error,
    },
    #[error("{0}")]
    Other(#[from] io::Error),
}

/// The best flags that the kernel takes.
pub(super) fn setup_ring() -> Result<IoUring, SetupError> {
    let build = |level: u8| {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(RING_ENTRIES * 4).setup_submit_all();
        match level {
            0 => builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag(),
            1 => builder.setup_coop_taskrun().setup_taskrun_flag(),
            _ => &mut builder,
        };
        builder.build(RING_ENTRIES)
    };
    let mut result = build(0);
    for level in 1..3 {
        match &result {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => result = build(level),
            _ => break,
        }
    }
    result.map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => SetupError::Forbidden(error),
        Some(libc::ENOMEM) => SetupError::Memory(error),
        Some(libc::ENOSYS) => SetupError::Kernel {
            feature: "io_uring",
            error,
        },
        _ => SetupError::Other(error),
    })
}

/// Does the file system take buffered writes without blocking? Where it doesn't, the kernel hands every one of the
/// ring to a worker, which costs more than writing inline.
pub(super) fn probe_write_mode(store: &Path) -> io::Result<WriteMode> {
    let path = store.join(".ringmq-probe");
    let file = std::fs::File::create(&path)?;
    let result = rustix::io::pwritev2(
        &file,
        &[io::IoSlice::new(&[0])],
        0,
        rustix::io::ReadWriteFlags::NOWAIT,
    );
    std::fs::remove_file(&path)?;
    Ok(match result {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => WriteMode::Ring,
        Err(_) => WriteMode::Inline,
    })
}
