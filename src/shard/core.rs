//! What a shard does without its ring: requests, answers, closes, effects.

use super::acks::PendingAck;
use super::cold::{Cold, ColdError};
use super::{Core, Phase};
use crate::broker::{self, Addressed, Context, Outcome, Peer, handler};
use crate::control::mail::FromShard;
use crate::ids::ConnectionId;
use crate::io::Socket;
use crate::limits::{
    CONNECTION_IDLE_SECONDS, CONNECTION_OUT_BYTES_MAX, CONNECTIONS_MAX, OUT_BYTES_MAX,
    PARTIAL_FRAMES_BYTES_MAX,
};
use crate::protocol::bodies::TopicConfig;
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::{Command, Encoding};
use crate::protocol::frame::{self, Frame, Split};
use crate::protocol::response::{Request, Response};
use crate::stats::rpc::OTHER_CODE;
use crate::stats::slow::Hops;
use crate::stats::{Asked, CloseReason};
use crate::storage::{Arrival, FetchDone, Fetched, Missing};
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use std::net::SocketAddr;

/// Unfinished frames keep their memory up to this size when done.
const PARTIAL_KEEP_BYTES: usize = 64 * 1024;
const IDLE_US: u64 = CONNECTION_IDLE_SECONDS * 1_000_000;

/// A context of the broker over this core's fields; a macro, since a method would borrow all of `self`.
macro_rules! context {
    ($core:ident, $fetched:expr, $first_run:expr) => {
        &mut Context {
            store: &mut $core.store,
            now: $core.now,
            fetched: $fetched,
            first_run: $first_run,
            effects: &mut $core.effects,
            counters: &mut $core.counters,
        }
    };
}

impl Core {
    /// The next instant at which something is due, in monotonic microseconds.
    pub(super) fn next_deadline(&self) -> Option<u64> {
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
        if self.phase != Phase::Serving || self.connections.len() >= CONNECTIONS_MAX {
            self.counters.connections_refused += 1;
            return None;
        }
        self.counters.connections_accepted += 1;
        self.counters.connections_now += 1;
        self.idle_scan_us
            .get_or_insert(self.now.monotonic_us + IDLE_US);
        Some(self.connections.insert(socket, peer, self.now.monotonic_us))
    }

    /// Bytes of a connection, in order: whole frames are handled in place, the rest is kept.
    pub(super) fn on_bytes(&mut self, id: ConnectionId, bytes: &[u8]) {
        let now_us = self.now.monotonic_us;
        let Some(connection) = self.connections.open_mut(id) else {
            return;
        };
        connection.active_us = now_us;
        self.counters.bytes_received += bytes.len() as u64;
        let mut rest = bytes;
        if !connection.partial.is_empty() {
            match self.finish_partial(id, rest) {
                Some(after) => rest = after,
                None => return,
            }
        }
        while !rest.is_empty() {
            match frame::split(rest) {
                Ok(Split::Frame(frame)) => {
                    rest = &rest[frame.bytes..];
                    if !self.on_frame(id, &frame) {
                        return;
                    }
                }
                Ok(Split::Incomplete { total }) => {
                    self.keep_partial(id, rest, total);
                    return;
                }
                Err(error) => {
                    self.malformed(id, &error);
                    return;
                }
            }
        }
    }

