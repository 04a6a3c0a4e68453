//! Every bound, where it comes from and what happens at it.

pub const KIB: u32 = 1024;
pub const MIB: u32 = 1024 * KIB;

/// Largest frame in bytes, without its 4-byte length prefix; a larger one closes the connection, since the
/// stream can't be resynchronised. Source: apache/rocketmq `NettyDecoder`.
pub const FRAME_BYTES_MAX: u32 = 16 * MIB;
/// Default of `maxMessageSize`: largest body of a send (sum of bodies for a batch). At the limit: code 13.
pub const BODY_BYTES_MAX: u32 = 4 * MIB;
/// Encoded properties of one message. Source: int16 length field. At the limit: code 13.
pub const PROPERTIES_BYTES_MAX: usize = 32_767;
/// Topic names that users choose. Source: one length byte in the stored record. At the limit: code 29.
pub const TOPIC_BYTES_MAX: usize = 127;
/// Names of retry and dead-letter topics. At the limit: code 29.
pub const SYSTEM_TOPIC_BYTES_MAX: usize = 255;
/// Group names, so that the retry topic of every group fits [`TOPIC_BYTES_MAX`]. Source: apache/rocketmq 5.3
/// `TopicValidator.GROUP_MAX_LENGTH` (4.9 had 255 in `Validators`, and no retry topic for the longer ones).
/// At the limit: code 29.
pub const GROUP_BYTES_MAX: usize = 120;
/// Entry of a consume queue on disk: offset i64, size i32, tags code i64.
pub const ENTRY_BYTES: usize = 20;
/// Body limit plus room for topic, properties and fixed fields.
pub const STORED_MESSAGE_BYTES_MAX: u32 = BODY_BYTES_MAX + 64 * KIB;

/// Messages in one pull reply; larger requests are cut. Source: apache/rocketmq `maxTransferCountOnMessageInMemory`
/// is 32, clients may ask for more.
pub const PULL_MESSAGES_MAX: u32 = 1024;
/// Bytes of messages in one pull reply from memory; at least one message is always returned.
pub const PULL_BYTES_MAX: u32 = 256 * KIB;
/// Bytes of messages that one pull reads from disk, the gaps between them included; one message is always read.
/// Source: apache/rocketmq `maxTransferBytesOnMessageInDisk`.
pub const PULL_COLD_BYTES_MAX: u32 = 64 * KIB;
/// Two messages with at most this much of other queues between them are read at once. Source: ours, a second read
/// costs more than the bytes.
pub const PULL_COLD_GAP_BYTES_MAX: u32 = 16 * KIB;
/// Reads of one pull that can't be joined. Source: apache/rocketmq `maxTransferCountOnMessageInDisk`.
pub const PULL_COLD_READS_MAX: usize = 8;
/// Consume queue entries examined by one pull. Source: apache/rocketmq `maxFilterMessageSize` 16000 bytes / 20.
pub const PULL_ENTRIES_EXAMINED_MAX: u32 = 800;
/// Longest time that a pull is held, whatever the client asks. Clients time out at 30 s.
pub const HOLD_MS_MAX: u64 = 29_000;

/// Fields in one command header; more close the connection.
pub const HEADER_FIELDS_MAX: usize = 256;
/// Nesting of a value that is skipped in a JSON header; a deeper one closes the connection. Source: ours, the bits
/// of one word.
pub const HEADER_DEPTH_MAX: u32 = 64;
/// Header bytes of one command. Properties (32 KiB, escaped six-fold) dominate. More close the connection.
pub const HEADER_BYTES_MAX: u32 = 512 * KIB;
/// Records in one client batch.
pub const BATCH_MESSAGES_MAX: u32 = 65_536;

/// Bytes that a compressed registration may inflate to: all topics of a broker, with room for attributes. At the
/// limit: code 1. Source: arithmetic, 50 000 topics of 1 KiB and some.
pub const REGISTRATION_BYTES_MAX: u64 = 64 * MIB as u64;

