//! Cold reads: log records and queue entries that are no longer in memory, for requests that wait for them.
//!
//! Neighbouring records are read at once. So many reads are in flight at a time; the others wait in order, so that
//! consumers that catch up don't take the disk from the tail. The shard bounds the requests.
//!
//! Every record is checked before it is handed out: structure, body CRC, and that it says itself to lie where it was
//! read. What is damaged is an error, never a delivery.

use super::commit_log::CommitLog;
use super::index::{Index, Walk, WalkRead};
use super::queue_files::{Acquired, QueueFiles, SlotId};
use super::queue_table::QueueTable;
use super::segment::Segment;
use super::{Entry, FetchDone, Fetched, Missing, tokens};
use crate::ids::{PhysicalOffset, QueueIndex, QueueOffset};
use crate::io::{Failed, File, Io, Op, Token};
use crate::limits::{COLD_READ_BYTES_MAX, COLD_READS_IN_FLIGHT_MAX, ENTRY_BYTES};
use crate::protocol::message::{
    BLANK_BYTES, MAGIC_V1, MAGIC_V2, MessageError, PHYSICAL_OFFSET_AT, RECORD_OVERHEAD_BYTES,
    Record, StoredMessage,
};
use bytes::{Bytes, BytesMut};
use slab::Slab;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Unwanted bytes between two records that are read along rather than by a second read.
const GAP_BYTES_MAX: u64 = 16 * 1024;

/// First read of a record of unknown size: most fit.
const PROBE_BYTES: u64 = 8 * 1024;

type Wanted = SmallVec<[(PhysicalOffset, u32); 8]>;

#[derive(Debug)]
enum Source {
    Log {
        segment: Segment,
        start: PhysicalOffset,
        bytes: u32,
        records: Wanted,
    },
    /// One record of unknown size; a second read follows if it is longer than the first.
    Probe {
        segment: Segment,
        start: PhysicalOffset,
        bytes: u32,
    },
    Entries {
        queue: QueueIndex,
        from: QueueOffset,
        count: u32,
        slot: Option<SlotId>,
    },
    /// The next step of a search in the index.
    Keys { walk: Box<Walk>, read: WalkRead },
}

#[derive(Debug)]
struct Read {
    request: u32,
    generation: u32,
    source: Source,
}

#[derive(Debug)]
struct Request {
    key: u64,
    have: Fetched,
    reads: u32,
    error: Option<String>,
}

/// What cold reads use of the store.
pub struct Places<'a> {
    pub log: &'a CommitLog,
    pub table: &'a QueueTable,
    pub files: &'a mut QueueFiles,
    pub index: &'a Index,
}

#[derive(Debug, Default)]
pub struct Fetches {
    requests: Slab<Request>,
    reads: Slab<Read>,
    waiting: VecDeque<u32>,
    in_flight: usize,
    generation: u32,
}

impl Fetches {
    pub fn is_quiet(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty()
    }

    /// Starts reading what a request misses. `Some` if there is nothing to read: all is in memory by now, or gone.
    pub fn begin<I: Io>(
        &mut self,
        key: u64,
        missing: &[Missing],
        mut have: Fetched,
        places: &mut Places<'_>,
        io: &mut I,
    ) -> Option<FetchDone> {
        let mut sources: SmallVec<[Source; 4]> = SmallVec::new();
        for item in missing {
            if let Missing::Keys(query) = item {
                let walk = Box::new(Walk::new(*query));
                sources.extend(search(walk, places.index, &mut have));
            }
        }
        let planned = plan_records(missing, places.log, &mut sources)
            .and_then(|()| plan_entries(missing, places, &mut sources));
        if let Err(reason) = planned {
            let result = Err(reason);
            return Some(FetchDone { key, result });
        }
        if sources.is_empty() {
            let result = Ok(have);
            return Some(FetchDone { key, result });
        }
        let request = self.requests.insert(Request {
            key,
            have,
            reads: sources.len() as u32,
            error: None,
        }) as u32;
        for source in sources {
            self.wait(request, source);
        }
        self.pump(places, io);
        None
    }

