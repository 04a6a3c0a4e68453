//! Counters of one shard: a closed list, one instance per shard, no locks.

/// What one shard counts. All only grow, except those named `*_now`.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub connections_accepted: u64,
    pub connections_refused: u64,
    pub connections_closed: u64,
    pub connections_now: u64,
    /// Connections closed for a bad frame or header.
    pub frames_malformed: u64,
    /// Times that a connection was not read from, because it did not read its replies.
    pub slow_readers_paused: u64,
    /// Connections closed because they did not read their replies.
    pub slow_readers_closed: u64,
    /// Times that a connection was not received from, because all receive buffers were lent.
    pub receives_starved: u64,
    pub frames_received: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub messages_in: u64,
    pub message_bytes_in: u64,
    /// Pulls that were answered with messages.
    pub pulls_found: u64,
    pub messages_out: u64,
    pub message_bytes_out: u64,
    pub sends_refused: u64,
    pub requests_unsupported: u64,
    pub holds_now: u64,
    pub holds_parked: u64,
    pub holds_woken: u64,
    pub holds_expired: u64,
    pub cold_reads: u64,
    pub log_writes: u64,
    pub log_flushes: u64,
    pub turns: u64,
}