/// Queues of one topic on one shard. At the limit: code 29.
pub const TOPIC_QUEUES_MAX: u32 = 1024;
/// Topics of one shard. At the limit: creation is refused, code 17 or 1, with a remark.
pub const TOPICS_MAX: usize = 50_000;
/// Queues that one shard opens in the life of a process. At the limit: sends to further ones are refused, code 1.
/// Source: arithmetic, about 200 bytes for each.
pub const QUEUES_OPEN_MAX: usize = 1_000_000;
/// Groups of one shard. At the limit: no further one is created; 200 says so, a heartbeat goes on without it.
pub const GROUPS_MAX: usize = 50_000;
/// Room for committed offsets of one shard: places for queues, and [`OFFSET_ROW_COST`] for each topic of a group. At
/// the limit: 15 for a further queue is refused, code 1. Source: arithmetic, their file stays below 40 MiB.
pub const OFFSETS_MAX: usize = 1_000_000;
/// Queues of groups whose offset was set (222) and not yet taken. At the limit: 222 is refused, code 1. Source: ours.
pub const RESETS_MAX: usize = 65_536;
/// What a group's row for a topic takes, in places of a queue.
pub const OFFSET_ROW_COST: usize = 16;
/// Memberships of consumers of one shard, one for each group and connection; so many of producers besides. At the limit: further ones are left out, with a warning.
pub const MEMBERSHIPS_MAX: usize = 200_000;
/// Groups of producers of one shard; their names are as the clients choose. At the limit: further ones are left out.
pub const PRODUCER_GROUPS_MAX: usize = 50_000;
/// Longest delay of a timer message, in milliseconds; beyond it: code 13. Source: apache/rocketmq `timerMaxDelaySec`.
pub const TIMER_MS_MAX: u64 = 3 * 86_400 * 1000;
/// Timer messages of one shard that are in memory, the earliest; the others wait on disk. Source: arithmetic, 32 bytes
/// for each.
pub const TIMERS_IN_MEMORY_MAX: usize = if cfg!(test) { 512 } else { 262_144 };
/// Undecided half messages of one shard that are in memory; further ones are not checked before there is room. Source:
/// arithmetic, about 150 bytes for each.
pub const HALVES_IN_MEMORY_MAX: usize = if cfg!(test) { 64 } else { 262_144 };
/// Half messages from the first undecided to the last that was looked at: beyond it, those that are long undecided are
/// stored again at the end. Source: ours, so many records of decisions are read after a start.
pub const HALVES_STRETCH_MAX: u64 = if cfg!(test) { 256 } else { 1 << 20 };
/// Half messages behind those, of which one bit each tells whether they are decided; further ones can't be decided yet
/// (37 is answered 2). Source: arithmetic, 8 MiB.
pub const HALVES_AHEAD_MAX: u64 = if cfg!(test) { 1024 } else { 1 << 26 };
/// Places in the queue of decisions that are remembered, to begin there after a start; beyond it, the newest ones are
/// merged. Source: ours, those of a whole stretch.
pub const OP_MARKS_MAX: usize = 4096;
/// Locks on queues of one shard, over all groups. At the limit: 41 does not grant further ones. Source: arithmetic,
/// about 200 bytes for each.
pub const LOCKS_MAX: usize = 200_000;
/// Groups that one heartbeat may name, of each kind; further ones are left out. Source: ours, clients have a few.
pub const HEARTBEAT_GROUPS_MAX: usize = 4096;
/// Topics that a group may subscribe to; further ones are left out. Source: ours.
pub const SUBSCRIPTIONS_MAX: usize = 4096;
/// Memory for the subscriptions of all groups of one shard, as [`SUBSCRIPTION_COST`] estimates it. At the limit:
/// further ones are left out, with a warning. Source: ours.
pub const SUBSCRIPTIONS_BYTES_MAX: usize = 256 * MIB as usize;
/// Memory of a subscription besides its texts, in bytes; a byte of its expression counts 16 times, since a compiled
/// tag takes that much for each of its shortest. Source: arithmetic.
pub const SUBSCRIPTION_COST: usize = 256;
/// Body of 200: one group's configuration, with all that this version doesn't know and keeps. Beyond it: code 29.
pub const GROUP_CONFIG_BYTES_MAX: usize = 16 * KIB as usize;
/// Filter expression in a heartbeat; a longer one is left out with its topic. Source: ours.
pub const EXPRESSION_BYTES_MAX: usize = 32 * KIB as usize;
/// Topics or groups in one page of an answer to 21 or 201. Source: apache/rocketmq `splitMetadataSize`.
pub const METADATA_PAGE_MAX: usize = 2000;
/// Queues in one answer to 208; beyond it: code 1. Source: arithmetic, the answer stays below 8 MiB.
pub const STATS_ROWS_MAX: usize = 32_768;
/// Store times that one answer to 202 or 208 reads from disk; further ones are answered as 0. Source: ours.
pub const STATS_READS_MAX: usize = 4096;
/// Id of a client. Beyond it: the heartbeat is refused, code 1. Source: ours, ids are address, process and unit name.
pub const CLIENT_ID_BYTES_MAX: usize = 1024;
/// Requests to clients (326, 307, 309, 221) of one shard that wait for an answer. At the limit: whoever asks for a
/// further one is answered 2. Source: ours, each may hold a message.
pub const CLIENT_CALLS_MAX: usize = 1024;
/// Connections of one shard, fewer where the limit of open files is low; further ones are closed at accept.
pub const CONNECTIONS_MAX: usize = 24_000;
/// Holds of one shard; above it a pull is answered 19 at once.
pub const HOLDS_MAX: usize = 200_000;
/// Pops of one shard that wait; above it a pop is answered 209. Source: apache/rocketmq `maxPopPollingSize`.
pub const POPS_WAITING_MAX: usize = 100_000;
/// Messages of one queue and group that are popped and not acknowledged. At the limit: no further ones are popped.
/// Source: apache/rocketmq `popInflightMessageThreshold`.
pub const POP_WINDOW_MAX: usize = if cfg!(test) { 64 } else { 10_000 };
/// Such messages of one shard, as above. Source: arithmetic, about 150 bytes for each.
pub const POP_IN_FLIGHT_MAX: usize = 1_000_000;
/// Topics of groups whose mode of consumption was set (401). At the limit: a further one is refused, code 1. Source:
/// arithmetic, their file stays below 30 MiB.
pub const REQUEST_MODES_MAX: usize = if cfg!(test) { 4 } else { 65_536 };
/// Queues of groups with such messages. At the limit: a pop of a further one is answered 2. Source: arithmetic, about
/// 400 bytes for each.
pub const POP_QUEUES_MAX: usize = 200_000;
/// Bytes of replies queued for one connection that does not read; above it, it is not read from any more. Less where
/// many connections don't read: an eighth of what [`OUT_BYTES_MAX`] leaves.
pub const CONNECTION_OUT_PAUSE_BYTES: usize = 8 * MIB as usize;
/// At or below it, a connection that was not read from is read from again.
pub const CONNECTION_OUT_RESUME_BYTES: usize = 2 * MIB as usize;
/// Above it, which only held pulls that all wake at once can reach, the connection is closed.
pub const CONNECTION_OUT_BYTES_MAX: usize = 40 * MIB as usize;
/// Bytes of replies queued over all connections of one shard; above it, those that have taken nothing for
/// [`STUCK_US`] are closed, and those that hold more than a 64th of it.
pub const OUT_BYTES_MAX: usize = 512 * MIB as usize;
/// Bytes of unfinished frames over all connections of one shard; above it, the connection that adds is closed.
pub const PARTIAL_FRAMES_BYTES_MAX: usize = 256 * MIB as usize;
/// See [`OUT_BYTES_MAX`]. Source: ours, a client that reads takes a send within milliseconds.
pub const STUCK_US: u64 = 1_000_000;
/// Default of `serverChannelMaxIdleTimeSeconds`: seconds without a byte in either direction, or with a send that the
/// client does not take, after which a connection is closed. Source: apache/rocketmq 120 s.
pub const CONNECTION_IDLE_SECONDS: u64 = 120;

