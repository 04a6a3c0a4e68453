//! Replies on their way to the sockets: heads are encoded into one shared chunk, stored bytes are gathered
//! behind them without a copy.

use super::connection::Connections;
use crate::ids::ConnectionId;
use crate::protocol::command::Encoding;
use crate::protocol::response::{Body, Response};
use bytes::{Bytes, BytesMut};

/// Bytes of a chunk; what is sent gives its room back, so steady state allocates nothing.
const CHUNK_BYTES: usize = 64 * 1024;
/// Room that a head usually needs; more makes the chunk grow.
const HEAD_BYTES: usize = 2 * 1024;

/// The chunk, and whose bytes are at its end.
#[derive(Debug)]
pub struct Outgoing {
    chunk: BytesMut,
    /// Connection whose consecutive heads lie unsplit in the chunk, so that they become one segment.
    open: Option<ConnectionId>,
    /// Connections with something to send in this turn.
    pub dirty: Vec<ConnectionId>,
    /// Vectors of finished sends, for reuse.
    spare: Vec<Vec<Bytes>>,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            chunk: BytesMut::with_capacity(CHUNK_BYTES),
            open: None,
            dirty: Vec::new(),
            spare: Vec::new(),
        }
    }
}

impl Outgoing {
    /// Queues a whole response. Nothing happens if the connection is gone.
    pub fn response(
        &mut self,
        connections: &mut Connections,
        id: ConnectionId,
        opaque: i32,
        encoding: Encoding,
        response: Response,
    ) {
        if !self.begin(connections, id) {
            return;
        }
        response.encode_head(opaque, encoding, &mut self.chunk);
        match response.body {
            Body::None => {}
            Body::Bytes(bytes) => self.gather(connections, id, bytes),
            Body::Stored { segments, .. } => {
                for segment in segments {
                    self.gather(connections, id, segment);
                }
            }
        }
    }

    /// Queues a whole frame that `encode` appends.
    pub fn frame(
        &mut self,
        connections: &mut Connections,
        id: ConnectionId,
        encode: impl FnOnce(&mut BytesMut),
    ) {
        if self.begin(connections, id) {
            encode(&mut self.chunk);
        }
    }

    /// Makes the chunk's end belong to `id`.
    fn begin(&mut self, connections: &mut Connections, id: ConnectionId) -> bool {
        if self.open != Some(id) {
            self.split(connections);
        }
        let Some(connection) = connections.open_mut(id) else {
            return false;
        };
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(id);
        }
        self.open = Some(id);
        if self.chunk.is_empty() {
            self.chunk.reserve(HEAD_BYTES);
        }
        true
    }

    fn gather(&mut self, connections: &mut Connections, id: ConnectionId, bytes: Bytes) {
        self.split(connections);
        push(connections, id, bytes);
        self.open = Some(id);
    }

    /// Moves what lies unsplit to its connection's queue. Called before the queues are sent.
    pub fn split(&mut self, connections: &mut Connections) {
        let Some(id) = self.open.take() else { return };
        if !self.chunk.is_empty() {
            push(connections, id, self.chunk.split().freeze());
        }
    }

    /// An empty vector for a send.
    pub fn segments(&mut self) -> Vec<Bytes> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back the vector of a finished send.
    pub fn recycle(&mut self, mut segments: Vec<Bytes>) {
        segments.clear();
        if self.spare.len() < 256 {
            self.spare.push(segments);
        }
    }
}

fn push(connections: &mut Connections, id: ConnectionId, bytes: Bytes) {
    let count = bytes.len();
    if let Some(connection) = connections.open_mut(id) {
        connection.queue.push_back(bytes);
        connection.out_bytes += count;
        connections.out_bytes += count;
    }
}
