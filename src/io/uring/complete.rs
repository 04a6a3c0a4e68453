//! From the kernel's completions to ours.

use super::sockets::{SendSlot, SocketState};
use super::{CANCEL_DATA, DOORBELL_DATA, Flight, Uring};
use crate::io::worker::Finished;
use crate::io::{BufferId, Completion, DOORBELL, Done, Failed, File, Io, Socket, Token};
use bytes::{Buf, Bytes, BytesMut};
use io_uring::cqueue;
use std::io;
use std::net::SocketAddr;
use std::os::fd::FromRawFd;
use std::sync::atomic::Ordering;

impl Uring {
    pub(super) fn reap(&mut self, out: &mut Vec<Completion>) {
        let mut entries: smallvec::SmallVec<[cqueue::Entry; 64]> = smallvec::SmallVec::new();
        loop {
            entries.extend(self.ring.completion().take(64));
            if entries.is_empty() {
                break;
            }
            for entry in entries.drain(..) {
                match entry.user_data() {
                    CANCEL_DATA => {}
                    DOORBELL_DATA => {
                        self.doorbell_armed = false;
                        self.doorbell.rung.store(false, Ordering::Release);
                        out.push(Completion {
                            token: DOORBELL,
                            result: Ok(Done::Rang),
                            more: true,
                        });
                    }
                    slot => self.complete(slot as usize, &entry, out),
                }
            }
        }
        while let Some((token, result)) = self.worker.take() {
            out.push(Completion {
                token,
                result: self.finished(result),
                more: false,
            });
        }
        out.append(&mut self.done);
    }

    fn finished(&mut self, result: io::Result<Finished>) -> Result<Done, Failed> {
        match result {
            Ok(Finished::Opened(fd)) => Ok(Done::Opened {
                file: self.files.insert(fd),
            }),
            Ok(Finished::Replaced) => Ok(Done::Replaced),
            Ok(Finished::Removed) => Ok(Done::Removed),
            Ok(Finished::Space(space)) => Ok(Done::Space(space)),
            Err(error) => Err(Failed {
                errno: error.raw_os_error().unwrap_or(libc::EIO),
            }),
        }
    }

    fn complete(&mut self, slot: usize, entry: &cqueue::Entry, out: &mut Vec<Completion>) {
        let more = cqueue::more(entry.flags());
        let result = entry.result();
        if more {
            let (token, flight) = &self.flights[slot];
            let (token, accept) = (*token, matches!(flight, Flight::Accept { .. }));
            let result = if accept {
                self.accepted(result)
            } else {
                self.received(entry)
            };
            out.push(Completion {
                token,
                result,
                more,
            });
            return;
        }
        let (token, flight) = self.flights.remove(slot);
        let result = match flight {
            Flight::Accept {
                listener,
                multishot,
            } => {
                if multishot && self.lacks_multishot(listener, result) {
                    return self.accept(token, listener);
                }
                self.accepted(result)
            }
            Flight::Receive { socket, multishot } => {
                let again = multishot && self.lacks_multishot(socket, result);
                self.leave(socket, true);
                if again {
                    return self.receive(token, socket);
                }
                self.received(entry)
            }
            Flight::Send(slot) => self.sent(slot, result),
            Flight::Flush if result >= 0 => Ok(Done::Flushed),
            Flight::Write {
                file,
                position,
                bytes,
            } => match self.written(token, file, position, bytes, result) {
                Some(result) => result,
                None => return,
            },
            Flight::Read {
                file,
                position,
                bytes,
                wanted,
            } => match self.read_done(token, file, position, bytes, wanted, result) {
                Some(result) => result,
                None => return,
            },
            Flight::Flush => Err(Failed { errno: -result }),
        };
        out.push(Completion {
            token,
            result,
            more,
        });
    }

