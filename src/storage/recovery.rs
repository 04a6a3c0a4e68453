//! Opening a store: which bytes of the log count, and which entries belong to them.
//!
//! A store that was closed cleanly (no `abort` file) is trusted: the queues' files say where the log ends, and a
//! scan from there finds records without entries. Otherwise the whole log is scanned, its first broken record is
//! the end, what follows is cut, and the queues are rebuilt. Source of the rules on disk: apache/rocketmq
//! `CommitLog`, `ConsumeQueue`, `StoreCheckpoint`.

use super::commit_log::{CommitLog, Segment, segment_name};
use super::consume_queue::{ConsumeQueue, decode};
use super::{Entry, OpenError, Recovered, StoreConfig};
use crate::io::{File, FileSystem, Io};
use crate::limits::{ENTRY_BYTES, MIB, STORED_MESSAGE_BYTES_MAX};
use crate::protocol::hash::tags_code;
use crate::protocol::message::{Record, StoredMessage, sys_flag};
use crate::protocol::names::{SCHEDULE_TOPIC, check_topic, is_retry_or_dlq};
use crate::protocol::properties;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

const ABORT: &str = "abort";
const CHECKPOINT: &str = "checkpoint";
const CHECKPOINT_BYTES: u64 = 4096;
const TOMBSTONES: &str = "config/ringmq.deletedTopics.json";
const SCAN_BYTES: usize = 8 * MIB as usize;

/// Deleted topics: records below the offset are not theirs any more.
#[derive(Debug, Default)]
pub struct Tombstones(BTreeMap<String, u64>);

impl Tombstones {
    pub fn insert(&mut self, topic: &str, below: u64) {
        self.0.insert(topic.to_owned(), below);
    }

    fn hides(&self, topic: &str, at: u64) -> bool {
        self.0.get(topic).is_some_and(|below| at < *below)
    }

    pub fn save(&self, config: &StoreConfig, io: &mut impl FileSystem) -> io::Result<()> {
        let text = serde_json::to_vec(&self.0).map_err(io::Error::from)?;
        io.replace(&config.root.join(TOMBSTONES), &text, false)
    }

    fn load(config: &StoreConfig, io: &impl FileSystem) -> Result<Self, OpenError> {
        let path = config.root.join(TOMBSTONES);
        if !io.exists(&path) {
            return Ok(Self::default());
        }
        let bytes = io.read_whole(&path).map_err(|source| OpenError::Io {
            path: path.clone(),
            source,
        })?;
        let table = serde_json::from_slice(&bytes);
        table.map(Self).map_err(|e| OpenError::Corrupt {
            path,
            offset: 0,
            reason: e.to_string(),
        })
    }
}

/// A store, ready to serve.
pub struct Opened {
    pub segments: Vec<Segment>,
    pub queues: Vec<ConsumeQueue>,
    pub end: u64,
    pub last_store_ms: u64,
    pub tombstones: Tombstones,
    pub lock: File,
    pub report: Recovered,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> OpenError + use<> {
    let path = path.to_owned();
    move |source| OpenError::Io { path, source }
}

pub fn open<I: Io>(config: &StoreConfig, io: &mut I) -> Result<Opened, OpenError> {
    let started = Instant::now();
    io.create_directories(&config.root)
        .map_err(at(&config.root))?;
    let lock = lock(config, io)?;
    let abort = config.root.join(ABORT);
    let clean = !io.exists(&abort);
    let tombstones = Tombstones::load(config, io)?;
    let mut segments = open_segments(config, io)?;
    let mut scan = Scan {
        config,
        tombstones: &tombstones,
        queues: BTreeMap::new(),
        report: Recovered::default(),
        last_store_ms: 0,
    };
    let start = segments.first().map_or(0, |s| s.start);
    if clean && !segments.is_empty() {
        scan.load_queues(start, io)?;
    }
    let from = scan
        .queues
        .values()
        .filter_map(|q| q.log_end)
        .max()
        .unwrap_or(start)
        .max(start);
    let end = scan.run(&segments, from, io)?;
    scan.cut(&mut segments, end, io)?;
    if segments.is_empty() {
        segments.push(CommitLog::create_first(config, io)?);
    }
    io.create(&abort, 0)
        .map(|file| io.close(file))
        .map_err(at(&abort))?;
    io.flush_directory(&config.root).map_err(at(&config.root))?;
    let (mut report, last_store_ms) = (scan.report, scan.last_store_ms);
    let queues: Vec<ConsumeQueue> = scan.queues.into_values().map(|q| q.queue).collect();
    report.clean = clean;
    report.segments = segments.len();
    report.queues = queues.len();
    report.start.0 = start;
    report.end.0 = end;
    report.milliseconds = started.elapsed().as_millis() as u64;
    Ok(Opened {
        segments,
        queues,
        end,
        last_store_ms,
        tombstones,
        lock,
        report,
    })
}

/// The kernel gives a killed process's lock back a little later than the process: tried for 2 s.
fn lock<I: Io>(config: &StoreConfig, io: &mut I) -> Result<File, OpenError> {
    let path = config.root.join("lock");
    let started = Instant::now();
    loop {
        match io.lock(&path) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if started.elapsed().as_secs() >= 2 {
                    return Err(OpenError::Locked {
                        path: config.root.clone(),
                    });
                }
                std::thread::yield_now();
            }
            Err(source) => return Err(OpenError::Io { path, source }),
        }
    }
}

