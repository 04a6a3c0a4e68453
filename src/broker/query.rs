//! 29, 30, 31, 32, 33: offsets of a queue, by time, and messages by id.

use super::{Broker, Context, Outcome};
use crate::protocol::command::Command;

pub fn search_offset(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Outcome {
    let _ = (broker, command, cx);
    todo!()
}
pub fn max_offset(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Outcome {
    let _ = (broker, command, cx);
    todo!()
}
pub fn min_offset(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Outcome {
    let _ = (broker, command, cx);
    todo!()
}
pub fn earliest_store_time(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Outcome {
    let _ = (broker, command, cx);
    todo!()
}
pub fn view_message(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Outcome {
    let _ = (broker, command, cx);
    todo!()
}
