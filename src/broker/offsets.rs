//! Committed offsets of consumer groups; `config/consumerOffset.json`. 14, 15.

use super::{Broker, Context, Outcome};
use crate::protocol::command::Command;

#[derive(Debug)]
pub struct ConsumerOffsets {}

impl ConsumerOffsets {
    pub fn load(file: Option<&[u8]>) -> Result<Self, String> {
        let _ = file;
        todo!()
    }
    pub fn get(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        let _ = (group, topic, queue_id);
        todo!()
    }
    /// Stored even if smaller. No allocation when the key exists.
    pub fn commit(&mut self, group: &str, topic: &str, queue_id: u32, offset: u64, now_us: u64) {
        let _ = (group, topic, queue_id, offset, now_us);
        todo!()
    }
    pub fn next_deadline(&self) -> Option<u64> {
        todo!()
    }
}

pub fn query(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Outcome {
    let _ = (broker, command, cx);
    todo!()
}
pub fn update(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Outcome {
    let _ = (broker, command, cx);
    todo!()
}
pub fn persist_if_due(broker: &mut Broker, cx: &mut Context<'_>) {
    let _ = (broker, cx);
}
pub fn persist_now(broker: &mut Broker, cx: &mut Context<'_>) {
    let _ = (broker, cx);
}