/// Receive buffers of one shard: `RECEIVE_BUFFERS` of `RECEIVE_BUFFER_BYTES` each, shared by all connections.
pub const RECEIVE_BUFFERS: u16 = 128;
pub const RECEIVE_BUFFER_BYTES: u32 = 32 * KIB;
/// Submission ring entries; the completion ring has four times as many.
pub const RING_ENTRIES: u32 = 1024;
/// Bytes of one send, except that one segment is sent whole: a slow client is seen to take something.
pub const SEND_BYTES_MAX: usize = MIB as usize;
/// Segments gathered into one send.
pub const SEND_SEGMENTS_MAX: usize = 256;
/// Writes up to this many bytes are executed inline where the file system has no non-blocking buffered write.
pub const INLINE_WRITE_BYTES_MAX: usize = 64 * KIB as usize;
/// Largest single log write; a longer batch becomes several.
pub const LOG_WRITE_BYTES_MAX: usize = 4 * MIB as usize;
/// Bytes appended but not yet written, per shard; above it sends are answered 2 (system busy).
pub const UNWRITTEN_BYTES_MAX: u64 = 64 * MIB as u64;
/// Answers of one shard that wait until the name servers know of a change; further ones don't wait for that.
pub const REGISTRATIONS_WAITING_MAX: usize = 10_000;
/// Messages between a shard and the control thread.
pub const MAILBOX_SLOTS: usize = 1024;
/// Steps of reading for one cold request, each at most `COLD_READ_BYTES_MAX`.
pub const COLD_STEPS_MAX: u32 = 64;
pub const COLD_READ_BYTES_MAX: u32 = STORED_MESSAGE_BYTES_MAX;
/// Cold reads in flight per shard; further ones wait in a queue.
pub const COLD_READS_IN_FLIGHT_MAX: usize = 64;
/// Queues whose new start one turn looks for before it gives way to other work: 1 ms, if all is in memory.
pub const RETENTION_QUEUES_A_TURN: u32 = 1024;
/// Entries that it reads at once: one 64 KiB read ends most searches after a few halvings.
pub const RETENTION_ENTRIES_READ: u64 = 3276;
/// Cold requests waiting or running per shard; above it a read is answered 2 (system busy).
pub const COLD_REQUESTS_MAX: usize = 16_384;

