//! What of its queue a pull gets.
//!
//! The states and codes are those of `semantics.md` section 5. Source: apache/rocketmq 5.3.x
//! `store/.../DefaultMessageStore.java` `getMessage`, `broker/.../processor/PullMessageProcessor.java`
//! `composeResponseHeader`.

use super::{Looked, PullRequest};
use crate::broker::Context;
use crate::broker::filter::Filter;
use crate::ids::{PhysicalOffset, QueueOffset};
use crate::limits::{
    PULL_BYTES_MAX, PULL_COLD_BYTES_MAX, PULL_COLD_GAP_BYTES_MAX, PULL_COLD_READS_MAX,
    PULL_ENTRIES_EXAMINED_MAX,
};
use crate::protocol::codes::ResponseCode;
use crate::protocol::response::{Body, PullResponseHeader, Response, ResponseHeader};
use crate::stats::{Delivered, Woken};
use crate::storage::{Entry, Fetched, Missing, QueueBounds, Store};
use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

/// State of a pull; its name is the remark of the answer.
///
/// NO_MATCHED_LOGIC_QUEUE is missing: every queue that passes the checks exists. OFFSET_FOUND_NULL too: entries
/// that are not in memory are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Found,
    NoMatchedMessage,
    MessageWasRemoving,
    NoMessageInQueue,
    OffsetTooSmall,
    OffsetOverflowOne,
    OffsetOverflowBadly,
    OffsetReset,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Found => "FOUND",
            Status::NoMatchedMessage => "NO_MATCHED_MESSAGE",
            Status::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
            Status::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
            Status::OffsetTooSmall => "OFFSET_TOO_SMALL",
            Status::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
            Status::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
            Status::OffsetReset => "OFFSET_RESET",
        }
    }
}

/// What an evaluation came to. The request's cursor stands behind what was examined.
pub(super) enum Evaluation {
    /// Final.
    Answer(Answer),
    /// The filter refused as much as one pull may examine; there is more.
    Refused(Answer),
    /// Nothing was found and these ranges have to be read first.
    Missing(SmallVec<[Missing; 4]>),
    /// Examined to the end of the queue, nothing for this pull.
    End,
}

/// An answer to a pull, before it is put into words.
#[derive(Debug)]
pub struct Answer {
    status: Status,
    code: ResponseCode,
    next: QueueOffset,
    bounds: QueueBounds,
    records: Gathered,
}

/// Stored records on their way out.
#[derive(Debug, Default)]
struct Gathered {
    segments: SmallVec<[Bytes; 4]>,
    bytes: usize,
    count: u32,
}

impl Gathered {
    fn push(&mut self, records: Bytes, count: u32) {
        self.bytes += records.len();
        self.count += count;
        self.segments.push(records);
    }
}

/// Matching records that follow one another in the log, and so in their queue: they leave as one slice.
#[derive(Clone, Copy)]
struct Run {
    first: QueueOffset,
    at: PhysicalOffset,
    bytes: u32,
    count: u32,
}

impl Answer {
    fn new(status: Status, next: QueueOffset, bounds: QueueBounds) -> Self {
        let code = match status {
            Status::Found => ResponseCode::SUCCESS,
            Status::NoMatchedMessage | Status::MessageWasRemoving => {
                ResponseCode::PULL_RETRY_IMMEDIATELY
            }
            Status::NoMessageInQueue | Status::OffsetOverflowOne => ResponseCode::PULL_NOT_FOUND,
            Status::OffsetTooSmall | Status::OffsetOverflowBadly | Status::OffsetReset => {
                ResponseCode::PULL_OFFSET_MOVED
            }
        };
        Self {
            status,
            code,
            next,
            bounds,
            records: Gathered::default(),
        }
    }

    /// A pull of a queue that has no message, from somewhere else than its start.
    fn moved_to_start(bounds: QueueBounds) -> Self {
        Self {
            code: ResponseCode::PULL_OFFSET_MOVED,
            ..Self::new(Status::NoMessageInQueue, QueueOffset(0), bounds)
        }
    }

