//! A pull and the message that it waits for, one after the other or at nearly the same moment.

use super::load::Target;
use super::payload::Payload;
use super::verify::{Findings, QueueReader};
use super::wire::{self, Reader, Writer};
use crate::protocol::command::Scratch;
use bytes::BytesMut;
use std::time::{Duration, Instant};

/// A message that has not come by then never does.
const LOST: Duration = Duration::from_secs(60);

/// A producer and a consumer of one queue.
pub struct Pair {
    target: Target,
    producer: (Writer, Reader),
    consumer: (Writer, Reader),
    queue: QueueReader,
    id: u32,
    body: BytesMut,
    out: BytesMut,
}

impl Pair {
    pub async fn connect(target: &Target, queue: u32) -> Result<Self, String> {
        let connect = || wire::connect(target.address, target.encoding);
        Ok(Self {
            producer: connect().await?,
            consumer: connect().await?,
            queue: QueueReader::new(&target.topic, queue),
            id: queue,
            body: BytesMut::new(),
            out: BytesMut::new(),
            target: target.clone(),
        })
    }

    /// From the later of the two requests to the delivery.
    pub async fn round(
        &mut self,
        number: u64,
        micros: i64,
        findings: &mut Findings,
    ) -> Result<Duration, String> {
        let skew = Duration::from_micros(micros.unsigned_abs());
        if micros < 0 {
            self.send(number).await?;
        } else {
            self.pull().await?;
        }
        let first = Instant::now();
        // Shorter than any timer can wait.
        while first.elapsed() < skew {
            std::hint::spin_loop();
        }
        let began = Instant::now();
        if micros < 0 {
            self.pull().await?;
        } else {
            self.send(number).await?;
        }
        let delivered = tokio::time::timeout(LOST, self.delivery(findings)).await;
        delivered.map_err(|_| format!("message {number} did not come within {LOST:?}"))??;
        let took = began.elapsed();
        let frame = self.producer.1.frame().await?;
        let mut scratch = Scratch::default();
        let answer = wire::decode(&frame, &mut scratch)?;
        match answer.code {
            0 => Ok(took),
            code => Err(format!(
                "a send was refused with {code}: {}",
                answer.remark.unwrap_or_default()
            )),
        }
    }

    async fn send(&mut self, number: u64) -> Result<(), String> {
        let payload = Payload {
            producer: 0,
            queue: self.id,
            number,
            // The pair takes the time itself.
            intended: 0,
        };
        let id = self.id.to_string();
        payload.write(self.target.body, &mut self.body);
        let fields = wire::send_fields(&self.target.topic, &self.target.queues_text, &id);
        let writer = &mut self.producer.0;
        writer.encode(wire::SEND, 1, &fields, &self.body, &mut self.out);
        writer.write(&mut self.out).await
    }

    async fn pull(&mut self) -> Result<(), String> {
        let (id, offset) = (self.id.to_string(), self.queue.next.to_string());
        let topic = &self.target.topic;
        let fields = wire::pull_fields(topic, topic, &id, &offset, wire::SUSPEND_MS);
        let writer = &mut self.consumer.0;
        writer.encode(wire::PULL, 1, &fields, &[], &mut self.out);
        writer.write(&mut self.out).await
    }

    /// Until a message comes; a pull that ends without one is sent again.
    async fn delivery(&mut self, findings: &mut Findings) -> Result<(), String> {
        let before = self.queue.next;
        loop {
            let frame = self.consumer.1.frame().await?;
            let mut scratch = Scratch::default();
            let answer = wire::decode(&frame, &mut scratch)?;
            let (body, next) = wire::pulled(&answer)?;
            self.queue.take(body, next, findings, |_| {});
            if self.queue.next > before {
                return Ok(());
            }
            self.pull().await?;
        }
    }
}
