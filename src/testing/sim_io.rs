//! [`Io`] over a [`Disk`] in memory: completions at once, or held back and released in any order; errors on the
//! n-th operation of a kind; death after a number of effects, with the last one torn.
//!
//! For tests of the store alone: it has no sockets, [`super::host`] has.

use super::disk::{Disk, InodeId};
use crate::clock::Now;
use crate::io::{
    BufferId, Completion, Done, Doorbell, Failed, File, FileSystem, Io, Op, Ring, Socket, Space,
    Token, WriteMode,
};
use bytes::BytesMut;
use std::cell::{Cell, Ref, RefCell, RefMut};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// Kinds of operations that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    Write,
    Read,
    Flush,
    Prepare,
    Replace,
    Remove,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    kind: OpKind,
    /// Operations of the kind that still pass.
    after: u64,
    count: u64,
    errno: i32,
}

/// The n-th effect is the last; of a write, `torn_bytes` still reach the disk.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    pub after_effects: u64,
    pub torn_bytes: usize,
}

#[derive(Debug)]
pub struct SimIo {
    disk: RefCell<Disk>,
    handles: Vec<Option<InodeId>>,
    held: Vec<(Token, Op)>,
    hold: bool,
    now: Now,
    space: Space,
    faults: Vec<Fault>,
    death: Option<Death>,
    effects: Cell<u64>,
    dead: Cell<bool>,
}

const EIO: i32 = 5;
const EBADF: i32 = 9;

fn kind_of(op: &Op) -> Option<OpKind> {
    match op {
        Op::Write { .. } => Some(OpKind::Write),
        Op::Read { .. } => Some(OpKind::Read),
        Op::Flush { .. } => Some(OpKind::Flush),
        Op::Prepare { .. } => Some(OpKind::Prepare),
        Op::Replace { .. } => Some(OpKind::Replace),
        Op::Remove { .. } | Op::RemoveDirectory { .. } => Some(OpKind::Remove),
        Op::Accept { .. }
        | Op::Receive { .. }
        | Op::StopReceive { .. }
        | Op::Send { .. }
        | Op::Close { .. }
        | Op::Space { .. } => None,
    }
}

impl SimIo {
    pub fn new() -> Self {
        Self::with_disk(Disk::new())
    }

    pub fn with_disk(disk: Disk) -> Self {
        let now = Now {
            monotonic_us: 1_000_000,
            wall_ms: 1_700_000_000_000,
        };
        Self {
            disk: RefCell::new(disk),
            handles: Vec::new(),
            held: Vec::new(),
            hold: false,
            now,
            space: Space {
                used: 1 << 40,
                available: 1 << 40,
            },
            faults: Vec::new(),
            death: None,
            effects: Cell::new(0),
            dead: Cell::new(false),
        }
    }