    /// Submits reads up to the limit.
    fn pump<I: Io>(&mut self, places: &mut Places<'_>, io: &mut I) {
        while self.in_flight < COLD_READS_IN_FLIGHT_MAX
            && let Some(read) = self.waiting.pop_front()
        {
            self.in_flight += 1;
            self.submit(read, places, io);
        }
    }

    fn submit<I: Io>(&mut self, id: u32, places: &mut Places<'_>, io: &mut I) {
        let read = &mut self.reads[id as usize];
        let token = Token::new(tokens::COLD_READ, id, read.generation);
        let (file, position, len) = match &mut read.source {
            Source::Keys { read, .. } => (read.file, read.position, read.len),
            Source::Log {
                segment,
                start,
                bytes,
                ..
            }
            | Source::Probe {
                segment,
                start,
                bytes,
            } => (segment.file, start.bytes_since(segment.first), *bytes),
            Source::Entries {
                queue,
                from,
                count,
                slot,
            } => {
                let state = places.table.get(*queue);
                if state.is_deleted {
                    // Answered as an empty read.
                    let segment = places.log.segments.get(0).map_or(File(0), |s| s.file);
                    (segment, 0, 0)
                } else {
                    let number = places.files.number_of(from.0);
                    match places.files.acquire(*queue, state, number, io) {
                        Acquired::Ready(acquired, file) => {
                            *slot = Some(acquired);
                            let position = places.files.position_of(from.0);
                            (file, position, *count * ENTRY_BYTES as u32)
                        }
                        Acquired::Opening(opening) => {
                            places.files.wait_for(opening, id);
                            return;
                        }
                    }
                }
            }
        };
        let op = Op::Read {
            file,
            position,
            len,
        };
        io.submit(token, op);
    }

    /// A queue file that reads waited for was opened, or could not be.
    pub fn on_opened<I: Io>(
        &mut self,
        reads: &[u32],
        result: &Result<(), Failed>,
        places: &mut Places<'_>,
        io: &mut I,
        done: &mut Vec<FetchDone>,
    ) {
        for read in reads {
            match result {
                Ok(()) => self.submit(*read, places, io),
                Err(failed) => {
                    let reason =
                        format!("a consume queue file can't be opened: {}", failed.error());
                    self.finish(*read, Err(reason), places.index, done);
                }
            }
        }
        self.pump(places, io);
    }

    pub fn on_read<I: Io>(
        &mut self,
        token: Token,
        result: Result<BytesMut, Failed>,
        places: &mut Places<'_>,
        io: &mut I,
        done: &mut Vec<FetchDone>,
    ) {
        let read = self.reads.get(token.index as usize);
        let generation = read.map(|read| read.generation);
        assert_eq!(
            generation,
            Some(token.generation),
            "{token:?} outlived its read"
        );
        if let Some(Read {
            source: Source::Entries { slot, .. },
            ..
        }) = self.reads.get_mut(token.index as usize)
            && let Some(slot) = slot.take()
        {
            places.files.release(slot, io);
        }
        let bytes = result.map_err(|failed| failed.error().to_string());
        self.finish(token.index, bytes.map(BytesMut::freeze), places.index, done);
        self.pump(places, io);
    }

    /// Delivers what a read brought to its request; the last read of a request answers it.
    fn finish(
        &mut self,
        id: u32,
        bytes: Result<Bytes, String>,
        index: &Index,
        done: &mut Vec<FetchDone>,
    ) {
        self.in_flight -= 1;
        let read = self.reads.remove(id as usize);
        let request = &mut self.requests[read.request as usize];
        let added = bytes.and_then(|bytes| add(read.source, &bytes, index, &mut request.have));
        match added {
            Ok(None) => {}
            Ok(Some(source)) => {
                request.reads += 1;
                self.wait(read.request, source);
            }
            Err(reason) => {
                request.error.get_or_insert(reason);
            }
        }
        let request = &mut self.requests[read.request as usize];
        request.reads -= 1;
        if request.reads > 0 {
            return;
        }
        let request = self.requests.remove(read.request as usize);
        let mut have = request.have;
        have.ranges.sort_unstable_by_key(|(at, _)| *at);
        done.push(FetchDone {
            key: request.key,
            result: request.error.map_or(Ok(have), Err),
        });
    }

