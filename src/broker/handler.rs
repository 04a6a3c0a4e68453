//! Which function answers which request.

use super::{Broker, Context, Outcome, Peer};
use crate::protocol::command::Command;

/// Runs one request. One-way requests give `Outcome::Nothing`, whatever their handler says.
pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    let _ = (broker, command, peer, cx);
    todo!()
}
