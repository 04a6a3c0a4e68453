//! The kernel backend: one io_uring per shard, created and used on the shard's thread.
#![allow(unsafe_code)]

mod busy_poll;
mod complete;
mod files;
mod setup;
mod sockets;

pub use setup::{Features, SetupError, TaskWork, UringConfig};

use super::buffers::BufferRing;
use super::fs::Files;
use super::worker::Worker;
use super::{
    BufferId, Completion, Done, Doorbell, Failed, File, FileSystem, Io, Op, Ring, Socket, Token,
    WriteMode,
};
use crate::clock::{Clock, Now};
use crate::limits::INLINE_WRITE_BYTES_MAX;
use busy_poll::BusyPoll;
use bytes::{Bytes, BytesMut};
use io_uring::{IoUring, opcode, squeue, types};
use setup::{probe_write_mode, setup_ring};
use slab::Slab;
use sockets::{SendSlot, SocketState};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BUFFER_GROUP: u16 = 0;
/// User data of the doorbell's read and of cancels; slots of operations lie below.
const DOORBELL_DATA: u64 = u64::MAX;
const CANCEL_DATA: u64 = u64::MAX - 1;

/// An operation in flight; owns what the kernel may touch.
enum Flight {
    Accept {
        listener: Socket,
        multishot: bool,
    },
    Receive {
        socket: Socket,
        multishot: bool,
    },
    Send(Box<SendSlot>),
    Write {
        file: File,
        position: u64,
        bytes: Bytes,
    },
    Read {
        file: File,
        position: u64,
        bytes: BytesMut,
        wanted: u32,
    },
    Flush,
}

struct Eventfd {
    fd: OwnedFd,
    rung: AtomicBool,
}

