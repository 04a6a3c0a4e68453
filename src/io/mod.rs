//! The only module that knows the kernel. Operations go in, completions come out; nothing waits but [`Io::wait`].
//!
//! Owned by one shard and used on its thread only. Two implementations: [`uring::Uring`] and, for tests, a
//! simulated disk, network and clock. Memory that the kernel may touch is owned by the implementation from
//! [`Io::submit`] until the operation's own completion, even when the connection is gone.

pub mod buffers;
pub mod fs;
pub mod uring;
pub mod worker;

use crate::clock::Now;
use bytes::{Bytes, BytesMut};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Key of an operation, chosen by the submitter and handed back with each of its completions.
///
/// **Shape**: whatever the submitter packs in; [`Token::new`] takes a kind, an index and a generation, so that
/// a completion for a slot that was reused in between is recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token {
    pub kind: u8,
    pub index: u32,
    pub generation: u32,
}

impl Token {
    pub const fn new(kind: u8, index: u32, generation: u32) -> Self {
        Self {
            kind,
            index,
            generation,
        }
    }
}

/// A socket known to the implementation; closed only by [`Op::Close`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Socket(pub u32);

/// A file known to the implementation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct File(pub u32);

/// A received buffer lent to the shard; given back by [`Io::release`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BufferId(pub u16);

/// What a shard asks for. Each op completes exactly once, except the multishot ones, which complete with
/// `more = true` until they end.
#[derive(Debug)]
pub enum Op {
    /// Multishot. Completes with [`Done::Accepted`] per connection. Ends on error; re-armed by the shard.
    Accept { listener: Socket },
    /// Multishot. Completes with [`Done::Received`] per chunk. Ends with `Received` of 0 bytes (peer closed),
    /// an error, or `ENOBUFS` (all receive buffers are lent: re-arm after releasing some).
    Receive { socket: Socket },
    /// Ends the receive of a socket: what has arrived is still handed over, then the receive completes with
    /// `ECANCELED`. Has no completion of its own, and does nothing where no receive is in flight.
    StopReceive { socket: Socket },
    /// Sends all segments in order as one gathering call. Completes with [`Done::Sent`], which hands the vector
    /// back for reuse; `bytes` may be less than the sum, then the shard submits the rest.
    /// At most `SEND_SEGMENTS_MAX` segments.
    Send {
        socket: Socket,
        segments: Vec<Bytes>,
    },
    /// Shuts the socket down and closes it, after which the implementation ends its receive and send with a
    /// completion each. Completes with [`Done::Closed`] when nothing of the socket is in flight any more.
    Close { socket: Socket },
    /// Writes the bytes at a position. Completes with [`Done::Written`]; short writes are continued by the
    /// implementation, so success means the full length.
    Write {
        file: File,
        position: u64,
        bytes: Bytes,
    },
    /// Reads up to `len` bytes (short only at the end of the file). Completes with [`Done::Read`].
    Read { file: File, position: u64, len: u32 },
    /// FSYNC with DATASYNC: covers the writes that completed before it was submitted.
    Flush { file: File },
    /// Creates the file if missing, extends it to `len` bytes (allocated where the file system can) and, with
    /// `zero_fill`, writes zeros over what was not allocated before; flushes file and directory. Completes with
    /// [`Done::Opened`]. Runs in the background in bounded steps.
    Prepare {
        path: PathBuf,
        len: u64,
        zero_fill: bool,
    },
    /// Replaces a small file as a whole: temporary file, flush, the old one kept as `<name>.bak` when `keep_backup`,
    /// rename, flush of the directory. After a crash either the old or the new contents are there.
    /// Completes with [`Done::Replaced`].
    Replace {
        path: PathBuf,
        contents: Bytes,
        keep_backup: bool,
    },
    /// Removes a file; a missing one is a success. Completes with [`Done::Removed`].
    Remove { path: PathBuf },
    /// Removes a directory and what is in it; a missing one is a success. Completes with [`Done::Removed`].
    /// Runs in the background.
    RemoveDirectory { path: PathBuf },
    /// Asks how full the file system of a path is. Completes with [`Done::Space`]. Runs in the background.
    Space { path: PathBuf },
}

/// How full a file system is, for those who are not root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    pub used: u64,
    pub available: u64,
}

impl Space {
    /// Percent in use, rounded up. Source: apache/rocketmq `UtilAll.getDiskPartitionSpaceUsedPercent`.
    pub fn used_percent(self) -> u64 {
        let whole = u128::from(self.used) + u128::from(self.available);
        let percent = (u128::from(self.used) * 100).div_ceil(whole.max(1));
        percent.min(100) as u64
    }
}

/// Result of an operation.
#[derive(Debug)]
pub enum Done {
    Accepted {
        socket: Socket,
        peer: SocketAddr,
    },
    Received {
        buffer: BufferId,
        bytes: u32,
    },
    /// The peer closed its side, in order.
    ReceiveEnded,
    Sent {
        bytes: usize,
        segments: Vec<Bytes>,
    },
    Closed,
    Written,
    Read {
        bytes: BytesMut,
    },
    Flushed,
    Opened {
        file: File,
    },
    Replaced,
    Removed,
    Space(Space),
    /// Another thread rang the [`Doorbell`]; the token is [`DOORBELL`].
    Rang,
}

