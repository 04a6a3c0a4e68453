//! Topic and group administration: 17, 18, 21, 200, 201, 202, 207, 208, 215, 351.

use super::{Broker, Context, Outcome};
use crate::protocol::command::Command;

/// `Some` if the code is one of this file's.
pub fn handle(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Option<Outcome> {
    let _ = (broker, command, cx);
    todo!()
}
