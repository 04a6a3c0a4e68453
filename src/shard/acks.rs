//! Sends that wait for their bytes to count, in log order.

use crate::broker::Acknowledgement;
use crate::ids::{ConnectionId, PhysicalOffset};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::Encoding;
use crate::protocol::response::{Body, Response, ResponseHeader};
use crate::stats::Asked;
use std::collections::VecDeque;

/// How long a send waits for the disk before its client is told that durability is unknown (code 10). Clients
/// give up at 3 s.
const FLUSH_TIMEOUT_US: u64 = 2_500_000;

/// One send that waits.
#[derive(Debug)]
pub struct PendingAck {
    pub connection: ConnectionId,
    pub opaque: i32,
    pub encoding: Encoding,
    pub ack: Acknowledgement,
    pub asked: Asked,
}

/// Two queues in log order: what waits for `visible`, and what asked not to wait for a flush.
#[derive(Debug, Default)]
pub struct Acks {
    visible: VecDeque<PendingAck>,
    written: VecDeque<PendingAck>,
}

impl Acks {
    pub fn len(&self) -> usize {
        self.visible.len() + self.written.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn push(&mut self, pending: PendingAck) {
        let queue = if pending.ack.wait_flush {
            &mut self.visible
        } else {
            &mut self.written
        };
        if let Some(last) = queue.back() {
            assert!(
                last.ack.end <= pending.ack.end,
                "acknowledgements are in log order"
            );
        }
        queue.push_back(pending);
    }

    /// The next send whose bytes count now.
    pub fn pop(&mut self, written: PhysicalOffset, visible: PhysicalOffset) -> Option<PendingAck> {
        pop_reached(&mut self.written, written).or_else(|| pop_reached(&mut self.visible, visible))
    }

    /// Any send that waits; used when the log has failed.
    pub fn pop_any(&mut self) -> Option<PendingAck> {
        self.written
            .pop_front()
            .or_else(|| self.visible.pop_front())
    }

    /// The next send that has waited too long.
    pub fn pop_late(&mut self, now_us: u64) -> Option<PendingAck> {
        let late = |queue: &VecDeque<PendingAck>| {
            queue
                .front()
                .is_some_and(|p| p.asked.since_us + FLUSH_TIMEOUT_US <= now_us)
        };
        if late(&self.written) {
            return self.written.pop_front();
        }
        if late(&self.visible) {
            self.visible.pop_front()
        } else {
            None
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        let front = |queue: &VecDeque<PendingAck>| {
            queue.front().map(|p| p.asked.since_us + FLUSH_TIMEOUT_US)
        };
        front(&self.written)
            .into_iter()
            .chain(front(&self.visible))
            .min()
    }
}

fn pop_reached(queue: &mut VecDeque<PendingAck>, reached: PhysicalOffset) -> Option<PendingAck> {
    if queue.front()?.ack.end <= reached {
        queue.pop_front()
    } else {
        None
    }
}

impl PendingAck {
    /// SEND_OK.
    pub fn accepted(self) -> (ConnectionId, i32, Encoding, Response) {
        let response = Response::with_header(ResponseHeader::Send(self.ack.header));
        (self.connection, self.opaque, self.encoding, response)
    }

    /// Stored, but not flushed in time: code 10 with the offsets, as Apache answers.
    pub fn late(self) -> (ConnectionId, i32, Encoding, Response) {
        let response = Response {
            code: ResponseCode::FLUSH_DISK_TIMEOUT,
            remark: Some(format!("not on disk after {} ms", FLUSH_TIMEOUT_US / 1000).into()),
            header: ResponseHeader::Send(self.ack.header),
            body: Body::None,
        };
        (self.connection, self.opaque, self.encoding, response)
    }

    /// The log has failed: not acknowledged, whatever became of the bytes.
    pub fn failed(self, reason: &str) -> (ConnectionId, i32, Encoding, Response) {
        let remark = format!("the commit log is read-only until restart: {reason}");
        let response = Response::error(ResponseCode::SERVICE_NOT_AVAILABLE, remark);
        (self.connection, self.opaque, self.encoding, response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::response::{MessageIds, SendResponseHeader};

    fn pending(end: u64, wait_flush: bool, since_us: u64) -> PendingAck {
        let header = SendResponseHeader {
            message_id: MessageIds::Many(String::new()),
            queue_id: 0,
            queue_offset: end,
            transaction_id: None,
            region: "DefaultRegion",
            trace_on: true,
        };
        PendingAck {
            connection: ConnectionId {
                index: 0,
                generation: 0,
            },
            opaque: 1,
            encoding: Encoding::Json,
            ack: Acknowledgement {
                end: PhysicalOffset(end),
                wait_flush,
                header,
            },
            asked: Asked {
                code: 310,
                since_us,
            },
        }
    }

    #[test]
    fn a_send_is_acknowledged_when_the_log_has_reached_its_end() {
        let mut acks = Acks::default();
        acks.push(pending(100, true, 0));
        acks.push(pending(150, false, 0));
        acks.push(pending(200, true, 0));
        let at = PhysicalOffset;
        assert!(acks.pop(at(149), at(99)).is_none());
        assert_eq!(
            acks.pop(at(150), at(99)).map(|p| p.ack.end),
            Some(at(150)),
            "WAIT=false needs no flush"
        );
        assert_eq!(acks.pop(at(200), at(100)).map(|p| p.ack.end), Some(at(100)));
        assert!(acks.pop(at(200), at(199)).is_none());
        assert_eq!(acks.len(), 1);
    }

    #[test]
    fn a_slow_disk_is_told_before_the_client_gives_up() {
        let mut acks = Acks::default();
        acks.push(pending(100, true, 1_000));
        assert_eq!(acks.next_deadline(), Some(2_501_000));
        assert!(acks.pop_late(2_500_999).is_none());
        let (_, _, _, response) = acks.pop_late(2_501_000).expect("it is late").late();
        assert_eq!(response.code, ResponseCode::FLUSH_DISK_TIMEOUT);
        assert!(acks.is_empty());
    }
}
