//! A consumer group: a connection with a held pull for every queue of the topic.

use super::load::{Counts, Load};
use super::verify::QueueReader;
use super::wire::{self, Reader, Writer};
use crate::protocol::command::Scratch;
use bytes::BytesMut;
use std::rc::Rc;

/// Connects a group; one pull for each queue waits when this returns, but for the way to the broker.
pub async fn start(load: &Rc<Load>, group: usize) -> Result<(), String> {
    let (writer, reader) = wire::connect(load.target.address, load.target.encoding).await?;
    let target = &load.target;
    let queues = (0..target.queues).map(|queue| QueueReader::new(&target.topic, queue));
    let mut consumer = Consumer {
        load: Rc::clone(load),
        group,
        name: format!("{}-{group}", target.topic),
        writer,
        queues: queues.collect(),
        out: BytesMut::new(),
    };
    for queue in 0..target.queues as usize {
        consumer.pull(queue);
    }
    consumer.writer.write(&mut consumer.out).await?;
    tokio_uring::spawn(async move {
        let load = Rc::clone(&consumer.load);
        if let Err(reason) = consumer.run(reader).await {
            load.fail(reason);
        }
    });
    Ok(())
}

struct Consumer {
    load: Rc<Load>,
    group: usize,
    name: String,
    writer: Writer,
    queues: Vec<QueueReader>,
    out: BytesMut,
}

impl Consumer {
    /// The opaque of a pull is its queue.
    fn pull(&mut self, queue: usize) {
        let (id, offset) = (queue.to_string(), self.queues[queue].next.to_string());
        let fields = wire::pull_fields(
            &self.name,
            &self.load.target.topic,
            &id,
            &offset,
            wire::SUSPEND_MS,
        );
        self.writer
            .encode(wire::PULL, queue as i32, &fields, &[], &mut self.out);
    }

    async fn run(&mut self, mut reader: Reader) -> Result<(), String> {
        let mut scratch = Scratch::default();
        loop {
            let frame = reader.frame().await?;
            let now = self.load.now();
            let answer = wire::decode(&frame, &mut scratch)?;
            if !answer.is_response() {
                continue;
            }
            let queue = usize::try_from(answer.opaque).ok();
            let queue = queue.filter(|queue| *queue < self.queues.len());
            let queue = queue
                .ok_or_else(|| format!("an answer to {}, which no pull has", answer.opaque))?;
            let (body, next) = wire::pulled(&answer)?;
            self.take(queue, body, next, now);
            self.pull(queue);
            self.writer.write(&mut self.out).await?;
        }
    }

    fn take(&mut self, queue: usize, body: &[u8], next: u64, now: u64) {
        let Self {
            load,
            group,
            queues,
            ..
        } = self;
        let mut counts = load.counts.borrow_mut();
        let Counts {
            findings,
            delivery,
            delivered,
            out_of_order,
            last_delivered,
            ..
        } = &mut *counts;
        let before = queues[queue].out_of_order;
        queues[queue].take(body, next, findings, |payload| {
            delivered[*group] += 1;
            if load.is_recorded(payload.intended) {
                delivery.record(now.saturating_sub(payload.intended));
            }
            load.part_of_round(payload.producer, 1);
        });
        if !body.is_empty() {
            *last_delivered = now;
        }
        *out_of_order += queues[queue].out_of_order - before;
    }
}
