//! The store of one shard: its log, its queues, and what a turn does with them.

use super::commit_log::CommitLog;
use super::consume_queue::{ConsumeQueue, PERSIST_ENTRIES};
use super::fetch::Fetches;
use super::tail_cache::TailCache;
use super::{
    AppendError, Appended, Arrival, Entry, FetchDone, Fetched, Missing, OpenError, QueueBounds,
    Recovered, StoreConfig, recovery, token,
};
use crate::clock::Now;
use crate::ids::{NameMap, PhysicalOffset, QueueIndex, QueueOffset};
use crate::io::{Completion, File, Io, Op};
use crate::protocol::message::NewMessage;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Pause between two passes that write entries to their files; rebuilt from the log if the process dies before.
const PERSIST_US: u64 = 1_000_000;
/// Queues written in one turn of such a pass.
const PERSIST_QUEUES: usize = 64;

/// A message that is appended and not visible yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    queue: QueueIndex,
    offset: u64,
    entry: Entry,
    end: u64,
    store_ms: u64,
}

#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
    pub(super) log: CommitLog,
    pub(super) queues: Vec<ConsumeQueue>,
    by_name: NameMap<BTreeMap<u32, QueueIndex>>,
    pending: VecDeque<Pending>,
    arrivals: Vec<Arrival>,
    /// Place in `arrivals` of each queue, while it has one.
    arrival_of: Vec<Option<u32>>,
    tail: TailCache,
    fetches: Fetches,
    /// Queues with entries that are not in files.
    dirty: VecDeque<QueueIndex>,
    persist_us: Option<u64>,
    last_store_ms: u64,
    removals: Vec<std::path::PathBuf>,
    tombstones: recovery::Tombstones,
    lock: File,
    stopped: bool,
}

impl Store {
    /// Opens or creates the store: lock, recovery, first segment. Blocking; called before the shard serves.
    pub fn open<I: Io>(
        config: StoreConfig,
        now: Now,
        io: &mut I,
    ) -> Result<(Self, Recovered), OpenError> {
        let opened = recovery::open(&config, io)?;
        let mut store = Self {
            log: CommitLog::new(&config, opened.segments, opened.end),
            tail: TailCache::new(config.tail_cache_bytes),
            config,
            queues: Vec::new(),
            by_name: NameMap::default(),
            pending: VecDeque::new(),
            arrivals: Vec::new(),
            arrival_of: Vec::new(),
            fetches: Fetches::default(),
            dirty: VecDeque::new(),
            persist_us: None,
            last_store_ms: opened.last_store_ms,
            removals: Vec::new(),
            tombstones: opened.tombstones,
            lock: opened.lock,
            stopped: false,
        };
        for queue in opened.queues {
            let index = store.add_queue(queue);
            if store.queues[index.index()].unpersisted() > 0 {
                store.mark_dirty(index, now.monotonic_us);
            }
        }
        Ok((store, opened.report))
    }

    fn add_queue(&mut self, queue: ConsumeQueue) -> QueueIndex {
        let index =
            QueueIndex(u32::try_from(self.queues.len()).expect("queues are bounded by topics"));
        self.by_name
            .entry(queue.topic.clone())
            .or_default()
            .insert(queue.queue_id, index);
        self.queues.push(queue);
        self.arrival_of.push(None);
        index
    }

    /// The queue if it has ever been opened.
    pub fn queue(&self, topic: &str, queue_id: u32) -> Option<QueueIndex> {
        self.by_name.get(topic)?.get(&queue_id).copied()
    }

    /// The queue, made if missing (its file comes with its first message). The name has been checked.
    pub fn open_queue(&mut self, topic: &str, queue_id: u32) -> QueueIndex {
        match self.queue(topic, queue_id) {
            Some(index) => index,
            None => self.add_queue(ConsumeQueue::new(&self.config, topic, queue_id)),
        }
    }

    /// Topics and queues that exist on disk or in memory, sorted.
    pub fn queues(&self) -> Vec<(String, u32, QueueIndex)> {
        let mut all: Vec<_> = self
            .by_name
            .iter()
            .flat_map(|(topic, ids)| {
                ids.iter()
                    .map(|(id, index)| (topic.to_string(), *id, *index))
            })
            .collect();
        all.sort();
        all
    }