    /// Adds to an unfinished frame and handles it when whole. Returns the bytes behind it, `None` when there are
    /// none or the connection is done for.
    fn finish_partial<'b>(&mut self, id: ConnectionId, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let connection = self.connections.open_mut(id)?;
        let mut partial = std::mem::take(&mut connection.partial);
        self.connections.partial_bytes -= partial.len();
        let mut rest = bytes;
        loop {
            match frame::split(&partial) {
                Ok(Split::Frame(frame)) => {
                    assert_eq!(
                        frame.bytes,
                        partial.len(),
                        "only one frame's bytes were added"
                    );
                    let alive = self.on_frame(id, &frame);
                    partial.clear();
                    self.keep_memory(id, partial);
                    return alive.then_some(rest);
                }
                Ok(Split::Incomplete { total }) => {
                    // Before the length is known, its 8 bytes are completed first.
                    let wanted = total.unwrap_or(8).max(8) - partial.len();
                    let taken = wanted.min(rest.len());
                    if taken == 0 {
                        self.put_partial(id, partial);
                        return None;
                    }
                    partial.extend_from_slice(&rest[..taken]);
                    rest = &rest[taken..];
                }
                Err(error) => {
                    self.malformed(id, &error);
                    return None;
                }
            }
        }
    }

    fn keep_partial(&mut self, id: ConnectionId, rest: &[u8], total: Option<usize>) {
        let Some(connection) = self.connections.open_mut(id) else {
            return;
        };
        let mut partial = std::mem::take(&mut connection.partial);
        // A claimed length reserves nothing beyond what one receive brings: memory follows bytes.
        partial.reserve(total.unwrap_or(8).min(2 * rest.len() + 256));
        partial.extend_from_slice(rest);
        self.put_partial(id, partial);
    }

    fn put_partial(&mut self, id: ConnectionId, partial: BytesMut) {
        let bytes = partial.len();
        if self.connections.partial_bytes + bytes > PARTIAL_FRAMES_BYTES_MAX {
            self.close(id, CloseReason::PartialFrames);
            return;
        }
        if let Some(connection) = self.connections.open_mut(id) {
            connection.partial = partial;
            self.connections.partial_bytes += bytes;
        }
    }

    fn keep_memory(&mut self, id: ConnectionId, partial: BytesMut) {
        if partial.capacity() <= PARTIAL_KEEP_BYTES
            && let Some(connection) = self.connections.open_mut(id)
        {
            connection.partial = partial;
        }
    }

    fn malformed(&mut self, id: ConnectionId, error: &dyn std::fmt::Display) {
        self.counters.frames_malformed += 1;
        if let Some(connection) = self.connections.open_mut(id) {
            tracing::warn!(shard = %self.id, peer = %connection.peer, %error, "malformed frame, connection closed");
        }
        self.close(id, CloseReason::Malformed);
    }

    /// Handles one frame. False: the connection is done for.
    fn on_frame(&mut self, id: ConnectionId, frame: &Frame<'_>) -> bool {
        self.counters.frames_received += 1;
        let Some(connection) = self.connections.open_mut(id) else {
            return false;
        };
        let peer = Peer {
            connection: id,
            address: connection.peer,
        };
        let since_us = self.now.monotonic_us;
        self.run_frame(peer, frame, &Fetched::default(), 0, since_us)
    }

    /// Runs a request, for the first time or again with what was read for it.
    /// `since_us`: when it came.
    fn run_frame(
        &mut self,
        peer: Peer,
        frame: &Frame<'_>,
        fetched: &Fetched,
        steps: u32,
        since_us: u64,
    ) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        let decoded = Command::decode(frame, &mut scratch);
        let command = match decoded {
            Ok(command) => command,
            Err(error) => {
                self.malformed(peer.connection, &error);
                return false;
            }
        };
        let (opaque, encoding, one_way) = (command.opaque, command.encoding, command.is_one_way());
        let asked = Asked {
            code: command.code,
            since_us,
        };
        let outcome = handler::handle(
            &mut self.broker,
            &command,
            peer,
            context!(self, fetched, steps == 0),
        );
        self.scratch = scratch;
        let cold = |fetched: &Frame<'_>| Cold::Frame {
            peer,
            frame: whole_frame(fetched),
            since_us,
        };
        match outcome {
            Outcome::Nothing | Outcome::Held => {}
            Outcome::Reply(_) if one_way => {}
            Outcome::Reply(response) => {
                self.count_answer(asked, response.code);
                self.reply(peer.connection, opaque, encoding, response);
            }
            Outcome::Append(_) if one_way => {}
            Outcome::Append(ack) => self.acks.push(PendingAck {
                connection: peer.connection,
                opaque,
                encoding,
                ack,
                asked,
            }),
            Outcome::Read(missing) => self.read(
                peer.connection,
                opaque,
                encoding,
                cold(frame),
                steps,
                missing,
            ),
            Outcome::AwaitRegistration(_) if one_way => {}
            Outcome::AwaitRegistration(response) => {
                let sequence = self.registration_sequence + 1;
                let connection = peer.connection;
                self.registrations.push_back((
                    sequence,
                    Addressed {
                        connection,
                        opaque,
                        encoding,
                        response,
                    },
                    asked,
                ));
            }
        }
        true
    }

    /// A request that was not held is answered. One with a code that isn't known has no series of its own: clients
    /// choose it.
    fn count_answer(&mut self, asked: Asked, code: ResponseCode) {
        let is_known = code != ResponseCode::REQUEST_CODE_NOT_SUPPORTED;
        let request_code = if is_known { asked.code } else { OTHER_CODE };
        let asked = Asked {
            code: request_code,
            ..asked
        };
        self.counters.count_answer(asked, code.0, false);
    }

    /// Parks a request until its bytes are there.
    fn read(
        &mut self,
        id: ConnectionId,
        opaque: i32,
        encoding: Encoding,
        cold: Cold,
        steps: u32,
        missing: SmallVec<[Missing; 4]>,
    ) {
        match self.cold.insert(cold, steps) {
            Ok(key) => self.fetches_wanted.push((key, missing, Fetched::default())),
            Err(error) => {
                let code = match error {
                    ColdError::TooMany(_) => ResponseCode::SYSTEM_BUSY,
                    ColdError::TooManySteps => ResponseCode::SYSTEM_ERROR,
                };
                self.reply(
                    id,
                    opaque,
                    encoding,
                    Response::error(code, error.to_string()),
                );
            }
        }
    }

    /// Bytes are there: their request runs again.
    pub(super) fn on_fetched(&mut self, done: FetchDone) {
        let Some((cold, steps)) = self.cold.take(done.key) else {
            return;
        };
        match done.result {
            Ok(fetched) => self.run_again(cold, fetched, steps),
            Err(reason) => self.read_failed(cold, &reason),
        }
    }

    fn run_again(&mut self, cold: Cold, fetched: Fetched, steps: u32) {
        match cold {
            Cold::Frame {
                peer,
                frame,
                since_us,
            } => {
                if self.connections.open_mut(peer.connection).is_none() {
                    return;
                }
                if let Ok(Split::Frame(whole)) = frame::split(&frame) {
                    self.with_fetched(fetched, |core, fetched| {
                        core.run_frame(peer, &whole, fetched, steps, since_us);
                    });
                }
            }
            Cold::Pull(request) => {
                if self.connections.open_mut(request.connection).is_some() {
                    self.with_fetched(fetched, |core, fetched| {
                        core.resume_pull(*request, fetched, steps)
                    });
                }
            }
        }
    }

    /// Runs with what was read; a further read of the same request goes on with it.
    fn with_fetched(&mut self, fetched: Fetched, run: impl FnOnce(&mut Self, &Fetched)) {
        let wanted_before = self.fetches_wanted.len();
        run(self, &fetched);
        if self.fetches_wanted.len() > wanted_before
            && let Some(last) = self.fetches_wanted.last_mut()
        {
            last.2 = fetched;
        }
    }

    fn resume_pull(&mut self, request: broker::pull::PullRequest, fetched: &Fetched, steps: u32) {
        let (id, opaque, encoding) = (request.connection, request.opaque, request.encoding);
        let asked = request.asked;
        let cold = Cold::Pull(Box::new(request.clone()));
        match broker::pull::resume(&mut self.broker, request, context!(self, fetched, false)) {
            Outcome::Reply(response) => {
                let code = response.code.0;
                self.counters.count_answer(asked, code, true);
                self.reply(id, opaque, encoding, response);
            }
            Outcome::Read(missing) => self.read(id, opaque, encoding, cold, steps, missing),
            Outcome::Held | Outcome::Nothing => {}
            other @ (Outcome::Append(_) | Outcome::AwaitRegistration(_)) => {
                panic!("a pull ended in {other:?}")
            }
        }
    }

    fn read_failed(&mut self, cold: Cold, reason: &str) {
        tracing::error!(shard = %self.id, reason, "a read for a request failed");
        let (id, opaque, encoding) = match &cold {
            Cold::Pull(request) => (request.connection, request.opaque, request.encoding),
            Cold::Frame { peer, frame, .. } => {
                let Ok(Split::Frame(whole)) = frame::split(frame) else {
                    return;
                };
                let mut scratch = std::mem::take(&mut self.scratch);
                let head = Command::decode(&whole, &mut scratch).map(|c| (c.opaque, c.encoding));
                self.scratch = scratch;
                let Ok((opaque, encoding)) = head else { return };
                (peer.connection, opaque, encoding)
            }
        };
        self.reply(
            id,
            opaque,
            encoding,
            Response::error(ResponseCode::SYSTEM_ERROR, reason.to_owned()),
        );
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
        let silent: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, c)| c.active_us + IDLE_US <= now_us)
            .map(|(id, _)| id)
            .collect();
        for id in silent {
            self.close(id, CloseReason::Silent);
        }
        let oldest = self
            .connections
            .iter()
            .map(|(_, c)| c.active_us)
            .filter(|us| us + IDLE_US > now_us)
            .min();
        self.idle_scan_us = oldest.map(|us| us + IDLE_US);
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
            self.connections.out_bytes -= bytes;
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
        for notification in std::mem::take(&mut self.effects.notifications) {
            self.notify(notification);
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
        self.flush_mail();
        self.close_slow_readers();
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

    /// A client that does not read its replies pays with its connection, not with the shard's memory.
    fn close_slow_readers(&mut self) {
        self.outgoing.split(&mut self.connections);
        let total = self.connections.out_bytes;
        for index in 0..self.outgoing.dirty.len() {
            let id = self.outgoing.dirty[index];
            let Some(connection) = self.connections.open_mut(id) else {
                continue;
            };
            let over = connection.out_bytes > CONNECTION_OUT_BYTES_MAX
                || total > OUT_BYTES_MAX && connection.out_bytes > OUT_BYTES_MAX / 64;
            if over {
                tracing::warn!(shard = %self.id, peer = %connection.peer, bytes = connection.out_bytes,
                    "the client does not read its replies, connection closed");
                self.counters.slow_readers_closed += 1;
                self.close(id, CloseReason::DoesNotRead);
            }
        }
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

/// The frame's bytes, copied, for a request that runs again later.
fn whole_frame(frame: &Frame<'_>) -> Bytes {
    let mut whole = BytesMut::with_capacity(frame.bytes);
    let length = 4 + frame.header.len() + frame.body.len();
    whole.extend_from_slice(&(length as u32).to_be_bytes());
    whole.extend_from_slice(
        &(((frame.encoding as u32) << 24) | frame.header.len() as u32).to_be_bytes(),
    );
    whole.extend_from_slice(frame.header);
    whole.extend_from_slice(frame.body);
    whole.freeze()
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

    #[test]
    fn a_kept_frame_is_the_same_frame() {
        let frame = Frame {
            encoding: Encoding::Json,
            header: b"{\"code\":1}",
            body: b"xyz",
            bytes: 21,
        };
        assert_eq!(frame::split(&whole_frame(&frame)), Ok(Split::Frame(frame)));
    }
}
