//! What a shard does without its ring: requests, answers, closes, effects.

use super::cold::Cold;
use super::{Core, Phase};
use crate::broker::relay::{self, AddressedCall, Letter};
use crate::broker::{self, Context};
use crate::control::mail::FromShard;
use crate::ids::ConnectionId;
use crate::io::Socket;
use crate::limits::{
    CONNECTION_OUT_BYTES_MAX, CONNECTION_OUT_RESUME_BYTES, OUT_BYTES_MAX, STUCK_US,
};
use crate::protocol::bodies::TopicConfig;
use crate::protocol::calls::{CallResult, ForwardedCall};
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::Encoding;
use crate::protocol::response::{Request, Response};
use crate::stats::CloseReason;
use crate::stats::slow::Hops;
use crate::storage::{Arrival, Fetched, Why};
use bytes::Bytes;
use std::net::SocketAddr;

impl Core {
    /// The next instant at which something is due, in monotonic microseconds.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        if !self.resumed.is_empty() {
            return Some(0);
        }
        if !self.unsent.is_empty() {
            return Some(self.now.monotonic_us + 1_000);
        }
        let stop = match self.phase {
            Phase::Stopping { deadline_us } => Some(deadline_us),
            Phase::Serving | Phase::Stopped => None,
        };
        let parts = [
            self.store.next_deadline(),
            self.broker.next_deadline(),
            self.acks.next_deadline(),
            self.files.next_deadline(),
            stop,
            self.idle_scan_us,
        ];
        parts.into_iter().flatten().min()
    }

    pub(super) fn admit(&mut self, socket: Socket, peer: SocketAddr) -> Option<ConnectionId> {
        if self.phase != Phase::Serving || self.connections.len() >= self.connections_max {
            self.counters.connections_refused += 1;
            return None;
        }
        self.counters.connections_accepted += 1;
        self.counters.connections_now += 1;
        self.idle_scan_us
            .get_or_insert(self.now.monotonic_us + self.idle_us);
        Some(self.connections.insert(socket, peer, self.now.monotonic_us))
    }

    pub(super) fn reply(
        &mut self,
        id: ConnectionId,
        opaque: i32,
        encoding: Encoding,
        response: Response,
    ) {
        self.outgoing
            .response(&mut self.connections, id, opaque, encoding, response);
    }

    /// Messages became visible: acknowledges their sends, wakes the holds of their queues.
    pub(super) fn deliver(&mut self, arrivals: &mut Vec<Arrival>) {
        self.store.take_arrivals(arrivals);
        let has_arrived = !arrivals.is_empty();
        for arrival in arrivals.drain(..) {
            self.broker
                .on_arrival(arrival, context!(self, &Fetched::default(), true));
        }
        let (written, visible) = (self.store.written(), self.store.visible());
        self.has_delivered |= has_arrived;
        while let Some(pending) = self.acks.pop(written, visible) {
            self.has_delivered = true;
            self.count_answer(pending.asked, ResponseCode::SUCCESS);
            let (id, opaque, encoding, response) = pending.accepted();
            self.reply(id, opaque, encoding, response);
        }
        if self.store.failure().is_some() {
            self.fail_acks();
        }
    }

    /// Segments that retention deleted: in the counters and in the log.
    pub(super) fn count_deleted(&mut self) {
        while let Some(deleted) = self.store.take_deleted() {
            self.counters.segments_deleted += 1;
            self.counters.segment_bytes_deleted += deleted.bytes;
            let (first, queues, shard) = (deleted.first, deleted.queues, self.id);
            match deleted.why {
                Why::Age | Why::AgeAndDisk => {
                    tracing::info!(%shard, %first, queues, why = %deleted.why, "a segment was deleted")
                }
                Why::Disk | Why::Size => {
                    tracing::warn!(%shard, %first, queues, why = %deleted.why, "a segment was deleted, whatever its age")
                }
            }
        }
    }

    fn fail_acks(&mut self) {
        let reason = self.store.failure().unwrap_or_default().to_owned();
        while let Some(pending) = self.acks.pop_any() {
            self.counters.sends_refused += 1;
            self.count_answer(pending.asked, ResponseCode::SERVICE_NOT_AVAILABLE);
            let (id, opaque, encoding, response) = pending.failed(&reason);
            self.reply(id, opaque, encoding, response);
        }
    }

    /// Holds, memberships, late acknowledgements, silent connections.
    pub(super) fn expire(&mut self) {
        let now_us = self.now.monotonic_us;
        if self.broker.next_deadline().is_some_and(|at| at <= now_us) {
            self.broker
                .expire(context!(self, &Fetched::default(), true));
        }
        while let Some(pending) = self.acks.pop_late(now_us) {
            self.counters.sends_refused += 1;
            self.count_answer(pending.asked, ResponseCode::FLUSH_DISK_TIMEOUT);
            let (id, opaque, encoding, response) = pending.late();
            self.reply(id, opaque, encoding, response);
        }
        if self.idle_scan_us.is_some_and(|at| at <= now_us) {
            self.close_silent(now_us);
        }
    }

    /// Looks at all connections, then not again before the longest silence can have become too long.
    fn close_silent(&mut self, now_us: u64) {
        let idle_us = self.idle_us;
        self.close_stuck(idle_us);
        let silent: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, c)| !c.sending && c.active_us + idle_us <= now_us)
            .map(|(id, _)| id)
            .collect();
        for id in silent {
            self.close(id, CloseReason::Silent);
        }
        let oldest = self
            .connections
            .iter()
            .map(|(_, c)| c.silent_since_us())
            .filter(|us| us + idle_us > now_us)
            .min();
        self.idle_scan_us = oldest.map(|us| us + idle_us);
    }

    /// Closes the connections that have taken nothing of a send for so long.
    fn close_stuck(&mut self, for_us: u64) {
        let now_us = self.now.monotonic_us;
        let is_stuck = |since_us: u64| since_us + for_us <= now_us;
        let stuck: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, c)| !c.closing && c.stuck_since_us().is_some_and(is_stuck))
            .map(|(id, _)| id)
            .collect();
        for id in stuck {
            self.close_slow(id);
        }
    }

    pub(super) fn on_sent(&mut self, id: ConnectionId, bytes: usize, mut segments: Vec<Bytes>) {
        self.counters.bytes_sent += bytes as u64;
        let now_us = self.now.monotonic_us;
        self.counters.tables.slow.on_sent(id, now_us);
        if let Some(connection) = self.connections.get_mut(id) {
            connection.sending = false;
            connection.active_us = now_us;
            connection.out_bytes -= bytes;
            put_back_unsent(&mut connection.queue, &mut segments, bytes);
            let more = !connection.queue.is_empty() && !connection.dirty && !connection.closing;
            connection.dirty |= more;
            let (is_paused, waiting) = (connection.paused, connection.out_bytes);
            self.connections.out_bytes -= bytes;
            let enough = CONNECTION_OUT_RESUME_BYTES.min(self.connections.out_limit() / 4);
            if is_paused && waiting <= enough {
                self.resumed.push(id);
            }
            if more {
                self.outgoing.dirty.push(id);
            }
        }
        self.outgoing.recycle(segments);
    }

    /// The replies of this turn were handed over, all at this instant (monotonic microseconds).
    pub(super) fn end_turn(&mut self, end_us: u64) {
        let (written_us, visible_us) = self.store.visible_since();
        let hops = Hops {
            written_us,
            visible_us,
            queued_us: end_us,
        };
        let times = &mut self.counters.tables.times;
        if std::mem::take(&mut self.has_delivered) {
            let micros = end_us.saturating_sub(visible_us);
            times.visible_to_reply.record(micros);
        }
        times
            .turn
            .record(end_us.saturating_sub(self.now.monotonic_us));
        let connections = &mut self.connections;
        self.counters.replies_queued(hops, |id| {
            let connection = connections.open_mut(id);
            // What doesn't leave with the send in flight leaves with the one after it.
            connection.map_or(0, |c| 1 + u8::from(!c.queue.is_empty()))
        });
    }

    pub(super) fn outgoing_is_empty(&self) -> bool {
        self.connections
            .iter()
            .all(|(_, c)| c.closing || !c.sending && c.queue.is_empty())
    }

    /// Closes the connection at the end of this turn.
    pub(super) fn close(&mut self, id: ConnectionId, reason: CloseReason) {
        if self.connections.open_mut(id).is_some() {
            self.closing.push((id, reason));
        }
    }

    pub(super) fn close_all(&mut self) {
        let ids: Vec<ConnectionId> = self.connections.ids().collect();
        for id in ids {
            self.close(id, CloseReason::Stop);
        }
    }

    /// Marks the connection and drops all that was held for it; its socket is to be closed.
    pub(super) fn begin_close(&mut self, id: ConnectionId, reason: CloseReason) -> Option<Socket> {
        let connection = self.connections.open_mut(id)?;
        connection.closing = true;
        connection.queue.clear();
        let (socket, peer) = (connection.socket, connection.peer);
        tracing::debug!(shard = %self.id, %peer, %reason, "connection closed");
        self.counters.count_close(reason);
        self.counters.tables.slow.on_closed(id);
        self.broker
            .on_closed(id, context!(self, &Fetched::default(), true));
        Some(socket)
    }

    pub(super) fn answer_holds(&mut self) {
        self.broker
            .begin_stop(context!(self, &Fetched::default(), true));
    }

    pub(super) fn adopt_topic(&mut self, topic: TopicConfig) {
        self.adopted += 1;
        self.broker
            .topics
            .adopt(topic, context!(self, &Fetched::default(), true));
    }

    pub(super) fn on_registered(&mut self, sequence: u64) {
        while self
            .registrations
            .front()
            .is_some_and(|(wanted, ..)| *wanted <= sequence)
        {
            if let Some((_, addressed, asked)) = self.registrations.pop_front() {
                self.count_answer(asked, addressed.response.code);
                self.reply(
                    addressed.connection,
                    addressed.opaque,
                    addressed.encoding,
                    addressed.response,
                );
            }
        }
    }

    /// Answers, notifications, mail and registration; files and reads are the ring's.
    pub(super) fn perform_effects(&mut self) {
        self.broker
            .end_turn(context!(self, &Fetched::default(), true));
        let mut replies = std::mem::take(&mut self.effects.replies);
        for addressed in replies.drain(..) {
            self.reply(
                addressed.connection,
                addressed.opaque,
                addressed.encoding,
                addressed.response,
            );
        }
        self.effects.replies = replies;
        for (request, missing) in std::mem::take(&mut self.effects.reads) {
            let (id, opaque, encoding) = (request.connection, request.opaque, request.encoding);
            self.read(
                id,
                opaque,
                encoding,
                Cold::Pull(Box::new(request)),
                0,
                missing,
            );
        }
        for (task, missing) in std::mem::take(&mut self.effects.task_reads) {
            self.read_for_task(task, 0, missing);
        }
        for notification in std::mem::take(&mut self.effects.notifications) {
            self.notify(notification);
        }
        let mut calls = std::mem::take(&mut self.effects.calls);
        for call in calls.drain(..) {
            self.call(&call);
        }
        self.effects.calls = calls;
        for letter in std::mem::take(&mut self.effects.letters) {
            self.post(letter);
        }
        let shard = self.id;
        for topic in std::mem::take(&mut self.effects.created_topics) {
            self.report(FromShard::TopicCreated { shard, topic });
        }
        if std::mem::take(&mut self.effects.register) {
            self.registration_sequence += 1;
            let (sequence, body) = (
                self.registration_sequence,
                self.broker.topics.registration_body(),
            );
            self.report(FromShard::Register {
                shard,
                sequence,
                body,
            });
        }
        let count = std::mem::take(&mut self.adopted);
        if count > 0 {
            self.report(FromShard::TopicsAdopted { shard, count });
        }
        self.flush_mail();
        self.close_slow_readers();
    }

    fn call(&mut self, addressed: &AddressedCall) {
        let call = &addressed.call;
        let fields: Vec<(&str, &str)> = call.fields.iter().map(|(n, v)| (*n, &**v)).collect();
        let request = Request {
            code: call.code.0,
            opaque: addressed.opaque,
            one_way: addressed.one_way,
            encoding: Encoding::Json,
            fields: &fields,
            body: &call.body,
        };
        self.outgoing
            .frame(&mut self.connections, addressed.connection, |out| {
                request.encode(out)
            });
    }

    fn post(&mut self, letter: Letter) {
        let shard = self.id;
        self.report(match letter {
            Letter::Call(call) => FromShard::Call { shard, call },
            Letter::Route { id, topic } => FromShard::Route { shard, id, topic },
            Letter::Answer { origin, id, result } => FromShard::CallAnswered { origin, id, result },
        });
    }

    pub(super) fn on_forwarded(&mut self, call: ForwardedCall) {
        relay::on_forwarded(
            &mut self.broker,
            call,
            context!(self, &Fetched::default(), true),
        );
    }

    pub(super) fn on_call_answered(&mut self, id: u64, result: CallResult) {
        relay::on_forwarded_answer(
            &mut self.broker,
            id,
            result,
            context!(self, &Fetched::default(), true),
        );
    }

    fn notify(&mut self, notification: broker::Notification) {
        let request = Request {
            code: RequestCode::NOTIFY_CONSUMER_IDS_CHANGED.0,
            opaque: self.next_opaque,
            one_way: true,
            encoding: Encoding::Json,
            fields: &[("consumerGroup", &notification.group)],
            body: &[],
        };
        self.next_opaque = self.next_opaque.wrapping_add(1);
        self.outgoing
            .frame(&mut self.connections, notification.connection, |out| {
                request.encode(out)
            });
    }

    /// Hands mail to the control thread, in order.
    pub(super) fn report(&mut self, mail: FromShard) {
        if matches!(mail, FromShard::Register { .. }) {
            // A newer registration says all that an older one does, and is answered for both.
            let is_other = |waiting: &FromShard| !matches!(waiting, FromShard::Register { .. });
            self.unsent.retain(is_other);
        }
        self.unsent.push_back(mail);
        self.flush_mail();
    }

    fn flush_mail(&mut self) {
        while let Some(mail) = self.unsent.pop_front() {
            if let Err(back) = (self.report)(mail) {
                self.unsent.push_front(back);
                return;
            }
        }
    }

    /// A client that reads slowly is not read from; one that makes the shard hold too much for it even so pays with
    /// its connection.
    fn close_slow_readers(&mut self) {
        self.outgoing.split(&mut self.connections);
        let total = self.connections.out_bytes;
        if total > OUT_BYTES_MAX && self.now.monotonic_us >= self.stuck_scan_us {
            self.stuck_scan_us = self.now.monotonic_us + STUCK_US / 10;
            self.close_stuck(STUCK_US);
        }
        for index in 0..self.outgoing.dirty.len() {
            let id = self.outgoing.dirty[index];
            let Some(connection) = self.connections.open_mut(id) else {
                continue;
            };
            let over = connection.out_bytes > CONNECTION_OUT_BYTES_MAX
                || total > OUT_BYTES_MAX && connection.out_bytes > OUT_BYTES_MAX / 64;
            if over {
                self.close_slow(id);
            } else {
                self.pause_if_over(id);
            }
        }
    }

    fn close_slow(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.open_mut(id) else {
            return;
        };
        tracing::warn!(shard = %self.id, peer = %connection.peer, bytes = connection.out_bytes,
            "the client does not read its replies, connection closed");
        self.counters.slow_readers_closed += 1;
        self.close(id, CloseReason::DoesNotRead);
    }
}

/// Puts what a short send left at the front of the queue, in order.
fn put_back_unsent(
    queue: &mut std::collections::VecDeque<Bytes>,
    segments: &mut Vec<Bytes>,
    sent: usize,
) {
    let mut left = sent;
    let mut first_unsent = segments.len();
    for (index, segment) in segments.iter_mut().enumerate() {
        if left < segment.len() {
            let _sent = segment.split_to(left);
            first_unsent = index;
            break;
        }
        left -= segment.len();
    }
    for segment in segments.drain(first_unsent..).rev() {
        queue.push_front(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn a_short_send_goes_on_where_it_stopped() {
        for sent in 0..=9_usize {
            let mut queue: VecDeque<Bytes> = [Bytes::from_static(b"rest")].into();
            let mut segments = vec![
                Bytes::from_static(b"abc"),
                Bytes::from_static(b""),
                Bytes::from_static(b"defghi"),
            ];
            put_back_unsent(&mut queue, &mut segments, sent);
            let left: Vec<u8> = queue.iter().flatten().copied().collect();
            assert_eq!(
                left,
                [&b"abcdefghi"[sent..], b"rest"].concat(),
                "after {sent} bytes"
            );
        }
    }
}