/// Why an operation failed: the raw error number of the kernel, and the segments of a failed send.
#[derive(Debug)]
pub struct Failed {
    pub errno: i32,
}

impl Failed {
    pub fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}

#[derive(Debug)]
pub struct Completion {
    pub token: Token,
    pub result: Result<Done, Failed>,
    /// The multishot operation goes on.
    pub more: bool,
}

/// Token of the completions that a [`Doorbell`] causes.
pub const DOORBELL: Token = Token::new(0xff, u32::MAX, u32::MAX);

/// Wakes the loop from another thread; cheap to ring often.
#[derive(Clone)]
pub struct Doorbell(pub Arc<dyn Ring>);

impl std::fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Doorbell")
    }
}

/// What a doorbell does when rung.
pub trait Ring: Send + Sync {
    fn ring(&self);
}

/// How log writes are executed, and why: shown at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteMode {
    /// `pwritev2` on the shard's thread up to 64 KiB, completed in the same turn; larger ones through the ring.
    Inline,
    /// All writes through the ring.
    Ring,
}

/// Blocking calls on the file system, for start, recovery and offline tools. Never called from a turn.
pub trait FileSystem {
    /// Names in a directory, sorted; an absent directory is empty.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    fn is_directory(&self, path: &Path) -> bool;
    fn exists(&self, path: &Path) -> bool;
    fn create_directories(&self, path: &Path) -> io::Result<()>;
    fn open(&mut self, path: &Path) -> io::Result<File>;
    /// Opens or creates the file and locks it until it is closed, against other processes: `flock` and, since Apache's
    /// broker locks the first byte of the same file by `fcntl`, that too. Doesn't wait: `WouldBlock` while another
    /// process has it.
    fn lock(&mut self, path: &Path) -> io::Result<File>;
    fn close(&mut self, file: File);
    fn len(&self, file: File) -> io::Result<u64>;
    /// Fills the buffer from a position; returns the bytes read, short only at the end of the file.
    fn read_at(&self, file: File, position: u64, buffer: &mut [u8]) -> io::Result<usize>;
    fn write_at(&mut self, file: File, position: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the range read as zeros, keeping the length.
    fn zero_range(&mut self, file: File, position: u64, len: u64) -> io::Result<()>;
    /// First position at or after `position` that may hold data (not a hole), or the length.
    fn next_data(&self, file: File, position: u64) -> io::Result<u64>;
    fn set_len(&mut self, file: File, len: u64) -> io::Result<()>;
    fn flush(&mut self, file: File) -> io::Result<()>;
    fn flush_directory(&mut self, directory: &Path) -> io::Result<()>;
    /// Creates a file of that length with its blocks allocated, where the file system can.
    fn create(&mut self, path: &Path, len: u64) -> io::Result<File>;
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    /// Removes a directory and what is in it; absent is a success.
    fn remove_directory(&mut self, path: &Path) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    fn read_whole(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// As [`Op::Replace`], blocking.
    fn replace(&mut self, path: &Path, contents: &[u8], keep_backup: bool) -> io::Result<()>;
    /// How full the file system is that holds the path.
    fn space(&self, path: &Path) -> io::Result<Space>;
}

/// Operations in, completions and time out. Implementations: io_uring and the simulator.
pub trait Io: FileSystem {
    /// The clock; read once per turn by the loop, by nobody else.
    fn now(&mut self) -> Now;
    /// Monotonic microseconds at this very moment, for measuring a turn; nothing is decided by it.
    fn measured_us(&mut self) -> u64 {
        self.now().monotonic_us
    }
    /// Queues an operation; it reaches the kernel at the next [`Io::wait`] at the latest.
    fn submit(&mut self, token: Token, op: Op);
    /// Submits what is queued and waits until something completed or the deadline (monotonic microseconds) has
    /// passed; `None` waits without end. Appends completions. Returns early without a completion at times.
    fn wait(
        &mut self,
        deadline_us: Option<u64>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()>;
    /// Appends completions that need no system call to be seen, inline writes above all.
    fn ready(&mut self, completions: &mut Vec<Completion>);
    /// Bytes of a received buffer, until it is released.
    fn received(&self, buffer: BufferId, bytes: u32) -> &[u8];
    fn release(&mut self, buffer: BufferId);
    fn listen(&mut self, address: SocketAddr) -> io::Result<(Socket, SocketAddr)>;
    fn doorbell(&mut self) -> io::Result<Doorbell>;
    /// Stops accepting on the listener and closes it.
    fn close_listener(&mut self, listener: Socket);
    /// Operations that the kernel still holds; 0 after a drain.
    fn in_flight(&self) -> usize;
    fn write_mode(&self) -> WriteMode;
}
