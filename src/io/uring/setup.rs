//! What the kernel gives: the ring with the best flags that it takes, and how it writes to the store's file system.

use crate::io::WriteMode;
use crate::limits::{RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS, RING_ENTRIES};
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
    /// What may be used.
    pub features: Features,
}

impl UringConfig {
    /// What a shard has by default, with its store there.
    pub fn new(store: PathBuf) -> Self {
        Self {
            receive_buffers: RECEIVE_BUFFERS,
            receive_buffer_bytes: RECEIVE_BUFFER_BYTES,
            write_mode: None,
            store,
            busy_poll_us: 0,
            features: Features::BEST,
        }
    }
}

/// What of newer kernels a ring uses. Where one is lacking, the next lower is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    pub task_work: TaskWork,
    /// One submission for all connections of a listener and all receives of a connection (Linux 6.0); without, one
    /// for each.
    pub multishot: bool,
}

/// When the kernel does its part of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskWork {
    /// While the shard waits (Linux 6.1).
    Deferred,
    /// At any system call of the shard (Linux 5.19).
    Cooperative,
    /// At once; the shard is interrupted.
    Interrupting,
}

impl Features {
    /// Linux 6.1.
    pub const BEST: Self = Self {
        task_work: TaskWork::Deferred,
        multishot: true,
    };
    /// Linux 5.19, the first with rings of provided buffers.
    pub const LEAST: Self = Self {
        task_work: TaskWork::Interrupting,
        multishot: false,
    };
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

/// A ring with the best of the wanted features that the kernel has, and what these are.
pub(super) fn setup_ring(wanted: Features) -> Result<(IoUring, Features), SetupError> {
    use TaskWork::{Cooperative, Deferred, Interrupting};
    let levels = [Deferred, Cooperative, Interrupting];
    let levels = levels.into_iter().skip_while(|l| *l != wanted.task_work);
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for task_work in levels {
        match build(task_work) {
            Ok(ring) => {
                let features = Features {
                    task_work,
                    ..wanted
                };
                check_operations(&ring)?;
                return Ok((ring, features));
            }
            Err(error) => refusal = error,
        }
        // Anything but an unknown flag is the same without the flag.
        if refusal.raw_os_error() != Some(libc::EINVAL) {
            break;
        }
    }
    Err(refused("io_uring", refusal))
}

fn build(task_work: TaskWork) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(RING_ENTRIES * 4).setup_submit_all();
    match task_work {
        TaskWork::Deferred => builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag(),
        TaskWork::Cooperative => builder.setup_coop_taskrun().setup_taskrun_flag(),
        TaskWork::Interrupting => &mut builder,
    };
    builder.build(RING_ENTRIES)
}

/// Names the first operation that the kernel doesn't know, instead of failing when it is first needed.
fn check_operations(ring: &IoUring) -> Result<(), SetupError> {
    use io_uring::opcode;
    let needed = [
        ("accept", opcode::Accept::CODE),
        ("receive", opcode::Recv::CODE),
        ("send", opcode::SendMsg::CODE),
        ("cancel", opcode::AsyncCancel::CODE),
        ("read", opcode::Read::CODE),
        ("write", opcode::Write::CODE),
        ("fsync", opcode::Fsync::CODE),
    ];
    let mut probe = io_uring::Probe::new();
    let probed = ring.submitter().register_probe(&mut probe);
    probed.map_err(|error| refused("the probe of io_uring", error))?;
    match needed.iter().find(|(_, code)| !probe.is_supported(*code)) {
        Some((feature, _)) => Err(SetupError::Kernel {
            feature,
            error: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        }),
        None => Ok(()),
    }
}

/// What a refusal of the kernel means.
pub(super) fn refused(feature: &'static str, error: io::Error) -> SetupError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => SetupError::Forbidden(error),
        Some(libc::ENOMEM) => SetupError::Memory(error),
        Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP) => {
            SetupError::Kernel { feature, error }
        }
        _ => SetupError::Other(error),
    }
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
