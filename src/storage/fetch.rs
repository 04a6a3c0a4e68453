//! Reads of what is no longer in memory.

use super::consume_queue::decode;
use super::{FetchDone, Fetched, Missing, token};
use crate::io::{Done, Failed, File, Io, Op};
use crate::limits::{COLD_READS_IN_FLIGHT_MAX, ENTRY_BYTES};
use slab::Slab;
use std::collections::VecDeque;

/// One read of a request.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub missing: Missing,
    pub file: File,
    pub position: u64,
    pub len: u32,
    /// The file was opened for this read.
    pub close: bool,
}

#[derive(Debug)]
struct Job {
    key: u64,
    fetched: Fetched,
    left: usize,
    error: Option<String>,
}

/// All reads of a shard; a bounded number is in flight, the rest waits in order.
#[derive(Debug, Default)]
pub struct Fetches {
    jobs: Slab<Job>,
    parts: Slab<(usize, Part)>,
    waiting: VecDeque<usize>,
    in_flight: usize,
}

impl Fetches {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub fn start<I: Io>(
        &mut self,
        key: u64,
        parts: Vec<Result<Part, String>>,
        fetched: Fetched,
        io: &mut I,
    ) {
        let job = self.jobs.insert(Job {
            key,
            fetched,
            left: parts.len(),
            error: None,
        });
        for part in parts {
            // A part that can't be read is a read that ends with an error, in its turn.
            let part = part.unwrap_or_else(|reason| {
                self.jobs[job].error = Some(reason);
                let missing = Missing::Log {
                    at: crate::ids::PhysicalOffset(0),
                    bytes: 0,
                };
                Part {
                    missing,
                    file: File(u32::MAX),
                    position: 0,
                    len: 0,
                    close: false,
                }
            });
            let slot = self.parts.insert((job, part));
            self.waiting.push_back(slot);
        }
        self.submit(io);
    }

    fn submit<I: Io>(&mut self, io: &mut I) {
        while self.in_flight < COLD_READS_IN_FLIGHT_MAX {
            let Some(slot) = self.waiting.pop_front() else {
                return;
            };
            let part = self.parts[slot].1;
            self.in_flight += 1;
            let op = Op::Read {
                file: part.file,
                position: part.position,
                len: part.len,
            };
            io.submit(token(token::FETCH, slot as u32), op);
        }
    }

    pub fn on_read<I: Io>(
        &mut self,
        index: u32,
        result: Result<Done, Failed>,
        io: &mut I,
        done: &mut Vec<FetchDone>,
    ) {
        let (job_index, part) = self.parts.remove(index as usize);
        self.in_flight -= 1;
        if part.close {
            io.close(part.file);
        }
        let job = &mut self.jobs[job_index];
        match result {
            Ok(Done::Read { bytes }) => keep(&mut job.fetched, part, bytes.freeze()),
            Ok(other) => panic!("a read completed with {other:?}"),
            Err(failed) => {
                job.error
                    .get_or_insert(format!("read failed: {}", failed.error()));
            }
        }
        job.left -= 1;
        if job.left == 0 {
            let job = self.jobs.remove(job_index);
            let result = match job.error {
                None => Ok(job.fetched),
                Some(error) => Err(error),
            };
            done.push(FetchDone {
                key: job.key,
                result,
            });
        }
        self.submit(io);
    }
}

fn keep(fetched: &mut Fetched, part: Part, bytes: bytes::Bytes) {
    match part.missing {
        Missing::Log { at, .. } => fetched.ranges.push((at, bytes)),
        Missing::Entries { queue, from, .. } => {
            let entries = bytes.chunks_exact(ENTRY_BYTES).map_while(decode).collect();
            fetched.entries.push((queue, from, entries));
        }
    }
}