/// Index files of one shard. At the limit the oldest is removed. Source: arithmetic, each is an open file and has the
/// keys of 20 000 000.
pub const INDEX_FILES_MAX: usize = 128;
/// Keys of one shard that are not yet in their index file; above it, the index ends until the next start, which
/// derives what is missing. Source: arithmetic, 24 bytes for each.
pub const INDEX_KEYS_WAITING_MAX: usize = 1 << 20;
/// Log bytes from which a missing index is derived at the start, the newest; keys of older records are not found.
/// Source: ours, some ten seconds.
pub const INDEX_DERIVED_BYTES_MAX: u64 = 8 * 1024 * MIB as u64;
/// Places in the index that one query looks at; older ones are not found. Source: ours, a second of cached reads.
pub const INDEX_STEPS_MAX: u32 = 16_384;
/// Records that one query by key compares, the newest of that hash. Source: ours.
pub const QUERY_RECORDS_MAX: u32 = 256;
/// Messages in one answer to a query by key. Source: apache/rocketmq `maxMsgsNumBatch`.
pub const QUERY_MESSAGES_MAX: u32 = 64;
/// Messages in one answer to a query by unique key. Source: apache/rocketmq `defaultQueryMaxNum`.
pub const QUERY_UNIQUE_MAX: u32 = 32;
/// Bytes of messages in one answer to a query by key; the newest is always in it.
pub const QUERY_BYTES_MAX: usize = 8 * MIB as usize;
/// Records that a query by key reads at once. Source: arithmetic, 64 MiB of the largest.
pub const QUERY_READS_MAX: usize = 16;

