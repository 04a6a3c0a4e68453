//! One thread per shard for file operations that block and aren't worth a state machine on the ring: preparing
//! segments, replacing small files, removing files. In order, one at a time, never on the path of a message.

use super::fs::{prepare_file, replace_file};
use super::{Doorbell, Op, Token};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// What came of a job.
#[derive(Debug)]
pub enum Finished {
    Opened(OwnedFd),
    Replaced,
    Removed,
}

/// Result of a job, under its token.
pub type JobDone = (Token, io::Result<Finished>);

/// The loop's end. Dropping it ends the thread after the jobs that it has.
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
    while let Ok((token, op)) = jobs.recv() {
        let result = run(op);
        if done.send((token, result)).is_err() {
            return;
        }
        doorbell.0.ring();
    }
}

fn run(op: Op) -> io::Result<Finished> {
    match op {
        Op::Prepare {
            path,
            len,
            zero_fill,
        } => prepare_file(&path, len, zero_fill).map(|file| Finished::Opened(file.into())),
        Op::Replace {
            path,
            contents,
            keep_backup,
        } => replace_file(&path, &contents, keep_backup).map(|()| Finished::Replaced),
        Op::Remove { path } => removed(std::fs::remove_file(path)),
        Op::RemoveDirectory { path } => removed(std::fs::remove_dir_all(path)),
        other => panic!("not a job of the file worker: {other:?}"),
    }
}

/// What is not there any more is removed.
fn removed(result: io::Result<()>) -> io::Result<Finished> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(Finished::Removed),
    }
}