    pub fn disk(&self) -> Ref<'_, Disk> {
        self.disk.borrow()
    }

    pub fn disk_mut(&self) -> RefMut<'_, Disk> {
        self.disk.borrow_mut()
    }

    /// Completions wait for [`SimIo::complete`].
    pub fn hold(&mut self, hold: bool) {
        self.hold = hold;
    }

    /// Operations submitted and not completed, in order of submission.
    pub fn pending(&self) -> &[(Token, Op)] {
        &self.held
    }

    /// Executes the pending operation at `index`.
    pub fn complete(&mut self, index: usize, completions: &mut Vec<Completion>) {
        let (token, op) = self.held.remove(index);
        self.execute(token, op, completions);
    }

    /// Forgets the pending operation at `index`: it never happens.
    pub fn drop_pending(&mut self, index: usize) {
        self.held.remove(index);
    }

    pub fn set_space(&mut self, space: Space) {
        self.space = space;
    }

    pub fn set_now(&mut self, now: Now) {
        self.now = now;
    }

    pub fn advance_ms(&mut self, ms: u64) {
        self.now.monotonic_us += ms * 1000;
        self.now.wall_ms += ms;
    }

    /// After `after` more operations of the kind, `count` ones fail.
    pub fn fail(&mut self, kind: OpKind, after: u64, count: u64, errno: i32) {
        self.faults.push(Fault {
            kind,
            after,
            count,
            errno,
        });
    }

    /// Forgets all faults that are still to come.
    pub fn heal(&mut self) {
        self.faults.clear();
    }

    pub fn die(&mut self, death: Death) {
        self.death = Some(death);
    }

    pub fn is_dead(&self) -> bool {
        self.dead.get()
    }

    /// Effects on the disk so far: each is a place where a process can die.
    pub fn effects(&self) -> u64 {
        self.effects.get()
    }

    /// Counts an effect. `Some` says how many bytes of it still happen.
    fn count_effect(&self) -> Option<usize> {
        if self.dead.get() {
            return Some(0);
        }
        self.effects.set(self.effects.get() + 1);
        match self.death {
            Some(death) if self.effects.get() > death.after_effects => {
                self.dead.set(true);
                Some(death.torn_bytes)
            }
            _ => None,
        }
    }

    fn take_fault(&mut self, kind: OpKind) -> Option<i32> {
        let fault = self
            .faults
            .iter_mut()
            .find(|f| f.kind == kind && f.count > 0)?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        fault.count -= 1;
        Some(fault.errno)
    }

    fn handle(&mut self, id: InodeId) -> File {
        self.handles.push(Some(id));
        File((self.handles.len() - 1) as u32)
    }

    fn inode(&self, file: File) -> io::Result<InodeId> {
        let handle = self.handles.get(file.0 as usize).copied().flatten();
        handle.ok_or_else(|| io::Error::from_raw_os_error(EBADF))
    }

    /// Writes of the file that a power cut may lose.
    pub(super) fn unflushed_of(&self, file: File) -> usize {
        let inode = self.inode(file);
        inode.map_or(0, |id| self.disk.borrow().unflushed_of(id))
    }

    /// Flushes the first `count` unflushed writes of a file.
    pub(super) fn flush_first(&mut self, file: File, count: usize) -> io::Result<()> {
        let id = self.inode(file)?;
        self.disk.borrow_mut().flush_first(id, count);
        Ok(())
    }

    pub(super) fn fail_flush(&mut self, file: File) -> io::Result<()> {
        let id = self.inode(file)?;
        self.disk.borrow_mut().fail_flush(id);
        Ok(())
    }

    fn execute(&mut self, token: Token, op: Op, completions: &mut Vec<Completion>) {
        if self.dead.get() {
            return;
        }
        let fault = kind_of(&op).and_then(|kind| self.take_fault(kind));
        if let (Some(_), Op::Flush { file }) = (fault, &op)
            && let Ok(id) = self.inode(*file)
        {
            self.disk.borrow_mut().fail_flush(id);
        }
        let result = match fault {
            Some(errno) => Err(Failed { errno }),
            None => self.perform(op).map_err(|error| Failed {
                errno: error.raw_os_error().unwrap_or(EIO),
            }),
        };
        if !self.dead.get() {
            completions.push(Completion {
                token,
                result,
                more: false,
            });
        }
    }

    fn perform(&mut self, op: Op) -> io::Result<Done> {
        match op {
            Op::Write {
                file,
                position,
                bytes,
            } => self
                .write_at(file, position, &bytes)
                .map(|()| Done::Written),
            Op::Read {
                file,
                position,
                len,
            } => {
                let id = self.inode(file)?;
                let mut bytes = BytesMut::zeroed(len as usize);
                let count = self.disk.borrow().read(id, position, &mut bytes);
                bytes.truncate(count);
                Ok(Done::Read { bytes })
            }
            Op::Flush { file } => self.flush(file).map(|()| Done::Flushed),
            Op::Prepare { path, len, .. } => {
                if let Some(parent) = path.parent() {
                    self.create_directories(parent)?;
                }
                let file = self.create(&path, len)?;
                Ok(Done::Opened { file })
            }
            Op::Replace {
                path,
                contents,
                keep_backup,
            } => self
                .replace(&path, &contents, keep_backup)
                .map(|()| Done::Replaced),
            Op::Remove { path } => self.remove(&path).map(|()| Done::Removed),
            Op::RemoveDirectory { path } => self.remove_directory(&path).map(|()| Done::Removed),
            Op::Space { .. } => Ok(Done::Space(self.space)),
            Op::Accept { .. }
            | Op::Receive { .. }
            | Op::StopReceive { .. }
            | Op::Send { .. }
            | Op::Close { .. } => {
                unreachable!("sockets are not simulated: {op:?}")
            }
        }
    }

    fn execute_all(&mut self, completions: &mut Vec<Completion>) {
        while !self.hold && !self.held.is_empty() {
            self.complete(0, completions);
        }
    }

    /// An error once the process is dead; counts an effect otherwise.
    fn effect(&self) -> io::Result<()> {
        match self.count_effect() {
            None => Ok(()),
            Some(_) => Err(io::Error::from_raw_os_error(EIO)),
        }
    }
}

impl Default for SimIo {
    fn default() -> Self {
        Self::new()
    }
}

