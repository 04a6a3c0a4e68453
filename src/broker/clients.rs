//! Who is connected: producers, consumers and their subscriptions. 34, 35, 38, 46, and 40 to the clients.

use super::filter::Subscription;
use super::{Broker, Context, Outcome, Peer};
use crate::ids::ConnectionId;
use crate::protocol::command::Command;
use std::rc::Rc;

#[derive(Debug, Default)]
pub struct Clients {}

/// What a pull needs to know of its group's heartbeats.
#[derive(Clone, Debug)]
pub struct GroupView {
    pub broadcasting: bool,
    pub subscription: Option<Rc<Subscription>>,
}

impl Clients {
    /// The live group and its subscription to the topic; `None` without a heartbeat. No allocation.
    pub fn group(&self, group: &str, topic: &str) -> Option<GroupView> {
        let _ = (group, topic);
        todo!()
    }
    pub fn next_deadline(&self) -> Option<u64> {
        todo!()
    }
}

pub fn heartbeat(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    let _ = (broker, command, peer, cx);
    todo!()
}
pub fn unregister(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    let _ = (broker, command, peer, cx);
    todo!()
}
pub fn list_by_group(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Outcome {
    let _ = (broker, command, cx);
    todo!()
}
pub fn check_config(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Outcome {
    let _ = (broker, command, cx);
    todo!()
}
pub fn on_closed(broker: &mut Broker, connection: ConnectionId, cx: &mut Context<'_>) {
    let _ = (broker, connection, cx);
    todo!()
}
pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    let _ = (broker, cx);
}