impl Ring for Eventfd {
    fn ring(&self) {
        if self.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        // Full is as good as rung.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }
}

/// The backend. Field order matters: the ring is dropped before the memory that it may write to.
pub struct Uring {
    ring: IoUring,
    buffers: BufferRing,
    flights: Slab<(Token, Flight)>,
    sockets: Slab<SocketState>,
    files: Files,
    worker: Worker,
    doorbell: Arc<Eventfd>,
    doorbell_value: Box<u64>,
    doorbell_armed: bool,
    done: Vec<Completion>,
    /// Boxed, since the kernel holds the address of a slot while it is in flight.
    #[allow(clippy::vec_box)]
    spare_sends: Vec<Box<SendSlot>>,
    write_mode: WriteMode,
    clock: Clock,
    gave_back: bool,
    busy_poll: BusyPoll,
    /// What is in use.
    features: Features,
}

impl Uring {
    /// Sets the ring up on the calling thread, which is the only one that may use it.
    pub fn new(config: &UringConfig) -> Result<Self, SetupError> {
        let (ring, features) = setup_ring(config.features)?;
        let buffers = BufferRing::new(config.receive_buffers, config.receive_buffer_bytes);
        // SAFETY: the entries are page-aligned and live as long as the ring, which is dropped first.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                buffers.entries_address(),
                buffers.count(),
                BUFFER_GROUP,
                0,
            )
        }
        .map_err(|error| setup::refused("rings of provided buffers", error))?;
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(io::Error::from)?;
        let doorbell = Arc::new(Eventfd {
            fd: eventfd,
            rung: AtomicBool::new(false),
        });
        let worker = Worker::start(Doorbell(doorbell.clone()))?;
        let write_mode = match config.write_mode {
            Some(mode) => mode,
            None => probe_write_mode(&config.store)?,
        };
        Ok(Self {
            ring,
            buffers,
            flights: Slab::new(),
            sockets: Slab::new(),
            files: Files::default(),
            worker,
            doorbell,
            doorbell_value: Box::new(0),
            doorbell_armed: false,
            done: Vec::new(),
            spare_sends: Vec::new(),
            write_mode,
            clock: Clock::new(),
            busy_poll: BusyPoll::new(config.busy_poll_us),
            gave_back: false,
            features,
        })
    }

    /// What the ring uses: what was asked for, less what the kernel lacks.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Queues an entry; a full queue is submitted first, so none is lost.
    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: what the entry points to is owned by `flights` (or by `self`, for the doorbell) until its
            // completion.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // EINTR, EAGAIN, EBUSY: completions must be taken first; the kernel keeps what does not fit.
            let _ = self.ring.submit();
            let mut completions = std::mem::take(&mut self.done);
            self.reap(&mut completions);
            self.done = completions;
        }
    }

    /// Puts the operation into the table and the queue; returns its slot.
    fn fly(
        &mut self,
        token: Token,
        flight: Flight,
        entry: impl FnOnce(&mut Flight) -> squeue::Entry,
    ) -> usize {
        let slot = self.flights.insert((token, flight));
        let entry = entry(&mut self.flights[slot].1).user_data(slot as u64);
        self.push(&entry);
        slot
    }

    fn fail(&mut self, token: Token, errno: i32) {
        self.done.push(Completion {
            token,
            result: Err(Failed { errno }),
            more: false,
        });
    }

    fn arm_doorbell(&mut self) {
        if self.doorbell_armed {
            return;
        }
        self.doorbell_armed = true;
        let fd = types::Fd(self.doorbell.fd.as_raw_fd());
        let value: *mut u64 = &mut *self.doorbell_value;
        let entry = opcode::Read::new(fd, value.cast(), 8)
            .build()
            .user_data(DOORBELL_DATA);
        self.push(&entry);
    }

    fn write(&mut self, token: Token, file: File, position: u64, bytes: Bytes) {
        if self.write_mode == WriteMode::Inline && bytes.len() <= INLINE_WRITE_BYTES_MAX {
            let result = match self.files.write_at(file, position, &bytes) {
                Ok(()) => Ok(Done::Written),
                Err(error) => Err(Failed {
                    errno: error.raw_os_error().unwrap_or(libc::EIO),
                }),
            };
            self.done.push(Completion {
                token,
                result,
                more: false,
            });
            return;
        }
        self.fly_write(token, file, position, bytes);
    }

    /// Writes what is left of `bytes`.
    fn fly_write(&mut self, token: Token, file: File, position: u64, bytes: Bytes) {
        let fd = types::Fd(self.files.fd(file));
        let (start, len) = (bytes.as_ptr(), bytes.len() as u32);
        self.fly(
            token,
            Flight::Write {
                file,
                position,
                bytes,
            },
            |_| opcode::Write::new(fd, start, len).offset(position).build(),
        );
    }

    fn read(&mut self, token: Token, file: File, position: u64, mut bytes: BytesMut, wanted: u32) {
        let fd = types::Fd(self.files.fd(file));
        let done = bytes.len() as u32;
        bytes.reserve((wanted - done) as usize);
        let start = bytes.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        self.fly(
            token,
            Flight::Read {
                file,
                position,
                bytes,
                wanted,
            },
            |_| {
                opcode::Read::new(fd, start, wanted - done)
                    .offset(position + u64::from(done))
                    .build()
            },
        );
    }

    /// Polls for completions, if that has paid lately. What is queued is submitted first.
    fn poll(&mut self, start_us: u64, deadline_us: Option<u64>) -> io::Result<()> {
        let Some(until_us) = self.busy_poll.until(start_us, deadline_us) else {
            return Ok(());
        };
        go_on(self.ring.submit())?;
        while self.done.is_empty() && self.ring.completion().is_empty() {
            if self.ring.submission().taskrun() {
                // The completions are there, and need an entry of the kernel to become visible.
                go_on(self.ring.submit())?;
                continue;
            }
            if self.clock.now().monotonic_us >= until_us {
                break;
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// What a wait tells about the next one: a deadline is no completion.
    fn watch(&mut self, start_us: u64, in_vain: bool) {
        let pause_us = self.clock.now().monotonic_us - start_us;
        self.busy_poll
            .waited(if in_vain { u64::MAX } else { pause_us });
    }

    fn publish_buffers(&mut self) {
        if std::mem::take(&mut self.gave_back) {
            self.buffers.publish();
        }
    }
}

/// None of these loses an entry; what is queued goes with the next turn.
fn go_on(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error),
        },
    }
}

impl Io for Uring {
    fn now(&mut self) -> Now {
        self.clock.now()
    }
    fn measured_us(&mut self) -> u64 {
        self.clock.monotonic_us()
    }