    /// A pull of a queue whose offset was set by an administrator.
    pub(super) fn reset(offset: u64, bounds: QueueBounds) -> Self {
        Self::new(Status::OffsetReset, QueueOffset(offset), bounds)
    }

    /// A pull from below every offset that can be.
    pub(super) fn negative_offset(bounds: QueueBounds) -> Self {
        if bounds.max == QueueOffset(0) {
            Self::moved_to_start(bounds)
        } else {
            Self::new(Status::OffsetTooSmall, bounds.min, bounds)
        }
    }

    /// Records or a place; nothing is lost where the queue is shorter than it was, so that it starts at its first.
    pub(super) fn into_looked(self) -> Looked {
        match self.status {
            Status::Found => Looked::Found {
                segments: self.records.segments,
                bytes: self.records.bytes,
            },
            Status::NoMatchedMessage | Status::MessageWasRemoving => Looked::Refused,
            Status::NoMessageInQueue
            | Status::OffsetTooSmall
            | Status::OffsetOverflowOne
            | Status::OffsetOverflowBadly
            | Status::OffsetReset => Looked::Moved(self.bounds.min),
        }
    }

    /// The response, which is counted here; `woken`: of a hold, by an arrival. All four offsets are in every one of
    /// them: clients throw without one of them, or start again at 0.
    pub(in crate::broker) fn response(
        self,
        request: &PullRequest,
        woken: Option<Woken>,
        cx: &mut Context<'_>,
    ) -> Response {
        if self.records.count > 0 {
            let delivered = Delivered {
                group: &request.group,
                topic: &request.topic,
                connection: request.connection,
                queue_id: request.queue_id,
                offset: request.offset.0,
                next: self.next.0,
                messages: self.records.count,
                bytes: self.records.bytes,
            };
            let now_us = cx.now.monotonic_us;
            cx.counters.count_delivered(delivered, woken, now_us);
        }
        let header = PullResponseHeader {
            suggest_which_broker_id: 0,
            next_begin_offset: as_i64(self.next),
            min_offset: as_i64(self.bounds.min),
            max_offset: as_i64(self.bounds.max),
        };
        let body = if self.records.count == 0 {
            Body::None
        } else {
            Body::Stored {
                segments: self.records.segments,
                bytes: self.records.bytes,
            }
        };
        Response {
            code: self.code,
            remark: Some(self.status.name().into()),
            header: ResponseHeader::Pull(header),
            body,
        }
    }
}

fn as_i64(offset: QueueOffset) -> i64 {
    i64::try_from(offset.0).unwrap_or(i64::MAX)
}

/// The answer to a pull that has been examined up to its cursor and found nothing.
pub(super) fn end(request: &PullRequest, store: &Store) -> Answer {
    let bounds = store.bounds(request.queue);
    let status = if request.cursor > request.offset {
        Status::NoMatchedMessage
    } else if bounds.max == QueueOffset(0) {
        Status::NoMessageInQueue
    } else {
        Status::OffsetOverflowOne
    };
    Answer::new(status, request.cursor, bounds)
}

/// Evaluates a pull from its cursor on and moves the cursor.
pub(super) fn evaluate(request: &mut PullRequest, store: &Store, fetched: &Fetched) -> Evaluation {
    let bounds = store.bounds(request.queue);
    let cursor = request.cursor;
    if bounds.max == QueueOffset(0) && cursor != QueueOffset(0) {
        return Evaluation::Answer(Answer::moved_to_start(bounds));
    }
    if cursor == bounds.max {
        return Evaluation::End;
    }
    if cursor > bounds.max {
        let answer = Answer::new(Status::OffsetOverflowBadly, bounds.max, bounds);
        return Evaluation::Answer(answer);
    }
    if cursor < bounds.min {
        let answer = Answer::new(Status::OffsetTooSmall, bounds.min, bounds);
        return Evaluation::Answer(answer);
    }
    let scan = Scan {
        request,
        store,
        fetched,
        bounds,
        next: cursor,
        gathered: Gathered::default(),
        run: None,
        removing: false,
    };
    scan.run()
}