impl FileSystem for SimIo {
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        Ok(self.disk.borrow().list(directory))
    }
    fn is_directory(&self, path: &Path) -> bool {
        self.disk.borrow().is_directory(path)
    }
    fn exists(&self, path: &Path) -> bool {
        self.disk.borrow().is_directory(path) || self.disk.borrow().find(path).is_ok()
    }
    fn create_directories(&self, path: &Path) -> io::Result<()> {
        self.effect()?;
        self.disk.borrow_mut().create_directories(path);
        Ok(())
    }
    fn open(&mut self, path: &Path) -> io::Result<File> {
        let id = self.disk.borrow().find(path)?;
        Ok(self.handle(id))
    }
    fn lock(&mut self, path: &Path) -> io::Result<File> {
        self.create(path, 0)
    }
    fn close(&mut self, file: File) {
        let handle = self.handles.get_mut(file.0 as usize);
        let open = handle.and_then(Option::take);
        assert!(open.is_some(), "{file:?} was closed before");
    }
    fn len(&self, file: File) -> io::Result<u64> {
        Ok(self.disk.borrow().len(self.inode(file)?))
    }
    fn read_at(&self, file: File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.disk.borrow().read(self.inode(file)?, position, buffer))
    }
    fn write_at(&mut self, file: File, position: u64, bytes: &[u8]) -> io::Result<()> {
        let id = self.inode(file)?;
        match self.count_effect() {
            None => self.disk.borrow_mut().write(id, position, bytes),
            Some(torn) => {
                self.disk
                    .borrow_mut()
                    .write(id, position, &bytes[..torn.min(bytes.len())]);
                return Err(io::Error::from_raw_os_error(EIO));
            }
        }
        Ok(())
    }
    fn zero_range(&mut self, file: File, position: u64, len: u64) -> io::Result<()> {
        let id = self.inode(file)?;
        let end = self.disk.borrow().len(id).min(position + len);
        let zeros = vec![0; end.saturating_sub(position) as usize];
        self.write_at(file, position, &zeros)
    }
    fn next_data(&self, file: File, position: u64) -> io::Result<u64> {
        let id = self.inode(file)?;
        let disk = self.disk.borrow();
        let contents = disk.contents(id);
        let tail = contents.get(position as usize..).unwrap_or_default();
        let found = tail.iter().position(|byte| *byte != 0);
        Ok(found.map_or(contents.len() as u64, |at| position + at as u64))
    }
    fn set_len(&mut self, file: File, len: u64) -> io::Result<()> {
        let id = self.inode(file)?;
        self.effect()?;
        self.disk.borrow_mut().set_len(id, len);
        Ok(())
    }
    fn flush(&mut self, file: File) -> io::Result<()> {
        let id = self.inode(file)?;
        self.effect()?;
        self.disk.borrow_mut().flush(id);
        Ok(())
    }
    fn flush_directory(&mut self, directory: &Path) -> io::Result<()> {
        let _ = directory;
        Ok(())
    }
    fn create(&mut self, path: &Path, len: u64) -> io::Result<File> {
        self.effect()?;
        let id = self.disk.borrow_mut().create(path, len)?;
        Ok(self.handle(id))
    }
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.effect()?;
        self.disk.borrow_mut().remove(path);
        Ok(())
    }
    fn remove_directory(&mut self, path: &Path) -> io::Result<()> {
        self.effect()?;
        self.disk.borrow_mut().remove_directory(path);
        Ok(())
    }
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.effect()?;
        self.disk.borrow_mut().rename(from, to)
    }
    fn read_whole(&self, path: &Path) -> io::Result<Vec<u8>> {
        let disk = self.disk.borrow();
        Ok(disk.contents(disk.find(path)?).to_vec())
    }
    fn replace(&mut self, path: &Path, contents: &[u8], keep_backup: bool) -> io::Result<()> {
        self.effect()?;
        let mut disk = self.disk.borrow_mut();
        if keep_backup && let Ok(id) = disk.find(path) {
            let old = disk.contents(id).to_vec();
            disk.replace(&path.with_added_extension("bak"), &old)?;
        }
        disk.replace(path, contents)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        let _ = path;
        Ok(self.space)
    }
}

struct Silent;

impl Ring for Silent {
    fn ring(&self) {}
}

impl Io for SimIo {
    fn now(&mut self) -> Now {
        self.now
    }
    fn submit(&mut self, token: Token, op: Op) {
        self.held.push((token, op));
    }
    fn wait(
        &mut self,
        deadline_us: Option<u64>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        let before = completions.len();
        self.execute_all(completions);
        if completions.len() == before
            && let Some(deadline) = deadline_us
        {
            let late = deadline.saturating_sub(self.now.monotonic_us);
            self.advance_ms(late.div_ceil(1000));
        }
        Ok(())
    }
    fn ready(&mut self, completions: &mut Vec<Completion>) {
        self.execute_all(completions);
    }
    fn received(&self, buffer: BufferId, bytes: u32) -> &[u8] {
        unreachable!("sockets are not simulated: {buffer:?} {bytes}")
    }
    fn release(&mut self, buffer: BufferId) {
        unreachable!("sockets are not simulated: {buffer:?}")
    }
    fn listen(&mut self, address: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
        Ok((Socket(0), address))
    }
    fn doorbell(&mut self) -> io::Result<Doorbell> {
        Ok(Doorbell(Arc::new(Silent)))
    }
    fn close_listener(&mut self, listener: Socket) {
        let _ = listener;
    }
    fn in_flight(&self) -> usize {
        self.held.len()
    }
    fn write_mode(&self) -> WriteMode {
        WriteMode::Ring
    }
}