fn open_segments<I: Io>(config: &StoreConfig, io: &mut I) -> Result<Vec<Segment>, OpenError> {
    let mut segments: Vec<Segment> = Vec::new();
    let names = io
        .list(&config.commit_log)
        .map_err(at(&config.commit_log))?;
    for name in names {
        let path = config.commit_log.join(&name);
        let Some(start) = name
            .parse::<u64>()
            .ok()
            .filter(|s| segment_name(*s) == name)
        else {
            continue;
        };
        let file = io.open(&path).map_err(at(&path))?;
        let len = io.len(file).map_err(at(&path))?;
        if len != config.segment_bytes {
            let newest = segments.last().is_none_or(|s| s.start < start);
            if len == 0 && newest {
                // Made and not yet sized when the process died.
                io.close(file);
                io.remove(&path).map_err(at(&path))?;
                continue;
            }
            return Err(OpenError::FileSize {
                path,
                found: len,
                expected: config.segment_bytes,
                key: "mappedFileSizeCommitLog",
            });
        }
        if let Some(last) = segments.last()
            && last.start + config.segment_bytes != start
        {
            let reason = format!(
                "a segment is missing in front of it: the one before starts at {}",
                last.start
            );
            return Err(OpenError::Corrupt {
                path,
                offset: start,
                reason,
            });
        }
        segments.push(Segment { start, file });
    }
    Ok(segments)
}

struct Found {
    queue: ConsumeQueue,
    /// Behind the record of the last entry that was loaded.
    log_end: Option<u64>,
}

struct Scan<'a> {
    config: &'a StoreConfig,
    tombstones: &'a Tombstones,
    queues: BTreeMap<(String, u32), Found>,
    report: Recovered,
    last_store_ms: u64,
}