/// One walk over the entries of a queue.
struct Scan<'a> {
    request: &'a mut PullRequest,
    store: &'a Store,
    fetched: &'a Fetched,
    bounds: QueueBounds,
    next: QueueOffset,
    gathered: Gathered,
    /// Taken, but not gathered yet.
    run: Option<Run>,
    /// The record of an examined entry is gone from the log.
    removing: bool,
}

/// Why a walk ends.
enum Stop {
    /// The answer is full, or as much was examined as one pull may.
    Full,
    End,
    Missing(SmallVec<[Missing; 4]>),
}

impl Scan<'_> {
    fn run(mut self) -> Evaluation {
        let start = self.next;
        let walked = self.walk();
        let stop = self.gather_run().err().unwrap_or(walked);
        self.request.cursor = self.next;
        if self.gathered.count > 0 {
            let answer = Answer::new(Status::Found, self.next, self.bounds);
            let records = self.gathered;
            return Evaluation::Answer(Answer { records, ..answer });
        }
        match stop {
            Stop::End => Evaluation::End,
            Stop::Full => Evaluation::Refused(self.refused()),
            // One round of reading brought the pull forward: the client asks on, and no request reads for ever.
            Stop::Missing(_) if self.next > start && !self.fetched.is_empty() => {
                Evaluation::Answer(self.refused())
            }
            Stop::Missing(missing) => Evaluation::Missing(missing),
        }
    }

    fn refused(&self) -> Answer {
        let status = if self.removing {
            Status::MessageWasRemoving
        } else {
            Status::NoMatchedMessage
        };
        Answer::new(status, self.next, self.bounds)
    }

    fn walk(&mut self) -> Stop {
        let (log_start, _) = self.store.log_bounds();
        let examined_max = PULL_ENTRIES_EXAMINED_MAX.max(self.request.messages_max);
        let limit = self.next.advance(u64::from(examined_max));
        while self.next < self.bounds.max {
            if self.next >= limit || self.count() >= self.request.messages_max {
                return Stop::Full;
            }
            let entry = match self
                .store
                .entry(self.request.queue, self.next, self.fetched)
            {
                Ok(entry) => entry,
                Err(missing) => {
                    return Stop::Missing(smallvec![self.missing_entries(missing)]);
                }
            };
            if entry.is_blank() || entry.at < log_start {
                self.removing = true;
            } else if let Err(stop) = self.examine(entry) {
                return stop;
            }
            self.next = self.next.advance(1);
        }
        Stop::End
    }

    /// Messages taken so far.
    fn count(&self) -> u32 {
        self.gathered.count + self.run.map_or(0, |run| run.count)
    }

    /// Takes the record of an entry if it matches. Without a filter the record isn't looked at.
    fn examine(&mut self, entry: Entry) -> Result<(), Stop> {
        let filter = &self.request.subscription.filter;
        if !filter.may_match(entry.tags_code) {
            self.refuse(entry);
            return Ok(());
        }
        let taken = self.gathered.bytes + self.run.map_or(0, |run| run.bytes as usize);
        if self.count() > 0 && taken + entry.bytes as usize > PULL_BYTES_MAX as usize {
            return Err(Stop::Full);
        }
        if !matches!(filter, Filter::All) {
            match self.store.record(entry.at, entry.bytes, self.fetched) {
                Ok(record) if filter.matches_record(&record) => {}
                Ok(_) => {
                    self.refuse(entry);
                    return Ok(());
                }
                Err(_) => return Err(Stop::Missing(self.missing_records(entry))),
            }
        }
        self.take(entry)
    }

    fn take(&mut self, entry: Entry) -> Result<(), Stop> {
        if let Some(run) = &mut self.run
            && run.at.advance(u64::from(run.bytes)) == entry.at
        {
            run.bytes += entry.bytes;
            run.count += 1;
            return Ok(());
        }
        self.gather_run()?;
        self.run = Some(Run {
            first: self.next,
            at: entry.at,
            bytes: entry.bytes,
            count: 1,
        });
        Ok(())
    }

    /// Gathers the run: at once where it lies in one piece of memory, else record by record. Where one is missing the
    /// walk ends in front of it.
    fn gather_run(&mut self) -> Result<(), Stop> {
        let Some(run) = self.run.take() else {
            return Ok(());
        };
        if let Ok(records) = self.store.record(run.at, run.bytes, self.fetched) {
            self.gathered.push(records, run.count);
            return Ok(());
        }
        for index in 0..u64::from(run.count) {
            let offset = run.first.advance(index);
            let entry = self.store.entry(self.request.queue, offset, self.fetched);
            let entry = entry.expect("an entry that was there in this call");
            match self.store.record(entry.at, entry.bytes, self.fetched) {
                Ok(record) => self.gathered.push(record, 1),
                Err(_) => {
                    self.next = offset;
                    self.request.refused = self.request.refused.filter(|(at, _)| *at < offset);
                    return Err(Stop::Missing(self.missing_records(entry)));
                }
            }
        }
        Ok(())
    }

    fn refuse(&mut self, entry: Entry) {
        self.request.refused = Some((self.next, entry.tags_code));
    }

    /// The entries that this pull may examine from here on, as far as they have to be read.
    fn missing_entries(&self, missing: Missing) -> Missing {
        match missing {
            Missing::Entries { queue, from, count } => Missing::Entries {
                queue,
                from,
                count: count.min(self.entries_wanted()),
            },
            other => other,
        }
    }

    /// How many entries this pull can use: without a filter each of them is a message.
    fn entries_wanted(&self) -> u32 {
        let messages_max = self.request.messages_max;
        match self.request.subscription.filter {
            Filter::All => messages_max,
            Filter::Tags(_) | Filter::Sql(_) | Filter::Invalid(_) => {
                PULL_ENTRIES_EXAMINED_MAX.max(messages_max)
            }
        }
    }

    /// The record that is missing and those behind it that can be had with it.
    fn missing_records(&self, first: Entry) -> SmallVec<[Missing; 4]> {
        let mut plan = ReadPlan::new(first);
        let mut messages_left = self.request.messages_max - 1;
        let mut at = self.next.advance(1);
        while at < self.bounds.max && messages_left > 0 {
            let Ok(entry) = self.store.entry(self.request.queue, at, self.fetched) else {
                break;
            };
            let is_wanted =
                !entry.is_blank() && self.request.subscription.filter.may_match(entry.tags_code);
            if is_wanted {
                if !plan.add(entry) {
                    break;
                }
                messages_left -= 1;
            }
            at = at.advance(1);
        }
        plan.records
    }
}