    /// A kernel before 6.0 refuses multishot operations when they are submitted: from then on each operation completes
    /// once. An accept of a listener that was shut down ends in the same way.
    fn lacks_multishot(&mut self, socket: Socket, result: i32) -> bool {
        let state = self.sockets.get(socket.0 as usize);
        let lacks = result == -libc::EINVAL && state.is_some_and(|state| !state.is_shut);
        if lacks {
            self.features.multishot = false;
        }
        lacks
    }

    fn accepted(&mut self, result: i32) -> Result<Done, Failed> {
        if result < 0 {
            return Err(Failed { errno: -result });
        }
        // SAFETY: the kernel just made this descriptor for us.
        let stream = unsafe { std::net::TcpStream::from_raw_fd(result) };
        // Both fail only for a connection that is gone already, which its receive will tell.
        let peer = stream
            .peer_addr()
            .unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
        let _ = stream.set_nodelay(true);
        let state = SocketState::new(stream.into());
        Ok(Done::Accepted {
            socket: Socket(self.sockets.insert(state) as u32),
            peer,
        })
    }

    fn received(&mut self, entry: &cqueue::Entry) -> Result<Done, Failed> {
        match entry.result() {
            0 => {
                // An orderly end may still carry a buffer; it is empty.
                if let Some(id) = cqueue::buffer_select(entry.flags()) {
                    self.buffers.lend(BufferId(id));
                    self.release(BufferId(id));
                }
                Ok(Done::ReceiveEnded)
            }
            bytes if bytes > 0 => {
                let id = cqueue::buffer_select(entry.flags()).ok_or(Failed { errno: libc::EIO })?;
                self.buffers.lend(BufferId(id));
                Ok(Done::Received {
                    buffer: BufferId(id),
                    bytes: bytes as u32,
                })
            }
            error => Err(Failed { errno: -error }),
        }
    }

    fn sent(&mut self, mut slot: Box<SendSlot>, result: i32) -> Result<Done, Failed> {
        let segments = std::mem::take(&mut slot.segments);
        self.leave(slot.socket, false);
        if self.spare_sends.len() < 256 {
            self.spare_sends.push(slot);
        }
        if result < 0 {
            Err(Failed { errno: -result })
        } else {
            Ok(Done::Sent {
                bytes: result as usize,
                segments,
            })
        }
    }

    /// A write counts by its full length only: a short one goes on.
    fn written(
        &mut self,
        token: Token,
        file: File,
        position: u64,
        mut bytes: Bytes,
        result: i32,
    ) -> Option<Result<Done, Failed>> {
        match result {
            0 if !bytes.is_empty() => {
                return Some(Err(Failed {
                    errno: libc::ENOSPC,
                }));
            }
            count if count >= 0 => bytes.advance(count as usize),
            error if -error == libc::EINTR || -error == libc::EAGAIN => {}
            error => return Some(Err(Failed { errno: -error })),
        }
        if bytes.is_empty() {
            return Some(Ok(Done::Written));
        }
        let position = position + result.max(0) as u64;
        self.fly_write(token, file, position, bytes);
        None
    }

    fn read_done(
        &mut self,
        token: Token,
        file: File,
        position: u64,
        mut bytes: BytesMut,
        wanted: u32,
        result: i32,
    ) -> Option<Result<Done, Failed>> {
        match result {
            0 => return Some(Ok(Done::Read { bytes })),
            count if count > 0 => {
                let len = bytes.len() + count as usize;
                assert!(
                    len <= bytes.capacity(),
                    "the kernel read {count} bytes into {}",
                    bytes.capacity()
                );
                // SAFETY: the kernel has written `count` bytes behind the ones that were there.
                unsafe { bytes.set_len(len) };
            }
            error if -error == libc::EINTR || -error == libc::EAGAIN => {}
            error => return Some(Err(Failed { errno: -error })),
        }
        if bytes.len() as u32 >= wanted {
            return Some(Ok(Done::Read { bytes }));
        }
        self.read(token, file, position, bytes, wanted);
        None
    }
}