    pub fn bounds(&self, queue: QueueIndex) -> QueueBounds {
        let queue = &self.queues[queue.index()];
        QueueBounds {
            min: QueueOffset(queue.min),
            max: QueueOffset(queue.max),
        }
    }

    /// Appends to the open batch, assigning both offsets.
    pub fn append(
        &mut self,
        queue: QueueIndex,
        message: &NewMessage<'_>,
        now: Now,
    ) -> Result<Appended, AppendError> {
        let bytes = message.encoded_bytes() as u64;
        self.log.reserve(bytes, bytes)?;
        Ok(self.append_reserved(queue, message, now))
    }

    /// Appends all or none, consecutively; adds one `Appended` per message.
    pub fn append_all(
        &mut self,
        queue: QueueIndex,
        messages: &[NewMessage<'_>],
        now: Now,
        appended: &mut Vec<Appended>,
    ) -> Result<(), AppendError> {
        let sizes = messages.iter().map(|m| m.encoded_bytes() as u64);
        let (total, largest) = sizes.fold((0, 0), |(sum, max), size| (sum + size, max.max(size)));
        self.log.reserve(total, largest)?;
        appended.extend(
            messages
                .iter()
                .map(|message| self.append_reserved(queue, message, now)),
        );
        Ok(())
    }

    fn append_reserved(
        &mut self,
        index: QueueIndex,
        message: &NewMessage<'_>,
        now: Now,
    ) -> Appended {
        let queue = &mut self.queues[index.index()];
        assert!(
            !queue.deleted,
            "appended to a deleted queue of {}",
            queue.topic
        );
        let offset = queue.next;
        queue.next += 1;
        // Searches by time need store timestamps that never fall.
        self.last_store_ms = self.last_store_ms.max(now.wall_ms);
        let store_ms = self.last_store_ms;
        let (at, end) = self
            .log
            .append(|at, out| message.encode(QueueOffset(offset), at, store_ms, out));
        let entry = Entry {
            at,
            bytes: end.bytes_since(at) as u32,
            tags_code: message.tags_code,
        };
        self.pending.push_back(Pending {
            queue: index,
            offset,
            entry,
            end: end.0,
            store_ms,
        });
        Appended {
            queue_offset: QueueOffset(offset),
            at,
            end,
        }
    }

    /// The entry at an offset inside the bounds.
    pub fn entry(
        &self,
        queue: QueueIndex,
        at: QueueOffset,
        fetched: &Fetched,
    ) -> Result<Entry, Missing> {
        let found = self.queues[queue.index()]
            .get(at.0)
            .or_else(|| fetched.entry(queue, at));
        found.ok_or(Missing::Entries {
            queue,
            from: at,
            count: 1,
        })
    }

    /// The record's bytes, shared with the tail cache or what was fetched; no copy.
    pub fn record(
        &self,
        at: PhysicalOffset,
        bytes: u32,
        fetched: &Fetched,
    ) -> Result<Bytes, Missing> {
        self.tail
            .get(at, bytes)
            .or_else(|| fetched.record(at, bytes))
            .ok_or(Missing::Log { at, bytes })
    }

    /// First byte of the log that still exists, and the first that is not visible yet.
    pub fn log_bounds(&self) -> (PhysicalOffset, PhysicalOffset) {
        (self.log.start(), self.log.visible())
    }

    /// Store timestamp of the newest visible message of the queue, if one came since the start.
    pub fn last_store_timestamp(&self, queue: QueueIndex) -> Option<u64> {
        self.queues[queue.index()].last_store_ms
    }

    /// Forgets the queues of a topic; their files are removed in the background. A topic of that name made later
    /// starts at offset 0.
    pub fn delete_topic(&mut self, topic: &str) {
        let Some(ids) = self.by_name.remove(topic) else {
            return;
        };
        for index in ids.into_values() {
            self.queues[index.index()].deleted = true;
        }
        self.tombstones.insert(topic, self.log.appended().0);
        self.removals.push(self.config.consume_queue.join(topic));
    }

    /// Ends the open batch: one write (more only at a segment's end or over the write limit). Also starts what is
    /// due: flush, entries to files, the next segment, and the steps of a stop.
    pub fn seal<I: Io>(&mut self, now: Now, io: &mut I) {
        let tail = &mut self.tail;
        self.log
            .seal(now.monotonic_us, io, |start, bytes| tail.push(start, bytes));
        for path in std::mem::take(&mut self.removals) {
            if let Err(error) = self.tombstones.save(&self.config, io) {
                tracing::warn!(%error, "the list of deleted topics was not written");
            }
            io.submit(token(token::REMOVE, 0), Op::Remove { path });
        }
        if self.persist_us.is_some_and(|at| at <= now.monotonic_us) {
            self.persist_some(now.monotonic_us, io);
        }
        if self.log.stopping && !self.stopped {
            self.advance_stop(io);
        }
    }

    fn mark_dirty(&mut self, index: QueueIndex, now_us: u64) {
        self.dirty.push_back(index);
        self.persist_us.get_or_insert(now_us + PERSIST_US);
    }

    fn persist_some<I: Io>(&mut self, now_us: u64, io: &mut I) {
        for _ in 0..PERSIST_QUEUES {
            let Some(index) = self.dirty.pop_front() else {
                break;
            };
            let queue = &mut self.queues[index.index()];
            if queue.deleted {
                continue;
            }
            if let Err(error) = queue.persist(io, false) {
                tracing::warn!(topic = %queue.topic, queue = queue.queue_id, %error, "entries were not written, tried again");
                self.dirty.push_back(index);
                self.persist_us = Some(now_us + PERSIST_US);
                return;
            }
        }
        self.persist_us = if self.dirty.is_empty() {
            None
        } else {
            Some(now_us + 1_000)
        };
    }

    /// A completion of one of the store's operations. Reads that [`Store::fetch`] started come out of `fetches`.
    pub fn on_completion<I: Io>(
        &mut self,
        completion: Completion,
        now: Now,
        io: &mut I,
        fetches: &mut Vec<FetchDone>,
    ) {
        let (kind, index) = (completion.token.kind, completion.token.index);
        match kind {
            token::LOG_WRITE => {
                self.log
                    .on_written(index, completion.result, now.monotonic_us);
                self.dispatch(now.monotonic_us, io);
            }
            token::LOG_FLUSH => {
                self.log.on_flushed(completion.result, now.monotonic_us, io);
                self.dispatch(now.monotonic_us, io);
            }
            token::LOG_PREPARE => self.log.on_prepared(completion.result, now.monotonic_us),
            token::FETCH => self.fetches.on_read(index, completion.result, io, fetches),
            token::REMOVE => {
                if let Err(failed) = completion.result {
                    tracing::warn!(error = %failed.error(), "the files of a deleted topic were not removed");
                }
            }
            other => panic!("completion of an unknown kind {other:#x}"),
        }
    }

    /// Publishes what has become visible.
    fn dispatch<I: Io>(&mut self, now_us: u64, io: &mut I) {
        let visible = self.log.visible().0;
        while let Some(pending) = self.pending.front().copied().filter(|p| p.end <= visible) {
            self.pending.pop_front();
            let queue = &mut self.queues[pending.queue.index()];
            if queue.deleted {
                continue;
            }
            let was_clean = queue.unpersisted() == 0;
            queue.publish(pending.offset, pending.entry);
            queue.last_store_ms = Some(pending.store_ms);
            if queue.unpersisted() >= PERSIST_ENTRIES
                && queue.unpersisted().is_multiple_of(PERSIST_ENTRIES)
            {
                if let Err(error) = queue.persist(io, false) {
                    tracing::warn!(topic = %queue.topic, queue = queue.queue_id, %error, "entries were not written, tried again");
                }
            }
            if was_clean {
                self.mark_dirty(pending.queue, now_us);
            }
            self.arrived(pending.queue, pending.offset);
        }
    }

    fn arrived(&mut self, queue: QueueIndex, offset: u64) {
        let (from, to) = (QueueOffset(offset), QueueOffset(offset + 1));
        match self.arrival_of[queue.index()] {
            Some(place) => self.arrivals[place as usize].to = to,
            None => {
                self.arrival_of[queue.index()] = Some(self.arrivals.len() as u32);
                self.arrivals.push(Arrival { queue, from, to });
            }
        }
    }

    /// Everything appended below is visible: acknowledged and delivered.
    pub fn visible(&self) -> PhysicalOffset {
        self.log.visible()
    }

    /// Everything appended below is written (a send with WAIT=false is acknowledged then).
    pub fn written(&self) -> PhysicalOffset {
        self.log.written()
    }

    pub fn flushed(&self) -> PhysicalOffset {
        self.log.flushed()
    }

    /// Why the log is read-only, if it is: all sends that wait are answered with it.
    pub fn failure(&self) -> Option<&str> {
        self.log.failure.as_deref()
    }

    /// Moves out what became visible since the last call, at most one `Arrival` per queue.
    pub fn take_arrivals(&mut self, arrivals: &mut Vec<Arrival>) {
        for arrival in self.arrivals.drain(..) {
            self.arrival_of[arrival.queue.index()] = None;
            arrivals.push(arrival);
        }
    }

    /// Starts reading what a request misses, adding to what it has; the result comes as a [`FetchDone`] with `key`.
    pub fn fetch<I: Io>(&mut self, key: u64, missing: &[Missing], have: Fetched, io: &mut I) {
        let parts = missing.iter().map(|m| self.read_of(*m, io)).collect();
        self.fetches.start(key, parts, have, io);
    }

    /// File, position and length that a read needs.
    fn read_of<I: Io>(&self, missing: Missing, io: &mut I) -> Result<super::fetch::Part, String> {
        match missing {
            Missing::Log { at, bytes } => {
                let segment = self
                    .log
                    .segment_of(at.0)
                    .ok_or(format!("offset {at} is not in the log"))?;
                let position = at.0 - segment.start;
                let len = u64::from(bytes).min(self.config.segment_bytes - position) as u32;
                Ok(super::fetch::Part {
                    missing,
                    file: segment.file,
                    position,
                    len,
                    close: false,
                })
            }
            Missing::Entries { queue, from, count } => {
                let queue = &self.queues[queue.index()];
                let (path, position, room) = queue.place(from.0);
                let count = u64::from(count)
                    .min(room)
                    .min(queue.persisted.saturating_sub(from.0));
                let file = io
                    .open(&path)
                    .map_err(|e| format!("{}: {e}", path.display()))?;
                let len = (count * crate::limits::ENTRY_BYTES as u64) as u32;
                Ok(super::fetch::Part {
                    missing,
                    file,
                    position,
                    len,
                    close: true,
                })
            }
        }
    }

    /// When the store wants [`Store::seal`] to be called again without other cause, in monotonic microseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.log.has_unsealed() || !self.removals.is_empty() {
            return Some(0);
        }
        self.log
            .next_deadline()
            .into_iter()
            .chain(self.persist_us)
            .min()
    }

    /// Refuses further appends, then flushes log and queues and writes the checkpoint, over several turns.
    pub fn begin_stop<I: Io>(&mut self, now: Now, io: &mut I) {
        self.log.stopping = true;
        self.seal(now, io);
    }

    fn advance_stop<I: Io>(&mut self, io: &mut I) {
        if !self.log.is_settled() || !self.fetches.is_empty() {
            return;
        }
        self.stopped = true;
        if self.log.failure.is_some() {
            // Not a clean end: the next start reads the log.
            return;
        }
        let mut failed = None;
        for queue in self.queues.iter_mut().filter(|q| !q.deleted) {
            if let Err(error) = queue.persist(io, true) {
                failed = Some(format!("{} {}: {error}", queue.topic, queue.queue_id));
            }
        }
        let closed = match failed {
            Some(text) => Err(text),
            None => {
                recovery::close(&self.config, self.last_store_ms, io).map_err(|e| e.to_string())
            }
        };
        if let Err(reason) = closed {
            tracing::error!(
                reason,
                "the store was not closed cleanly; the next start reads the log"
            );
        }
        io.close(self.lock);
    }

    /// The stop is complete: `abort` is removed, nothing is in flight.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }
}