/// Records to read for one pull, in the order of the queue and so of the log. The store joins neighbours.
struct ReadPlan {
    records: SmallVec<[Missing; 4]>,
    end: PhysicalOffset,
    bytes_left: u64,
    /// Reads that can't be joined with the one before.
    reads: usize,
}

impl ReadPlan {
    fn new(first: Entry) -> Self {
        Self {
            records: smallvec![Missing::Log {
                at: first.at,
                bytes: first.bytes,
            }],
            end: first.end(),
            bytes_left: u64::from(PULL_COLD_BYTES_MAX).saturating_sub(u64::from(first.bytes)),
            reads: 1,
        }
    }

    /// Adds a record; false where that would be too much.
    fn add(&mut self, entry: Entry) -> bool {
        let is_near = entry.at >= self.end
            && entry.at.bytes_since(self.end) <= u64::from(PULL_COLD_GAP_BYTES_MAX);
        let cost = if is_near {
            entry.end().bytes_since(self.end)
        } else {
            u64::from(entry.bytes)
        };
        self.reads += usize::from(!is_near);
        if cost > self.bytes_left || self.reads > PULL_COLD_READS_MAX {
            return false;
        }
        self.bytes_left -= cost;
        self.end = entry.end();
        self.records.push(Missing::Log {
            at: entry.at,
            bytes: entry.bytes,
        });
        true
    }
}
