//! A whole machine behind the seam of [`crate::io`]: disk, network and clock, all driven by one seed.
//!
//! Operations take their time and complete in any order. An operation on a file takes effect when it completes; a flush
//! covers what had completed when it was submitted, as the kernel's does. Time stands still while the shard works, and
//! jumps to the next thing that happens while it waits.

use super::disk::{Disk, Fate};
use super::network::{Network, NetworkFaults};
use super::random::{Random, Trace};
use super::sim_io::SimIo;
use crate::clock::Now;
use crate::io::{
    BufferId, Completion, Done, Doorbell, File, FileSystem, Io, Op, Ring, Socket, Space, Token,
    WriteMode,
};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Chances in ten thousand that an operation fails, and how long operations take.
#[derive(Clone, Copy, Debug)]
pub struct DiskFaults {
    pub write: u32,
    pub flush: u32,
    pub read: u32,
    /// Of preparing a segment or replacing a small file.
    pub other: u32,
    pub latency_us: u64,
    /// Of an operation that takes seconds.
    pub stall: u32,
    pub inline: bool,
}

#[derive(Debug)]
struct Pending {
    token: Token,
    op: Op,
    /// Writes of the file that a flush covers.
    covered: usize,
}

#[derive(Debug)]
struct Bell(AtomicBool);

