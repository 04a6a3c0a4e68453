//! A connection that sends, and takes the answers.

use super::load::Load;
use super::payload::Payload;
use super::wire::{self, Reader, Writer};
use crate::protocol::command::Scratch;
use crate::protocol::message::BatchRecord;
use bytes::BytesMut;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Requests of one connection without an answer; beyond, it waits. Times count from when each was due anyway.
const OUTSTANDING_MAX: usize = 65_536;
/// Requests that may go at once are written together up to this.
const WRITE_BYTES: usize = 64 * 1024;

/// When a producer sends.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// At `first`, and then every `interval`, whatever was answered; both in nanoseconds.
    Open { first: u64, interval: u64 },
    /// When the last one has been acknowledged and delivered to every group.
    Closed,
    /// Whenever fewer requests than this have no answer.
    Window(usize),
}

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Single,
    /// Never answered.
    OneWay,
    /// So many messages.
    Batch(u32),
}

impl Kind {
    pub fn messages(self) -> u64 {
        match self {
            Kind::Single | Kind::OneWay => 1,
            Kind::Batch(messages) => u64::from(messages),
        }
    }
}

/// Intended times by opaque.
type Pending = Rc<RefCell<HashMap<i32, u64>>>;

/// Connects and starts the two tasks.
pub async fn start(load: &Rc<Load>, index: u32, pace: Pace) -> Result<(), String> {
    let (writer, reader) = wire::connect(load.target.address, load.target.encoding).await?;
    let pending: Pending = Rc::default();
    let (shared, intended) = (Rc::clone(load), Rc::clone(&pending));
    tokio_uring::spawn(async move {
        if let Err(reason) = acknowledgements(&shared, index, reader, &intended).await {
            shared.fail(reason);
        }
    });
    let queues = load.target.queues;
    let mut producer = Producer {
        load: Rc::clone(load),
        index,
        pace,
        pending,
        requests: 0,
        numbers: vec![0; queues as usize],
        names: (0..queues).map(|queue| queue.to_string()).collect(),
        body: BytesMut::new(),
        batch: BytesMut::new(),
        out: BytesMut::new(),
    };
    tokio_uring::spawn(async move {
        if let Err(reason) = producer.run(writer).await {
            producer.load.fail(reason);
        }
    });
    Ok(())
}

struct Producer {
    load: Rc<Load>,
    index: u32,
    pace: Pace,
    pending: Pending,
    requests: u64,
    /// Next number in each queue.
    numbers: Vec<u64>,
    names: Vec<String>,
    body: BytesMut,
    batch: BytesMut,
    out: BytesMut,
}

impl Producer {
    async fn run(&mut self, mut writer: Writer) -> Result<(), String> {
        while let Some(intended) = self.due().await {
            self.add(intended, &writer);
            while self.is_more_due() {
                self.add(self.load.now(), &writer);
            }
            writer.write(&mut self.out).await?;
        }
        Ok(())
    }

    /// Waits until the next request is due, and says when it was; `None` at the end of the run.
    async fn due(&self) -> Option<u64> {
        let load = &*self.load;
        let intended = match self.pace {
            Pace::Open { first, interval } => {
                let at = first + self.requests * interval;
                if !load.wait_until(at).await {
                    return None;
                }
                at
            }
            Pace::Closed => {
                let round = load.round(self.index);
                if self.requests > 0 {
                    round.closed.notified().await;
                }
                round.open.set(1 + load.groups);
                load.now()
            }
            Pace::Window(window) => {
                while self.pending.borrow().len() >= window && !load.is_stopped() {
                    load.round(self.index).closed.notified().await;
                }
                load.now()
            }
        };
        while self.pending.borrow().len() >= OUTSTANDING_MAX && !load.is_stopped() {
            tokio::task::yield_now().await;
        }
        (!load.is_stopped()).then_some(intended)
    }

    fn is_more_due(&self) -> bool {
        let Pace::Window(window) = self.pace else {
            return false;
        };
        self.pending.borrow().len() < window && self.out.len() < WRITE_BYTES
    }

    fn add(&mut self, intended: u64, writer: &Writer) {
        let Self {
            load,
            numbers,
            names,
            body,
            batch,
            ..
        } = self;
        let target = &load.target;
        let queue = (self.requests % u64::from(target.queues)) as u32;
        batch.clear();
        for _ in 0..load.kind.messages() {
            let number = &mut numbers[queue as usize];
            let payload = Payload {
                producer: self.index,
                queue,
                number: *number,
                intended,
            };
            *number += 1;
            payload.write(target.body, body);
            let record = BatchRecord {
                flag: 0,
                body,
                properties: "",
            };
            if let Kind::Batch(_) = load.kind {
                record.encode(batch);
            }
        }
        let mut fields =
            wire::send_fields(&target.topic, &target.queues_text, &names[queue as usize]);
        // Unique among those without an answer, of which there are fewer.
        let opaque = (self.requests & 0x3FFF_FFFF) as i32;
        self.requests += 1;
        load.counts.borrow_mut().sent += load.kind.messages();
        if load.kind != Kind::OneWay {
            self.pending.borrow_mut().insert(opaque, intended);
        }
        match load.kind {
            Kind::Single => writer.encode(wire::SEND, opaque, &fields, body, &mut self.out),
            Kind::OneWay => writer.encode_one_way(wire::SEND, opaque, &fields, body, &mut self.out),
            Kind::Batch(_) => {
                wire::mark_as_batch(&mut fields);
                writer.encode(wire::SEND_BATCH, opaque, &fields, batch, &mut self.out);
            }
        }
    }
}

async fn acknowledgements(
    load: &Load,
    producer: u32,
    mut reader: Reader,
    pending: &Pending,
) -> Result<(), String> {
    let mut scratch = Scratch::default();
    let messages = load.kind.messages();
    loop {
        let frame = reader.frame().await?;
        let now = load.now();
        let answer = wire::decode(&frame, &mut scratch)?;
        if !answer.is_response() {
            continue;
        }
        let intended = pending.borrow_mut().remove(&answer.opaque);
        let mut counts = load.counts.borrow_mut();
        let Some(intended) = intended else {
            let opaque = answer.opaque;
            counts
                .findings
                .add(|| format!("an answer to {opaque}, which waits for none"));
            continue;
        };
        if answer.code == 0 {
            counts.acknowledged += messages;
            if load.is_recorded(intended) {
                counts.acknowledgement.record(now.saturating_sub(intended));
            }
            drop(counts);
            load.part_of_round(producer, 1);
        } else {
            let (code, remark) = (answer.code, answer.remark.unwrap_or_default());
            counts.refused += messages;
            counts
                .findings
                .add(|| format!("a send was refused with {code}: {remark}"));
            drop(counts);
            load.part_of_round(producer, usize::MAX);
        }
    }
}
