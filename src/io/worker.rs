//! One thread per shard for file operations that block and aren't worth a state machine on the ring: preparing
//! segments, replacing small files, removing files. One at a time, never on the path of a message. Filling a segment
//! with zeros takes seconds, so that it is done in steps, between which all other jobs go first.

use super::fs::{Preparation, replace_file, space};
use super::{Doorbell, Op, Space, Token};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// What came of a job.
#[derive(Debug)]
pub enum Finished {
    Opened(OwnedFd),
    Replaced,
    Removed,
    Space(Space),
}

/// Result of a job, under its token.
pub type JobDone = (Token, io::Result<Finished>);

/// The loop's end. Dropping it ends the thread after the jobs that it has; files that are being filled stay as they
/// are, which is of full length and zero.
#[derive(Debug)]
pub struct Worker {
    jobs: Option<Sender<(Token, Op)>>,
    done: Receiver<JobDone>,
    thread: Option<JoinHandle<()>>,
    waiting: usize,
}

impl Worker {
    pub fn start(doorbell: Doorbell) -> io::Result<Self> {
        let (jobs, job_queue) = channel();
        let (done_queue, done) = channel();
        let thread = std::thread::Builder::new()
            .name("ringmq-files".to_owned())
            .spawn(move || work(&job_queue, &done_queue, &doorbell))?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            waiting: 0,
        })
    }

    /// Queues one of `Op::Prepare`, `Op::Replace`, `Op::Remove`. The number of jobs is bounded by their submitters:
    /// one per segment, configuration file and deleted file.
    pub fn submit(&mut self, token: Token, op: Op) {
        let jobs = self
            .jobs
            .as_ref()
            .expect("the worker lives as long as its loop");
        jobs.send((token, op))
            .expect("the worker's thread ends only when its queue is dropped");
        self.waiting += 1;
    }

    pub fn take(&mut self) -> Option<JobDone> {
        let done = self.done.try_recv().ok()?;
        self.waiting -= 1;
        Some(done)
    }

    /// Jobs that have not been taken back.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic in the worker has ended the process already.
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Receiver<(Token, Op)>, done: &Sender<JobDone>, doorbell: &Doorbell) {
    let mut filling: VecDeque<(Token, Preparation)> = VecDeque::new();
    loop {
        let job = if filling.is_empty() {
            jobs.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            jobs.try_recv()
        };
        let finished = match job {
            Ok((token, op)) => match begin(op) {
                Ok(Begun::Finished(finished)) => Some((token, Ok(finished))),
                Ok(Begun::Filling(preparation)) => {
                    filling.push_back((token, preparation));
                    None
                }
                Err(error) => Some((token, Err(error))),
            },
            Err(TryRecvError::Empty) => fill(&mut filling),
            Err(TryRecvError::Disconnected) => return,
        };
        if let Some(finished) = finished {
            if done.send(finished).is_err() {
                return;
            }
            doorbell.0.ring();
        }
    }
}

/// One step of the file that has been filled for the longest; its result once that was the last one.
fn fill(filling: &mut VecDeque<(Token, Preparation)>) -> Option<JobDone> {
    let (_, preparation) = filling.front_mut()?;
    let stepped = preparation.step();
    if stepped.is_ok() && !preparation.is_done() {
        return None;
    }
    let (token, preparation) = filling.pop_front()?;
    Some((token, stepped.map(|()| opened(preparation))))
}

fn opened(preparation: Preparation) -> Finished {
    Finished::Opened(preparation.into_file().into())
}

enum Begun {
    Finished(Finished),
    Filling(Preparation),
}

fn begin(op: Op) -> io::Result<Begun> {
    let finished = match op {
        Op::Prepare {
            path,
            len,
            zero_fill,
        } => {
            let preparation = Preparation::begin(&path, len, zero_fill)?;
            if !preparation.is_done() {
                return Ok(Begun::Filling(preparation));
            }
            Ok(opened(preparation))
        }
        Op::Replace {
            path,
            contents,
            keep_backup,
        } => replace_file(&path, &contents, keep_backup).map(|()| Finished::Replaced),
        Op::Remove { path } => removed(std::fs::remove_file(path)),
        Op::RemoveDirectory { path } => removed(std::fs::remove_dir_all(path)),
        Op::Space { path } => space(&path).map(Finished::Space),
        other => panic!("not a job of the file worker: {other:?}"),
    };
    finished.map(Begun::Finished)
}

/// What is not there any more is removed.
fn removed(result: io::Result<()>) -> io::Result<Finished> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(Finished::Removed),
    }
}