/// Brokers (name and id) of the name server. At the limit: a registration is refused, code 1. Source: arithmetic,
/// 64 hosts of 64 shards; the answer to 106 stays below 2 MiB.
pub const NAMESRV_BROKERS_MAX: usize = 4096;
/// Pairs of topic and broker name of the name server. At the limit: a registration is refused, code 1. Source:
/// arithmetic, `TOPICS_MAX` on 20 brokers, about 200 MiB.
pub const NAMESRV_ROUTES_MAX: usize = 1_000_000;
/// Names of brokers, clusters and topics, and addresses, at the name server. Beyond it: code 1.
pub const NAMESRV_TEXT_BYTES_MAX: usize = 255;
/// Namespaces and entries of the key-value configuration. At the limit: code 1.
pub const NAMESRV_KV_ENTRIES_MAX: usize = 10_000;
/// Bytes of all names and values of the key-value configuration. At the limit: code 1.
pub const NAMESRV_KV_BYTES_MAX: usize = 2 * MIB as usize;
/// Connections of the name server; further ones are closed at accept. Source: apache/rocketmq has no limit, 10 000
/// idle connections cost 60 MiB here.
pub const NAMESRV_CONNECTIONS_MAX: usize = 10_000;
/// Bytes of unfinished frames and unread answers over all connections of the name server; above it, the connection
/// that adds is closed.
pub const NAMESRV_BUFFERED_BYTES_MAX: usize = 256 * MIB as usize;

/// Topics of one shard with series of their own in the metrics; further ones share one until one of these is idle.
/// Source: arithmetic, 400 bytes each.
pub const TOPIC_SERIES_MAX: usize = 1000;
/// Pairs of group and topic of one shard with series of their own; as above. Source: arithmetic, 800 bytes each, and 8
/// for each of their queues.
pub const DELIVERY_SERIES_MAX: usize = 1000;
/// Pairs of which the metrics show the whole histogram of delivery times, those with the most messages. Source: ours,
/// 16 lines each.
pub const DELIVERY_HISTOGRAMS_MAX: usize = 100;
/// Idle time after which a series gives its place to another.
pub const SERIES_IDLE_SECONDS: u64 = 900;
/// Kinds of requests of one shard with series of their own: request code, answer, held or not.
pub const RPC_SERIES_MAX: usize = 128;
/// Slowest deliveries that a shard remembers.
pub const SLOW_DELIVERIES_MAX: usize = 32;
/// They are those of one to two spans of this length.
pub const SLOW_WINDOW_SECONDS: u64 = 300;
/// Pairs of group and topic whose lag one answer to the metrics has, and queues that are looked at for it: further
/// ones are left out and counted. Source: measured, about a millisecond of a shard.
pub const LAG_PAIRS_MAX: usize = 1000;
pub const LAG_QUEUES_MAX: usize = 8192;
/// Holds that a shard looks at in one turn for somebody who asks; the rest follows in later ones.
pub const HOLDS_EXAMINED_MAX: usize = 512;
/// Holds in one answer; `total` tells how many there are.
pub const HOLDS_LISTED_MAX: usize = 10_000;
/// Connections to the metrics' port; further ones wait in the backlog.
pub const HTTP_CONNECTIONS_MAX: usize = 16;
/// Seconds in which a request to the metrics' port has to be there, and its answer to be read.
pub const HTTP_TIMEOUT_SECONDS: u64 = 10;

const _: () = assert!(
    STORED_MESSAGE_BYTES_MAX < FRAME_BYTES_MAX,
    "a pull reply holds at least one message"
);
const _: () = assert!(
    CONNECTION_OUT_BYTES_MAX > 2 * FRAME_BYTES_MAX as usize,
    "a full reply fits the queue"
);
const _: () = assert!(
    6 * NAMESRV_KV_BYTES_MAX < FRAME_BYTES_MAX as usize,
    "a namespace fits a frame, however its texts are escaped"
);

/// Open files that the process needs besides those of its shards and clients. With less the start is refused.
/// Source: counted, with room.
pub const FILES_OF_PROCESS: u64 = 64;
/// Open files that a shard needs besides its clients: ring, doorbell, segments, queue files while they are written.
pub const FILES_OF_SHARD: u64 = 40;
/// Open files below which the start log warns. Source: the hard limit of most distributions.
pub const FILES_ENOUGH: u64 = 4096;

/// Samples of the totals that rates are taken from, one a second at most. The oldest go. Source: the longest window
/// that Apache reports, 600 s, and one more.
pub const RATE_SAMPLES_MAX: usize = 602;