impl Scan<'_> {
    /// Places every queue by its files.
    fn load_queues<I: Io>(&mut self, log_start: u64, io: &mut I) -> Result<(), OpenError> {
        let root = &self.config.consume_queue;
        for topic in io.list(root).map_err(at(root))? {
            let directory = root.join(&topic);
            if !io.is_directory(&directory) || check_topic(&topic).is_err() {
                continue;
            }
            for name in io.list(&directory).map_err(at(&directory))? {
                let Ok(queue_id) = name.parse::<u32>() else {
                    continue;
                };
                let mut queue = ConsumeQueue::new(self.config, &topic, queue_id);
                let log_end = load_queue(
                    self.config,
                    &mut queue,
                    &directory.join(&name),
                    log_start,
                    io,
                )?;
                self.queues
                    .insert((topic.clone(), queue_id), Found { queue, log_end });
            }
        }
        Ok(())
    }

    /// Reads the log from an offset to its end.
    fn run<I: Io>(
        &mut self,
        segments: &[Segment],
        from: u64,
        io: &mut I,
    ) -> Result<u64, OpenError> {
        let mut end = from;
        for (index, segment) in segments.iter().enumerate() {
            let limit = segment.start + self.config.segment_bytes;
            if limit <= from {
                continue;
            }
            end = self.scan_segment(*segment, end.max(segment.start), io)?;
            if end == limit {
                continue;
            }
            // The log ends here, unless a later segment has data: then this is no tail, it is damage.
            for later in &segments[index + 1..] {
                let mut head = [0; 8];
                let path = self.config.commit_log.join(segment_name(segment.start));
                io.read_at(later.file, 0, &mut head).map_err(at(&path))?;
                if head != [0; 8] {
                    let reason = format!(
                        "no valid record here, but the segment at {} has data; the store was left as it is",
                        later.start
                    );
                    return Err(OpenError::Corrupt {
                        path,
                        offset: end,
                        reason,
                    });
                }
            }
            break;
        }
        Ok(end)
    }

    /// Reads one segment; returns where its valid records end (its limit, if it is full).
    fn scan_segment<I: Io>(
        &mut self,
        segment: Segment,
        from: u64,
        io: &mut I,
    ) -> Result<u64, OpenError> {
        let path = self.config.commit_log.join(segment_name(segment.start));
        let limit = segment.start + self.config.segment_bytes;
        let mut buffer = vec![0_u8; SCAN_BYTES.min(self.config.segment_bytes as usize)];
        let mut position = from;
        loop {
            let wanted = (limit - position).min(buffer.len() as u64) as usize;
            if wanted < 8 {
                return Ok(position);
            }
            let count = io
                .read_at(
                    segment.file,
                    position - segment.start,
                    &mut buffer[..wanted],
                )
                .map_err(at(&path))?;
            let before = position;
            let mut rest = &buffer[..count];
            loop {
                match StoredMessage::decode(rest) {
                    Ok(Record::Blank(bytes)) if u64::from(bytes) == limit - position => {
                        return Ok(limit);
                    }
                    Ok(Record::Message(message)) if self.accepts(&message, position) => {
                        rest = &rest[message.bytes.len()..];
                        position += message.bytes.len() as u64;
                    }
                    _ => break,
                }
            }
            self.report.scanned_bytes += position - before;
            // A record cut by the buffer's end is read again from its start; nothing new there means the end.
            let cut = count == buffer.len() && rest.len() < STORED_MESSAGE_BYTES_MAX as usize;
            if position == before && !(cut && self.grow(&mut buffer)) {
                return Ok(position);
            }
        }
    }

    fn grow(&self, buffer: &mut Vec<u8>) -> bool {
        let most = (2 * STORED_MESSAGE_BYTES_MAX as usize).min(self.config.segment_bytes as usize);
        let grows = buffer.len() < most;
        buffer.resize(most.max(buffer.len()), 0);
        grows
    }

    /// Checks a record and adds its entry. False: not a record of this place.
    fn accepts(&mut self, message: &StoredMessage<'_>, position: u64) -> bool {
        let whole = message.physical_offset.0 == position && message.check_body_crc().is_ok();
        if !whole || message.queue_id < 0 || !name_is_safe(message.topic) {
            return false;
        }
        self.report.scanned_messages += 1;
        self.last_store_ms = self.last_store_ms.max(message.store_timestamp);
        let kind = message.sys_flag & sys_flag::TRANSACTION_MASK;
        let dispatched = kind == 0 || kind == sys_flag::TRANSACTION_COMMIT;
        if dispatched && !self.tombstones.hides(message.topic, position) {
            self.add(message);
        }
        true
    }

    fn add(&mut self, message: &StoredMessage<'_>) {
        let queue_id = message.queue_id as u32;
        let offset = message.queue_offset.0;
        let found = self
            .queues
            .entry((message.topic.to_owned(), queue_id))
            .or_insert_with(|| {
                let mut queue = ConsumeQueue::new(self.config, message.topic, queue_id);
                queue.set_range(offset, offset);
                Found {
                    queue,
                    log_end: None,
                }
            });
        if offset == found.queue.max {
            let entry = Entry {
                at: message.physical_offset,
                bytes: message.bytes.len() as u32,
                tags_code: entry_tags_code(message),
            };
            found.queue.publish(offset, entry);
            found.queue.last_store_ms = Some(message.store_timestamp);
        } else if offset > found.queue.max {
            tracing::warn!(
                topic = message.topic,
                queue_id,
                expected = found.queue.max,
                offset,
                "a gap in a queue's offsets"
            );
        }
    }

    /// Zeroes what follows the end in its segment and removes the segments behind, before anything is appended.
    fn cut<I: Io>(
        &mut self,
        segments: &mut Vec<Segment>,
        end: u64,
        io: &mut I,
    ) -> Result<(), OpenError> {
        while segments.len() > 1
            && segments
                .last()
                .is_some_and(|s| s.start >= end && s.start > 0)
        {
            let Some(last) = segments.pop() else { break };
            let path = self.config.commit_log.join(segment_name(last.start));
            if last.start == end {
                // The segment before is full: this one is where the log goes on.
                segments.push(last);
                break;
            }
            io.close(last.file);
            io.remove(&path).map_err(at(&path))?;
        }
        let Some(last) = segments.last() else {
            return Ok(());
        };
        let limit = last.start + self.config.segment_bytes;
        if end >= limit {
            let start = limit;
            let path = self.config.commit_log.join(segment_name(start));
            let file = io
                .create(&path, self.config.segment_bytes)
                .map_err(at(&path))?;
            segments.push(Segment { start, file });
            return Ok(());
        }
        let path = self.config.commit_log.join(segment_name(last.start));
        let position = end - last.start;
        let stale = self
            .stale_bytes(last.file, position, io)
            .map_err(at(&path))?;
        if stale > 0 {
            self.report.cut_bytes = stale;
            io.zero_range(last.file, position, self.config.segment_bytes - position)
                .map_err(at(&path))?;
            io.flush(last.file).map_err(at(&path))?;
        }
        Ok(())
    }

    /// Bytes from `position` to the last one that is not zero; holes are skipped.
    fn stale_bytes<I: Io>(&self, file: File, position: u64, io: &mut I) -> io::Result<u64> {
        let mut buffer = vec![0_u8; MIB as usize];
        let mut last = position;
        let mut place = io.next_data(file, position)?.max(position);
        while place < self.config.segment_bytes {
            let count = io.read_at(file, place, &mut buffer)?;
            if count == 0 {
                break;
            }
            if let Some(byte) = buffer[..count].iter().rposition(|b| *b != 0) {
                last = place + byte as u64 + 1;
            }
            place = io.next_data(file, place + count as u64)?;
        }
        Ok(last - position)
    }
}