impl Ring for Bell {
    fn ring(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[derive(Debug)]
pub struct Host {
    files: SimIo,
    pub network: Network,
    pub random: Random,
    pub trace: Trace,
    faults: DiskFaults,
    /// No faults, and operations take their usual time.
    calm: bool,
    now: Now,
    /// Operations on files, by when they complete.
    pending: BTreeMap<(u64, u64), Pending>,
    submitted: u64,
    /// Completions that need no waiting.
    instant: Vec<Completion>,
    bell: Arc<Bell>,
    /// When a client wants to act, in monotonic microseconds.
    pub clients_due_us: u64,
    /// Operations that failed.
    pub failures: u64,
}

impl Host {
    pub fn new(
        disk: Disk,
        now: Now,
        faults: DiskFaults,
        network: NetworkFaults,
        random: Random,
        trace: Trace,
    ) -> Self {
        let mut files = SimIo::with_disk(disk);
        files.hold(true);
        Self {
            files,
            network: Network::new(network),
            random,
            trace,
            faults,
            calm: true,
            now,
            pending: BTreeMap::new(),
            submitted: 0,
            instant: Vec::new(),
            bell: Arc::new(Bell(AtomicBool::new(false))),
            clients_due_us: u64::MAX,
            failures: 0,
        }
    }

    pub fn set_calm(&mut self, calm: bool) {
        self.calm = calm;
        if calm {
            self.network.heal();
        }
    }

    pub fn now_us(&self) -> u64 {
        self.now.monotonic_us
    }

    /// The wall clock is set; monotonic time goes on.
    pub fn set_wall(&mut self, wall_ms: u64) {
        self.now.wall_ms = wall_ms;
    }

    pub fn instant_of_turn(&self) -> Now {
        self.now
    }

    fn advance_to(&mut self, at_us: u64) {
        let step_us = at_us.saturating_sub(self.now.monotonic_us);
        let wall_us = self.now.monotonic_us % 1000 + step_us;
        self.now.monotonic_us += step_us;
        self.now.wall_ms += wall_us / 1000;
    }

    /// The process dies: each operation on its way happened, did not, or a write in part.
    pub fn kill(&mut self) -> Disk {
        for (_, pending) in std::mem::take(&mut self.pending) {
            match (self.random.below(3), pending.op) {
                (0, op) => {
                    self.perform(pending.token, op, pending.covered);
                }
                (
                    1,
                    Op::Write {
                        file,
                        position,
                        bytes,
                    },
                ) => {
                    let torn = self.random.below(bytes.len() as u64 + 1) as usize;
                    // A file that is closed takes nothing any more.
                    let _ = self.files.write_at(file, position, &bytes[..torn]);
                }
                _ => {}
            }
        }
        self.files.disk().clone()
    }

    /// The machine loses power as well: unflushed writes survive whole, torn at a sector, or not.
    pub fn power_cut(&mut self) -> Disk {
        let disk = self.kill();
        let random = &mut self.random;
        disk.power_cut(|_| match random.below(3) {
            0 => Fate::Kept,
            1 => Fate::Lost,
            _ => Fate::Torn {
                sectors: random.below(4) as usize,
            },
        })
    }

    fn perform(&mut self, token: Token, op: Op, covered: usize) -> Vec<Completion> {
        let mut completions = Vec::new();
        if let Op::Flush { file } = op {
            let result = self.files.flush_first(file, covered);
            completions.push(Completion {
                token,
                result: result.map(|()| Done::Flushed).map_err(failed),
                more: false,
            });
        } else {
            self.files.submit(token, op);
            self.files.complete(0, &mut completions);
        }
        completions
    }

    /// Executes an operation on a file, unless it fails.
    fn execute(&mut self, pending: Pending, out: &mut Vec<Completion>) {
        let Pending { token, op, covered } = pending;
        let share = match op {
            Op::Write { .. } => self.faults.write,
            Op::Flush { .. } => self.faults.flush,
            Op::Read { .. } => self.faults.read,
            _ => self.faults.other,
        };
        if self.calm || !self.random.chance(share) {
            out.extend(self.perform(token, op, covered));
            return;
        }
        self.failures += 1;
        let errno = match op {
            Op::Flush { file } => {
                // The file stays open while a flush of it is in flight.
                let _ = self.files.fail_flush(file);
                EIO
            }
            Op::Write {
                file,
                position,
                bytes,
            } => {
                let part = self.random.below(bytes.len() as u64 + 1) as usize;
                let _ = self.files.write_at(file, position, &bytes[..part]);
                [EIO, ENOSPC][self.random.below(2) as usize]
            }
            Op::Read { .. } => EIO,
            _ => ENOSPC,
        };
        out.push(Completion {
            token,
            result: Err(crate::io::Failed { errno }),
            more: false,
        });
    }

    fn advance(&mut self, completions: &mut Vec<Completion>) {
        let before = completions.len();
        completions.append(&mut self.instant);
        if self.bell.0.swap(false, Ordering::SeqCst) {
            completions.push(Completion {
                token: crate::io::DOORBELL,
                result: Ok(Done::Rang),
                more: true,
            });
        }
        let now_us = self.now.monotonic_us;
        while let Some(entry) = self.pending.first_entry()
            && entry.key().0 <= now_us
        {
            let pending = entry.remove();
            self.execute(pending, completions);
        }
        self.network.advance(now_us, &mut self.random, completions);
        for completion in &completions[before..] {
            let token = completion.token;
            self.trace
                .number(u64::from(token.kind) << 32 | u64::from(token.index));
            self.trace.number(completion.result.is_ok().into());
        }
    }
}

fn failed(error: io::Error) -> crate::io::Failed {
    crate::io::Failed {
        errno: error.raw_os_error().unwrap_or(EIO),
    }
}

impl FileSystem for Host {
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.files.list(directory)
    }
    fn is_directory(&self, path: &Path) -> bool {
        self.files.is_directory(path)
    }
    fn exists(&self, path: &Path) -> bool {
        self.files.exists(path)
    }
    fn create_directories(&self, path: &Path) -> io::Result<()> {
        self.files.create_directories(path)
    }
    fn open(&mut self, path: &Path) -> io::Result<File> {
        self.files.open(path)
    }
    fn lock(&mut self, path: &Path) -> io::Result<File> {
        self.files.lock(path)
    }
    fn close(&mut self, file: File) {
        FileSystem::close(&mut self.files, file);
    }
    fn len(&self, file: File) -> io::Result<u64> {
        self.files.len(file)
    }
    fn read_at(&self, file: File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.files.read_at(file, position, buffer)
    }
    fn write_at(&mut self, file: File, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.files.write_at(file, position, bytes)
    }
    fn zero_range(&mut self, file: File, position: u64, len: u64) -> io::Result<()> {
        self.files.zero_range(file, position, len)
    }
    fn next_data(&self, file: File, position: u64) -> io::Result<u64> {
        self.files.next_data(file, position)
    }
    fn set_len(&mut self, file: File, len: u64) -> io::Result<()> {
        self.files.set_len(file, len)
    }
    fn flush(&mut self, file: File) -> io::Result<()> {
        FileSystem::flush(&mut self.files, file)
    }
    fn flush_directory(&mut self, directory: &Path) -> io::Result<()> {
        self.files.flush_directory(directory)
    }
    fn create(&mut self, path: &Path, len: u64) -> io::Result<File> {
        self.files.create(path, len)
    }
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.files.remove(path)
    }
    fn remove_directory(&mut self, path: &Path) -> io::Result<()> {
        self.files.remove_directory(path)
    }
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.files.rename(from, to)
    }
    fn read_whole(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.read_whole(path)
    }
    fn replace(&mut self, path: &Path, contents: &[u8], keep_backup: bool) -> io::Result<()> {
        self.files.replace(path, contents, keep_backup)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        self.files.space(path)
    }
}

