//! From received bytes to whole frames: handled in place where they are whole, kept where they are not.

use super::Core;
use super::connection::Connection;
use crate::ids::ConnectionId;
use crate::limits::PARTIAL_FRAMES_BYTES_MAX;
use crate::protocol::frame::{self, Split};
use crate::stats::CloseReason;
use bytes::BytesMut;

/// Unfinished frames keep their memory up to this size when done.
const PARTIAL_KEEP_BYTES: usize = 64 * 1024;

impl Core {
    /// Bytes of a connection, in order: whole frames are handled in place, the rest is kept.
    pub(super) fn on_bytes(&mut self, id: ConnectionId, bytes: &[u8]) {
        let now_us = self.now.monotonic_us;
        let Some(connection) = self.connections.open_mut(id) else {
            return;
        };
        connection.active_us = now_us;
        let is_paused = connection.paused;
        self.counters.bytes_received += bytes.len() as u64;
        if is_paused {
            self.keep_unread(id, bytes);
        } else {
            self.handle_bytes(id, bytes);
        }
    }

    fn handle_bytes(&mut self, id: ConnectionId, bytes: &[u8]) {
        let mut rest = bytes;
        let has_partial = |c: &mut Connection| !c.partial.is_empty();
        if self.connections.open_mut(id).is_some_and(has_partial) {
            match self.finish_partial(id, rest) {
                Some(after) => rest = after,
                None => return,
            }
        }
        while !rest.is_empty() {
            if self.pause_if_over(id) {
                self.keep_unread(id, rest);
                return;
            }
            match frame::split(rest) {
                Ok(Split::Frame(frame)) => {
                    rest = &rest[frame.bytes..];
                    if !self.on_frame(id, &frame) {
                        return;
                    }
                }
                Ok(Split::Incomplete { total }) => {
                    self.keep_partial(id, rest, total);
                    return;
                }
                Err(error) => {
                    self.malformed(id, &error);
                    return;
                }
            }
        }
    }

    /// True if the connection has more to send than it reads. Its requests wait then, since each of them may add as
    /// much as a whole reply.
    pub(super) fn pause_if_over(&mut self, id: ConnectionId) -> bool {
        let limit = self.connections.out_limit();
        let Some(connection) = self.connections.open_mut(id) else {
            return false;
        };
        if connection.paused {
            return true;
        }
        if connection.out_bytes <= limit {
            return false;
        }
        connection.paused = true;
        self.counters.slow_readers_paused += 1;
        self.pausing.push(id);
        true
    }

    fn keep_unread(&mut self, id: ConnectionId, bytes: &[u8]) {
        if self.connections.partial_bytes + bytes.len() > PARTIAL_FRAMES_BYTES_MAX {
            self.close(id, CloseReason::PartialFrames);
            return;
        }
        if let Some(connection) = self.connections.open_mut(id) {
            connection.unread.extend_from_slice(bytes);
            self.connections.partial_bytes += bytes.len();
        }
    }

    /// Connections that have read enough go on with the requests that waited; those that may receive again are left
    /// in `resumed`.
    pub(super) fn resume_paused(&mut self) {
        let mut index = 0;
        while let Some(id) = self.resumed.get(index).copied() {
            let still_open = self.connections.open_mut(id).map(|connection| {
                connection.paused = false;
                std::mem::take(&mut connection.unread)
            });
            if let Some(unread) = still_open {
                self.connections.partial_bytes -= unread.len();
                self.handle_bytes(id, &unread);
            }
            if self.connections.open_mut(id).is_none_or(|c| c.paused) {
                self.resumed.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Adds to an unfinished frame and handles it when whole. Returns the bytes behind it, `None` when there are
    /// none or the connection is done for.
    fn finish_partial<'b>(&mut self, id: ConnectionId, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let connection = self.connections.open_mut(id)?;
        let mut partial = std::mem::take(&mut connection.partial);
        self.connections.partial_bytes -= partial.len();
        let mut rest = bytes;
        loop {
            match frame::split(&partial) {
                Ok(Split::Frame(frame)) => {
                    assert_eq!(
                        frame.bytes,
                        partial.len(),
                        "only one frame's bytes were added"
                    );
                    let alive = self.on_frame(id, &frame);
                    partial.clear();
                    self.keep_memory(id, partial);
                    return alive.then_some(rest);
                }
                Ok(Split::Incomplete { total }) => {
                    // Before the length is known, its 8 bytes are completed first.
                    let wanted = total.unwrap_or(8).max(8) - partial.len();
                    let taken = wanted.min(rest.len());
                    if taken == 0 {
                        self.put_partial(id, partial);
                        return None;
                    }
                    partial.extend_from_slice(&rest[..taken]);
                    rest = &rest[taken..];
                }
                Err(error) => {
                    self.malformed(id, &error);
                    return None;
                }
            }
        }
    }

    fn keep_partial(&mut self, id: ConnectionId, rest: &[u8], total: Option<usize>) {
        let Some(connection) = self.connections.open_mut(id) else {
            return;
        };
        let mut partial = std::mem::take(&mut connection.partial);
        // A claimed length reserves nothing beyond what one receive brings: memory follows bytes.
        partial.reserve(total.unwrap_or(8).min(2 * rest.len() + 256));
        partial.extend_from_slice(rest);
        self.put_partial(id, partial);
    }

    fn put_partial(&mut self, id: ConnectionId, partial: BytesMut) {
        let bytes = partial.len();
        if self.connections.partial_bytes + bytes > PARTIAL_FRAMES_BYTES_MAX {
            self.close(id, CloseReason::PartialFrames);
            return;
        }
        if let Some(connection) = self.connections.open_mut(id) {
            connection.partial = partial;
            self.connections.partial_bytes += bytes;
        }
    }

    fn keep_memory(&mut self, id: ConnectionId, partial: BytesMut) {
        if partial.capacity() <= PARTIAL_KEEP_BYTES
            && let Some(connection) = self.connections.open_mut(id)
        {
            connection.partial = partial;
        }
    }

    pub(super) fn malformed(&mut self, id: ConnectionId, error: &dyn std::fmt::Display) {
        self.counters.frames_malformed += 1;
        if let Some(connection) = self.connections.open_mut(id) {
            tracing::warn!(shard = %self.id, peer = %connection.peer, %error, "malformed frame, connection closed");
        }
        self.close(id, CloseReason::Malformed);
    }
}