/// Names from a log become directories: only what a broker can have written gets through.
fn name_is_safe(topic: &str) -> bool {
    check_topic(topic).is_ok() || is_retry_or_dlq(topic) && !topic.contains(['/', '\0', '.'])
}

/// Delays of Apache's default levels 1 to 18 in seconds.
const DELAY_SECONDS: [i64; 18] = [
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
];

/// The tag's hash; for parked delay records the time of delivery, as Apache keeps it.
fn entry_tags_code(message: &StoredMessage<'_>) -> i64 {
    if message.topic == SCHEDULE_TOPIC
        && let Some(seconds) = usize::try_from(message.queue_id)
            .ok()
            .and_then(|level| DELAY_SECONDS.get(level))
    {
        return message.store_timestamp as i64 + seconds * 1000;
    }
    tags_code(properties::get(message.properties, "TAGS").unwrap_or_default())
}

/// Finds the range of a queue in its files; returns the log position behind its last entry.
fn load_queue<I: Io>(
    config: &StoreConfig,
    queue: &mut ConsumeQueue,
    directory: &PathBuf,
    log_start: u64,
    io: &mut I,
) -> Result<Option<u64>, OpenError> {
    let mut starts: Vec<u64> = io
        .list(directory)
        .map_err(at(directory))?
        .iter()
        .filter_map(|n| n.parse().ok())
        .collect();
    starts.sort_unstable();
    let per_file = config.queue_file_bytes / ENTRY_BYTES as u64;
    let mut reader = QueueReader {
        config,
        directory,
        open: None,
    };
    let Some((first, last)) = starts.first().zip(starts.last()) else {
        return Ok(None);
    };
    let (first, mut behind) = (
        first / ENTRY_BYTES as u64,
        last / ENTRY_BYTES as u64 + per_file,
    );
    // The last file with an entry, then the last entry in it.
    while behind > first
        && reader.entry(behind - per_file, io)?.is_none()
        && !reader.has_filler(behind - per_file, io)?
    {
        behind -= per_file;
    }
    let valid = |reader: &mut QueueReader<'_>, offset, io: &mut I| {
        reader.entry(offset, io).map(|e| e.is_some())
    };
    let filler_end = partition(first, behind, |offset| reader.has_filler(offset, io))?;
    let max = partition(filler_end, behind, |offset| valid(&mut reader, offset, io))?;
    let min = partition(filler_end, max, |offset| {
        Ok(reader
            .entry(offset, io)?
            .is_some_and(|e| e.at.0 < log_start))
    })?;
    let last = if max > min {
        reader.entry(max - 1, io)?
    } else {
        None
    };
    reader.finish(io);
    queue.set_range(min, max);
    Ok(last.map(|e| e.at.0 + u64::from(e.bytes)))
}

