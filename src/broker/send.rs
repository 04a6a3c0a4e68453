//! 10, 310, 320: sends.

use super::{Broker, Context, Outcome, Peer};
use crate::protocol::command::Command;

/// Memory reused by sends: the properties as they will be stored, the records of a batch.
#[derive(Debug, Default)]
pub struct SendScratch {
    pub properties: String,
}

pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    let _ = (broker, command, peer, cx);
    todo!()
}