    fn wait(&mut self, request: u32, source: Source) {
        self.generation = self.generation.wrapping_add(1);
        let read = self.reads.insert(Read {
            request,
            generation: self.generation,
            source,
        });
        self.waiting.push_back(read as u32);
    }
}

/// Reads for the records, neighbours at once.
fn plan_records(
    missing: &[Missing],
    log: &CommitLog,
    sources: &mut SmallVec<[Source; 4]>,
) -> Result<(), String> {
    let mut wanted: SmallVec<[(PhysicalOffset, u32); 32]> = SmallVec::new();
    for item in missing {
        match *item {
            Missing::Log { at, bytes } => wanted.push((at, bytes)),
            Missing::Record { at } => {
                let (segment, room) = place(at, log)?;
                sources.push(Source::Probe {
                    segment,
                    start: at,
                    bytes: room.min(PROBE_BYTES) as u32,
                });
            }
            Missing::Entries { .. } | Missing::Keys(_) => {}
        }
    }
    wanted.sort_unstable();
    wanted.dedup();
    for (at, bytes) in wanted {
        let (segment, room) = place(at, log)?;
        if u64::from(bytes) > room.min(u64::from(COLD_READ_BYTES_MAX)) {
            return Err(format!(
                "no record of {bytes} bytes at {at}: {room} are left"
            ));
        }
        if !join(sources, segment, at, bytes) {
            sources.push(Source::Log {
                segment,
                start: at,
                bytes,
                records: SmallVec::from_slice(&[(at, bytes)]),
            });
        }
    }
    Ok(())
}

/// Goes on with a search: what has to be read next, or what it found.
fn search(mut walk: Box<Walk>, index: &Index, have: &mut Fetched) -> Option<Source> {
    if let Some(read) = index.advance(&mut walk) {
        return Some(Source::Keys { walk, read });
    }
    have.keys.push((walk.query, walk.found));
    None
}

/// The segment of a byte, and how many bytes a record that begins there can have at most.
fn place(at: PhysicalOffset, log: &CommitLog) -> Result<(Segment, u64), String> {
    let (start, visible) = (log.start(), log.visible());
    match log.segments.find(at) {
        Some(segment) if at < visible => {
            let segment_end = segment.first.advance(log.segments.bytes());
            Ok((segment, segment_end.min(visible).bytes_since(at)))
        }
        _ => Err(format!(
            "no record at {at}: the log has the bytes {start} to {visible}"
        )),
    }
}

/// Adds a record to the last read, if it lies near enough behind in the same segment.
fn join(sources: &mut [Source], of: Segment, at: PhysicalOffset, bytes: u32) -> bool {
    let Some(Source::Log {
        segment,
        start,
        bytes: read_bytes,
        records,
    }) = sources.last_mut()
    else {
        return false;
    };
    let read_end = start.advance(u64::from(*read_bytes));
    let joined = read_end
        .max(at.advance(u64::from(bytes)))
        .bytes_since(*start);
    let near = at <= read_end.advance(GAP_BYTES_MAX);
    if *segment != of || !near || joined > u64::from(COLD_READ_BYTES_MAX) {
        return false;
    }
    *read_bytes = joined as u32;
    records.push((at, bytes));
    true
}

/// Reads for the entries that are still missing, split at the ends of files.
fn plan_entries(
    missing: &[Missing],
    places: &Places<'_>,
    sources: &mut SmallVec<[Source; 4]>,
) -> Result<(), String> {
    for item in missing {
        let Missing::Entries { queue, from, count } = *item else {
            continue;
        };
        let state = places.table.get(queue);
        let bounds = state.bounds();
        if state.is_deleted || from < bounds.min || from >= bounds.max {
            let (min, max) = (bounds.min, bounds.max);
            return Err(format!("no entry {from}: the queue has {min} to {max}"));
        }
        let mut from = from.0;
        let end = from
            .saturating_add(u64::from(count))
            .min(state.recent_start());
        while from < end {
            let file_end = places.files.end_of(places.files.number_of(from));
            let to = end.min(file_end);
            sources.push(Source::Entries {
                queue,
                from: QueueOffset(from),
                count: (to - from) as u32,
                slot: None,
            });
            from = to;
        }
    }
    Ok(())
}

