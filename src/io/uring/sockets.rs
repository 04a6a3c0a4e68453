//! Operations of sockets; a descriptor is closed when no operation names it any more.

use super::{BUFFER_GROUP, CANCEL_DATA, Flight, Uring};
use crate::io::{Completion, Done, Socket, Token};
use crate::limits::SEND_SEGMENTS_MAX;
use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// A gathering send. The message header points into the vectors, so all of it stays in one place.
pub(super) struct SendSlot {
    pub socket: Socket,
    pub segments: Vec<Bytes>,
    vectors: Vec<libc::iovec>,
    header: libc::msghdr,
}

pub(super) struct SocketState {
    pub fd: RawFd,
    /// Operations that still name the descriptor.
    users: u32,
    /// Slot of the multishot receive.
    receive: Option<usize>,
    closing: Option<Token>,
    /// A listener that accepts no more.
    pub is_shut: bool,
}

impl SocketState {
    pub fn new(fd: OwnedFd) -> Self {
        Self {
            fd: fd.into_raw_fd(),
            users: 0,
            receive: None,
            closing: None,
            is_shut: false,
        }
    }
}

fn new_send_slot() -> Box<SendSlot> {
    // SAFETY: all-zero is a valid, empty message header.
    let header = unsafe { std::mem::zeroed() };
    Box::new(SendSlot {
        socket: Socket(0),
        segments: Vec::new(),
        vectors: Vec::new(),
        header,
    })
}

impl Uring {
    pub(super) fn accept(&mut self, token: Token, listener: Socket) {
        let state = self.sockets.get(listener.0 as usize);
        let Some(state) = state.filter(|state| !state.is_shut) else {
            return self.fail(token, libc::EBADF);
        };
        let fd = types::Fd(state.fd);
        let multishot = self.features.multishot;
        let flight = Flight::Accept {
            listener,
            multishot,
        };
        self.fly(token, flight, |_| {
            if multishot {
                let accept = opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC);
                return accept.build();
            }
            let nobody = std::ptr::null_mut();
            opcode::Accept::new(fd, nobody, std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build()
        });
    }

    /// The state of a socket that nobody has asked to close.
    fn open_socket(&mut self, socket: Socket) -> Option<&mut SocketState> {
        let state = self.sockets.get_mut(socket.0 as usize);
        state.filter(|state| state.closing.is_none())
    }

    pub(super) fn receive(&mut self, token: Token, socket: Socket) {
        let Some(state) = self.open_socket(socket) else {
            return self.fail(token, libc::EBADF);
        };
        state.users += 1;
        let fd = types::Fd(state.fd);
        let multishot = self.features.multishot;
        let flight = Flight::Receive { socket, multishot };
        let slot = self.fly(token, flight, |_| {
            if multishot {
                return opcode::RecvMulti::new(fd, BUFFER_GROUP).build();
            }
            // No length: as much as the buffer that the kernel takes has room for.
            opcode::Recv::new(fd, std::ptr::null_mut(), 0)
                .buf_group(BUFFER_GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        });
        if let Some(state) = self.sockets.get_mut(socket.0 as usize) {
            state.receive = Some(slot);
        }
    }

    pub(super) fn stop_receive(&mut self, socket: Socket) {
        let state = self.sockets.get(socket.0 as usize);
        if let Some(slot) = state.and_then(|state| state.receive) {
            self.cancel(slot);
        }
    }

    fn cancel(&mut self, slot: usize) {
        let entry = opcode::AsyncCancel::new(slot as u64)
            .build()
            .user_data(CANCEL_DATA);
        self.push(&entry);
    }

    pub(super) fn send(&mut self, token: Token, socket: Socket, segments: Vec<Bytes>) {
        assert!(
            segments.len() <= SEND_SEGMENTS_MAX,
            "{} segments in one send",
            segments.len()
        );
        let Some(state) = self.open_socket(socket) else {
            return self.fail(token, libc::EBADF);
        };
        state.users += 1;
        let fd = types::Fd(state.fd);
        let mut slot = self.spare_sends.pop().unwrap_or_else(new_send_slot);
        slot.socket = socket;
        slot.segments = segments;
        slot.vectors.clear();
        for segment in &slot.segments {
            slot.vectors.push(libc::iovec {
                iov_base: segment.as_ptr().cast_mut().cast(),
                iov_len: segment.len(),
            });
        }
        slot.header.msg_iov = slot.vectors.as_mut_ptr();
        slot.header.msg_iovlen = slot.vectors.len();
        self.fly(token, Flight::Send(slot), |flight| {
            let Flight::Send(slot) = flight else {
                panic!("a send was just put there")
            };
            let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
            opcode::SendMsg::new(fd, &raw const slot.header)
                .flags(flags)
                .build()
        });
    }

    pub(super) fn close(&mut self, token: Token, socket: Socket) {
        let Some(state) = self.open_socket(socket) else {
            return self.fail(token, libc::EBADF);
        };
        state.closing = Some(token);
        // SAFETY: the descriptor is open until `finish_close`.
        unsafe { libc::shutdown(state.fd, libc::SHUT_RDWR) };
        if let Some(slot) = state.receive {
            self.cancel(slot);
        }
        self.finish_close(socket);
    }

    /// Closes the descriptor once no operation names it any more.
    fn finish_close(&mut self, socket: Socket) {
        let Some(state) = self.sockets.get(socket.0 as usize) else {
            return;
        };
        let Some(token) = state.closing.filter(|_| state.users == 0) else {
            return;
        };
        let state = self.sockets.remove(socket.0 as usize);
        // SAFETY: the descriptor is ours and nothing refers to it any more.
        drop(unsafe { OwnedFd::from_raw_fd(state.fd) });
        self.done.push(Completion {
            token,
            result: Ok(Done::Closed),
            more: false,
        });
    }

    pub(super) fn leave(&mut self, socket: Socket, was_receive: bool) {
        if let Some(state) = self.sockets.get_mut(socket.0 as usize) {
            state.users -= 1;
            if was_receive {
                state.receive = None;
            }
        }
        self.finish_close(socket);
    }
}