    fn submit(&mut self, token: Token, op: Op) {
        match op {
            Op::Accept { listener } => self.accept(token, listener),
            Op::Receive { socket } => self.receive(token, socket),
            Op::StopReceive { socket } => self.stop_receive(socket),
            Op::Send { socket, segments } => self.send(token, socket, segments),
            Op::Close { socket } => self.close(token, socket),
            Op::Write {
                file,
                position,
                bytes,
            } => self.write(token, file, position, bytes),
            Op::Read {
                file,
                position,
                len,
            } => self.read(token, file, position, BytesMut::new(), len),
            Op::Flush { file } => {
                let fd = types::Fd(self.files.fd(file));
                let flags = types::FsyncFlags::DATASYNC;
                self.fly(token, Flight::Flush, |_| {
                    opcode::Fsync::new(fd).flags(flags).build()
                });
            }
            Op::Prepare { .. }
            | Op::Replace { .. }
            | Op::Remove { .. }
            | Op::RemoveDirectory { .. }
            | Op::Space { .. } => self.worker.submit(token, op),
        }
    }

    fn wait(
        &mut self,
        deadline_us: Option<u64>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        self.publish_buffers();
        self.arm_doorbell();
        let start_us = self
            .busy_poll
            .is_on()
            .then(|| self.clock.now().monotonic_us);
        if let Some(start_us) = start_us {
            self.poll(start_us, deadline_us)?;
        }
        let ready = !self.done.is_empty() || !self.ring.completion().is_empty();
        let result = if ready {
            self.ring.submit()
        } else if let Some(deadline) = deadline_us {
            let left = deadline.saturating_sub(self.clock.now().monotonic_us);
            let timeout = types::Timespec::new()
                .sec(left / 1_000_000)
                .nsec((left % 1_000_000) as u32 * 1000);
            self.ring
                .submitter()
                .submit_with_args(1, &types::SubmitArgs::new().timespec(&timeout))
        } else {
            self.ring.submit_and_wait(1)
        };
        go_on(result)?;
        self.reap(completions);
        if let Some(start_us) = start_us {
            self.watch(start_us, completions.is_empty());
        }
        Ok(())
    }

    fn ready(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
    }

    fn received(&self, buffer: BufferId, bytes: u32) -> &[u8] {
        self.buffers.bytes(buffer, bytes)
    }

    fn release(&mut self, buffer: BufferId) {
        self.buffers.give_back(buffer);
        self.gave_back = true;
    }

    fn listen(&mut self, address: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        let listener: TcpListener = socket.into();
        let local = listener.local_addr()?;
        let state = SocketState::new(listener.into());
        Ok((Socket(self.sockets.insert(state) as u32), local))
    }

    fn doorbell(&mut self) -> io::Result<Doorbell> {
        Ok(Doorbell(self.doorbell.clone()))
    }

    fn close_listener(&mut self, listener: Socket) {
        if let Some(state) = self.sockets.get_mut(listener.0 as usize) {
            state.is_shut = true;
            // Ends the multishot accept with an error; the descriptor stays until the process or the ring ends.
            // SAFETY: the descriptor is open.
            unsafe { libc::shutdown(state.fd, libc::SHUT_RDWR) };
        }
    }

    fn in_flight(&self) -> usize {
        self.flights.len() + self.worker.waiting()
    }

    fn write_mode(&self) -> WriteMode {
        self.write_mode
    }
}

impl Drop for Uring {
    /// Memory that the kernel may still write to outlives its operations: they are cancelled and waited for.
    fn drop(&mut self) {
        for (_, state) in &self.sockets {
            // SAFETY: the descriptor is open.
            unsafe { libc::shutdown(state.fd, libc::SHUT_RDWR) };
        }
        let cancel = types::CancelBuilder::any();
        let _ = self
            .ring
            .submitter()
            .register_sync_cancel(Some(types::Timespec::new().sec(2)), cancel);
        let mut completions = Vec::new();
        for _ in 0..50 {
            if self.flights.is_empty() {
                break;
            }
            let timeout = types::Timespec::new().nsec(100_000_000);
            let _ = self
                .ring
                .submitter()
                .submit_with_args(1, &types::SubmitArgs::new().timespec(&timeout));
            self.reap(&mut completions);
        }
        if !self.flights.is_empty() {
            tracing::error!(
                operations = self.flights.len(),
                "the kernel did not give operations back; their memory is leaked"
            );
            std::mem::forget(std::mem::take(&mut self.flights));
        }
        for state in self.sockets.drain() {
            // SAFETY: ours, and no operation names it any more.
            drop(unsafe { OwnedFd::from_raw_fd(state.fd) });
        }
    }
}