/// Checks what a read brought and keeps it. `Some` is what has to be read besides.
fn add(
    source: Source,
    bytes: &Bytes,
    index: &Index,
    have: &mut Fetched,
) -> Result<Option<Source>, String> {
    match source {
        Source::Keys { mut walk, .. } => {
            index.feed(&mut walk, bytes)?;
            Ok(search(walk, index, have))
        }
        Source::Log { start, records, .. } => {
            for (at, want) in records {
                let from = at.bytes_since(start) as usize;
                let end = from + want as usize;
                if end > bytes.len() {
                    return Err(format!("the log file ends inside the record at {at}"));
                }
                let record = bytes.slice(from..end);
                check_whole(&record, at)?;
                have.ranges.push((at, record));
            }
            Ok(None)
        }
        Source::Probe { segment, start, .. } => {
            let found = check_record(bytes, start)?;
            if found <= bytes.len() {
                let record = bytes.slice(..found);
                check_whole(&record, start)?;
                have.ranges.push((start, record));
                return Ok(None);
            }
            let size = u32::try_from(found)
                .ok()
                .filter(|size| *size <= COLD_READ_BYTES_MAX);
            let bytes =
                size.ok_or_else(|| format!("no record at {start}: {found} bytes are too many"))?;
            Ok(Some(Source::Log {
                segment,
                start,
                bytes,
                records: SmallVec::from_slice(&[(start, bytes)]),
            }))
        }
        Source::Entries {
            queue, from, count, ..
        } => {
            let (chunks, _) = bytes.as_chunks::<ENTRY_BYTES>();
            let chunks = chunks.iter().take(count as usize);
            // What lies in front of a hole is good.
            let entries: Vec<Entry> = chunks.map_while(Entry::decode).collect();
            if entries.is_empty() {
                return Err(format!(
                    "entry {from} of a consume queue is missing on disk"
                ));
            }
            have.entries.push((queue, from, entries));
            Ok(None)
        }
    }
}

/// The bytes are exactly a sound record, body CRC included, that says of itself to lie at this place.
fn check_whole(record: &[u8], at: PhysicalOffset) -> Result<(), String> {
    let found = check_record(record, at)?;
    if found != record.len() {
        let asked = record.len();
        return Err(format!(
            "the record at {at} has {found} bytes, asked for were {asked}"
        ));
    }
    let sound = match StoredMessage::decode(record) {
        Ok(Record::Message(message)) => message.check_body_crc(),
        Ok(Record::Blank(_)) => Err(MessageError::Lengths),
        Err(error) => Err(error),
    };
    sound.map_err(|error| format!("the record at {at} is damaged: {error}"))
}

/// The bytes begin with a record that says of itself to lie at this place. Returns its size, of which fewer bytes may
/// be here.
pub fn check_record(bytes: &[u8], at: PhysicalOffset) -> Result<usize, String> {
    let u32_at = |from: usize| {
        let field = bytes.get(from..).and_then(<[u8]>::first_chunk);
        field.map(|bytes| u32::from_be_bytes(*bytes))
    };
    let place = bytes
        .get(PHYSICAL_OFFSET_AT..)
        .and_then(<[u8]>::first_chunk);
    let place = place.map(|bytes| u64::from_be_bytes(*bytes));
    let (size, magic) = (u32_at(0), u32_at(BLANK_BYTES - 4));
    let is_record = matches!(magic, Some(MAGIC_V1 | MAGIC_V2)) && place == Some(at.0);
    match size {
        Some(size) if is_record && size as usize >= RECORD_OVERHEAD_BYTES => Ok(size as usize),
        _ => Err(format!(
            "no record at {at}: size {size:?}, magic {magic:08x?}, place {place:?}"
        )),
    }
}
