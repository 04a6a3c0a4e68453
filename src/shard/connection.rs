//! Connections of one shard: slots with generations, unfinished frames, queues of bytes to send.

use crate::ids::ConnectionId;
use crate::io::Socket;
use crate::limits::{CONNECTION_OUT_PAUSE_BYTES, OUT_BYTES_MAX};
use bytes::{Bytes, BytesMut};
use slab::Slab;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// One client's connection.
#[derive(Debug)]
pub struct Connection {
    pub generation: u32,
    pub socket: Socket,
    pub peer: SocketAddr,
    /// Start of a frame whose rest has not arrived.
    pub partial: BytesMut,
    /// Bytes that arrived while the connection was paused, not looked at yet.
    pub unread: BytesMut,
    /// Has more to send than it reads: its requests wait.
    pub paused: bool,
    /// A multishot receive is in flight.
    pub receiving: bool,
    /// Bytes in order, waiting for the send in flight.
    pub queue: VecDeque<Bytes>,
    /// Bytes in `queue` and in flight.
    pub out_bytes: usize,
    pub sending: bool,
    /// Since when, in monotonic microseconds, if so.
    pub sending_since_us: u64,
    /// Is in the list of connections to send on in this turn.
    pub dirty: bool,
    /// A close was submitted; nothing is sent or handled any more.
    pub closing: bool,
    /// Monotonic microseconds of the last byte in or out.
    pub active_us: u64,
}

impl Connection {
    /// Since when it has taken nothing of what is sent to it; `None`: nothing is.
    pub fn stuck_since_us(&self) -> Option<u64> {
        self.sending.then_some(self.sending_since_us)
    }

    /// Since when nothing has happened: no byte in or out, or none taken.
    pub fn silent_since_us(&self) -> u64 {
        let stuck_since_us = self.stuck_since_us().unwrap_or(self.active_us);
        stuck_since_us.min(self.active_us)
    }
}

/// All connections of a shard.
#[derive(Debug, Default)]
pub struct Connections {
    slots: Slab<Connection>,
    next_generation: u32,
    /// Sum of the unfinished frames and of what paused connections have not looked at.
    pub partial_bytes: usize,
    /// Sum of the bytes queued or in flight.
    pub out_bytes: usize,
}

impl Connections {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn insert(&mut self, socket: Socket, peer: SocketAddr, now_us: u64) -> ConnectionId {
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1);
        let index = self.slots.insert(Connection {
            generation,
            socket,
            peer,
            partial: BytesMut::new(),
            unread: BytesMut::new(),
            paused: false,
            receiving: false,
            queue: VecDeque::new(),
            out_bytes: 0,
            sending: false,
            sending_since_us: 0,
            dirty: false,
            closing: false,
            active_us: now_us,
        });
        let index = u32::try_from(index).expect("connections are bounded by CONNECTIONS_MAX");
        ConnectionId { index, generation }
    }

    /// Bytes that may wait for a connection before it is not read from any more: the fewer, the more wait for all.
    pub fn out_limit(&self) -> usize {
        let left = OUT_BYTES_MAX.saturating_sub(self.out_bytes);
        CONNECTION_OUT_PAUSE_BYTES.min(left / 8)
    }

    /// The connection, unless its slot belongs to another one by now.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slots
            .get_mut(id.index as usize)
            .filter(|c| c.generation == id.generation)
    }

    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.slots
            .get(id.index as usize)
            .filter(|c| c.generation == id.generation)
    }

    /// As [`Connections::get_mut`], and not being closed.
    pub fn open_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.get_mut(id).filter(|c| !c.closing)
    }

    /// Frees the slot; the accounting of its bytes ends here.
    pub fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.get_mut(id)?;
        let connection = self.slots.remove(id.index as usize);
        self.partial_bytes -= connection.partial.len() + connection.unread.len();
        self.out_bytes -= connection.out_bytes;
        Some(connection)
    }

    pub fn ids(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.slots.iter().map(|(index, c)| ConnectionId {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            generation: c.generation,
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> + '_ {
        self.ids().zip(self.slots.iter().map(|(_, c)| c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_is_another_connection() {
        let mut connections = Connections::default();
        let peer: SocketAddr = ([127, 0, 0, 1], 1).into();
        let first = connections.insert(Socket(1), peer, 0);
        assert!(connections.remove(first).is_some());
        let second = connections.insert(Socket(2), peer, 0);
        assert_eq!(first.index, second.index);
        assert!(connections.get_mut(first).is_none());
        assert!(connections.remove(first).is_none());
        assert_eq!(
            connections.get_mut(second).map(|c| c.socket),
            Some(Socket(2))
        );
    }

    /// However many connections don't read, what waits for all of them stays below the limit.
    #[test]
    fn the_more_waits_for_all_the_less_waits_for_one() {
        let mut connections = Connections::default();
        assert_eq!(connections.out_limit(), CONNECTION_OUT_PAUSE_BYTES);
        for _ in 0..20_000 {
            connections.out_bytes += connections.out_limit();
        }
        assert!(connections.out_bytes <= OUT_BYTES_MAX);
        assert!(connections.out_bytes > OUT_BYTES_MAX / 10 * 9);
        connections.out_bytes = OUT_BYTES_MAX + 1;
        assert_eq!(connections.out_limit(), 0);
    }

    #[test]
    fn a_send_that_is_not_taken_counts_as_silence() {
        let mut connections = Connections::default();
        let id = connections.insert(Socket(1), ([127, 0, 0, 1], 1).into(), 10);
        let connection = connections.get_mut(id).expect("just inserted");
        connection.active_us = 50;
        assert_eq!(connection.silent_since_us(), 50);
        (connection.sending, connection.sending_since_us) = (true, 20);
        assert_eq!(connection.silent_since_us(), 20, "it still sends");
    }

    #[test]
    fn bytes_are_accounted_for_until_the_slot_is_freed() {
        let mut connections = Connections::default();
        let id = connections.insert(Socket(1), ([127, 0, 0, 1], 1).into(), 0);
        connections.out_bytes += 10;
        connections.partial_bytes += 3;
        let connection = connections.get_mut(id).expect("just inserted");
        connection.out_bytes = 10;
        connection.partial.extend_from_slice(b"abc");
        connections.remove(id);
        assert_eq!((connections.out_bytes, connections.partial_bytes), (0, 0));
    }
}