impl Io for Host {
    fn now(&mut self) -> Now {
        self.now
    }
    fn submit(&mut self, token: Token, op: Op) {
        let now_us = self.now.monotonic_us;
        match op {
            Op::Accept { .. } => return self.network.accept(token),
            Op::Receive { socket } => return self.network.receive(token, socket),
            Op::StopReceive { socket } => {
                return self.network.stop_receive(socket, &mut self.instant);
            }
            Op::Send { socket, segments } => {
                let due_us = now_us + 1 + self.random.below(100);
                return self.network.send(token, socket, segments, due_us);
            }
            Op::Close { socket } => return self.network.close(token, socket),
            _ => {}
        }
        let covered = match op {
            Op::Flush { file } => self.files.unflushed_of(file),
            _ => 0,
        };
        let pending = Pending { token, op, covered };
        if self.faults.inline && matches!(pending.op, Op::Write { .. }) {
            let mut out = std::mem::take(&mut self.instant);
            self.execute(pending, &mut out);
            self.instant = out;
            return;
        }
        let latency_us = 1 + self.random.below(self.faults.latency_us);
        let stalls = !self.calm && self.random.chance(self.faults.stall);
        let stall_us = if stalls {
            self.random.below(4_000_000)
        } else {
            0
        };
        self.submitted += 1;
        let due_us = now_us + latency_us + stall_us;
        self.pending.insert((due_us, self.submitted), pending);
    }
    fn wait(
        &mut self,
        deadline_us: Option<u64>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        // A turn takes time too.
        let turn_us = self.now.monotonic_us + 1 + self.random.below(20);
        self.advance_to(turn_us);
        if self.instant.is_empty() && !self.bell.0.load(Ordering::SeqCst) {
            let disk = self.pending.first_key_value().map(|((due, _), _)| *due);
            let parts = [
                deadline_us,
                disk,
                self.network.due_us(),
                Some(self.clients_due_us),
            ];
            if let Some(next_us) = parts.into_iter().flatten().min()
                && next_us != u64::MAX
            {
                self.advance_to(next_us);
            }
        }
        self.trace.number(self.now.monotonic_us);
        self.advance(completions);
        Ok(())
    }
    fn ready(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.instant);
    }
    fn received(&self, buffer: BufferId, bytes: u32) -> &[u8] {
        self.network.received(buffer, bytes)
    }
    fn release(&mut self, buffer: BufferId) {
        self.network.release(buffer);
    }
    fn listen(&mut self, address: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
        Ok((Socket(u32::MAX), address))
    }
    fn doorbell(&mut self) -> io::Result<Doorbell> {
        Ok(Doorbell(self.bell.clone()))
    }
    fn close_listener(&mut self, _listener: Socket) {
        self.network.close_listener(&mut self.instant);
    }
    fn in_flight(&self) -> usize {
        self.pending.len() + self.network.in_flight()
    }
    fn write_mode(&self) -> WriteMode {
        match self.faults.inline {
            true => WriteMode::Inline,
            false => WriteMode::Ring,
        }
    }
}