/// First offset in `from..to` for which `holds` is false, where it holds for a prefix.
fn partition(
    from: u64,
    to: u64,
    mut holds: impl FnMut(u64) -> Result<bool, OpenError>,
) -> Result<u64, OpenError> {
    let (mut low, mut high) = (from, to);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle)? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Single entries of a queue's files, one file open at a time.
struct QueueReader<'a> {
    config: &'a StoreConfig,
    directory: &'a Path,
    open: Option<(u64, File)>,
}

impl QueueReader<'_> {
    fn raw<I: Io>(&mut self, offset: u64, io: &mut I) -> Result<[u8; ENTRY_BYTES], OpenError> {
        let byte = offset * ENTRY_BYTES as u64;
        let start = byte / self.config.queue_file_bytes * self.config.queue_file_bytes;
        let path = self.directory.join(format!("{start:020}"));
        if self.open.is_none_or(|(open, _)| open != start) {
            self.finish(io);
            if !io.exists(&path) {
                return Ok([0; ENTRY_BYTES]);
            }
            let file = io.open(&path).map_err(at(&path))?;
            self.open = Some((start, file));
            let found = io.len(file).map_err(at(&path))?;
            if found != self.config.queue_file_bytes {
                let (expected, key) = (self.config.queue_file_bytes, "mappedFileSizeConsumeQueue");
                return Err(OpenError::FileSize {
                    path,
                    found,
                    expected,
                    key,
                });
            }
        }
        let mut bytes = [0; ENTRY_BYTES];
        if let Some((_, file)) = self.open {
            io.read_at(file, byte - start, &mut bytes)
                .map_err(at(&path))?;
        }
        Ok(bytes)
    }

    fn entry<I: Io>(&mut self, offset: u64, io: &mut I) -> Result<Option<Entry>, OpenError> {
        Ok(decode(&self.raw(offset, io)?))
    }

    /// Apache fills a queue that starts late with entries of size `Integer.MAX_VALUE`.
    fn has_filler<I: Io>(&mut self, offset: u64, io: &mut I) -> Result<bool, OpenError> {
        Ok(self.raw(offset, io)?[8..12] == i32::MAX.to_be_bytes())
    }

    fn finish<I: Io>(&mut self, io: &mut I) {
        if let Some((_, file)) = self.open.take() {
            io.close(file);
        }
    }
}

/// Checkpoint, then no more `abort`: the next start trusts the queues' files, which are flushed already.
pub fn close<I: Io>(config: &StoreConfig, last_store_ms: u64, io: &mut I) -> io::Result<()> {
    let path = config.root.join(CHECKPOINT);
    let mut bytes = vec![0; CHECKPOINT_BYTES as usize];
    for field in bytes.chunks_exact_mut(8).take(3) {
        field.copy_from_slice(&last_store_ms.to_be_bytes());
    }
    io.replace(&path, &bytes, false)?;
    io.remove(&config.root.join(ABORT))?;
    io.flush_directory(&config.root)
}
