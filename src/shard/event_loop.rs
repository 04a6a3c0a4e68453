//! The turn: completions in, one write, wakes, one send per connection, one kernel entry.

use super::{Phase, Shard, token_kind};
use crate::control::mail::{FromShard, ToShard};
use crate::ids::ConnectionId;
use crate::io::{Completion, DOORBELL, Done, Failed, Io, Op, Socket, Token};
use crate::limits::{SEND_BYTES_MAX, SEND_SEGMENTS_MAX};
use crate::stats::CloseReason;
use crate::storage;
use bytes::Bytes;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Most of what a stop may take before what is left is given up.
const STOP_US: u64 = 4_500_000;

/// After an accept that failed.
const ACCEPT_PAUSE_US: u64 = 500_000;

impl<I: Io> Shard<I> {
    /// Turns until the shard has stopped. **Errors**: the ring is broken; nothing can go on.
    pub fn run(&mut self) -> std::io::Result<()> {
        while self.core.phase != Phase::Stopped {
            self.turn()?;
        }
        Ok(())
    }

    /// What comes before the first turn: accept, the first registration.
    pub(super) fn begin(&mut self) {
        self.arm_accept();
        let shard = self.core.id;
        self.core.report(FromShard::Ready { shard });
        self.core.perform_effects();
    }

    /// One turn. Everything in it sees the same instant.
    pub fn turn(&mut self) -> std::io::Result<()> {
        let deadlines = [self.core.next_deadline(), self.accept_again_us];
        let deadline = deadlines.into_iter().flatten().min();
        self.io.wait(deadline, &mut self.completions)?;
        self.core.now = self.io.now();
        self.core.store.observe(self.core.now.monotonic_us);
        self.core.counters.turns += 1;
        let is_due = deadline.is_some_and(|at| at <= self.core.now.monotonic_us);
        self.core.counters.turns_spurious += u64::from(!is_due && self.completions.is_empty());
        let (now, counters) = (self.core.now, &self.core.counters);
        self.core.broker.rates.sample(now, counters);
        self.run_completions();
        self.core.resume_paused();
        self.take_mail();
        self.core.expire();
        self.core
            .files
            .retry(self.core.now.monotonic_us, &mut self.io);
        self.store_turn();
        self.perform();
        self.send_dirty();
        self.return_buffers();
        self.advance_stop();
        self.core.end_turn(self.io.measured_us());
        Ok(())
    }

    /// Writes what was appended; writes that complete at once make their messages visible in this very turn.
    fn store_turn(&mut self) {
        self.core.store.seal(self.core.now, &mut self.io);
        self.io.ready(&mut self.completions);
        if !self.completions.is_empty() {
            self.core.store.observe(self.io.measured_us());
        }
        self.run_completions();
        self.core.deliver(&mut self.arrivals);
        self.core.count_deleted();
    }

    fn run_completions(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            self.on_completion(completion);
        }
        self.completions = completions;
        let mut fetches = std::mem::take(&mut self.fetches);
        for done in fetches.drain(..) {
            self.core.on_fetched(done);
        }
        self.fetches = fetches;
    }

    fn on_completion(&mut self, completion: Completion) {
        let token = completion.token;
        if token == DOORBELL {
            return;
        }
        if storage::TOKEN_KINDS.contains(&token.kind) {
            let now = self.core.now;
            self.core
                .store
                .on_completion(completion, now, &mut self.io, &mut self.fetches);
            return;
        }
        let id = ConnectionId {
            index: token.index,
            generation: token.generation,
        };
        match token.kind {
            token_kind::ACCEPT => self.on_accepted(completion),
            token_kind::RECEIVE => self.on_received(id, completion.result, completion.more),
            token_kind::SEND => self.on_sent(id, completion.result),
            token_kind::CLOSE => self.on_closed(id),
            token_kind::CONFIG_FILE => {
                let failed = completion.result.err().map(|f| f.error());
                self.core.files.on_replaced(
                    token.index,
                    failed,
                    self.core.now.monotonic_us,
                    &mut self.io,
                );
            }
            kind => panic!("completion of an unknown kind {kind:#x}"),
        }
    }

    fn on_accepted(&mut self, completion: Completion) {
        if !completion.more {
            self.accept_armed = false;
        }
        match completion.result {
            Ok(Done::Accepted { socket, peer }) => self.admit(socket, peer),
            Ok(other) => panic!("accept completed with {other:?}"),
            Err(failed) => {
                if self.listening {
                    self.core.counters.connections_refused += 1;
                    // Out of files or memory, most likely. The client waits, and trying at once would fail at once.
                    tracing::warn!(shard = %self.core.id, error = %failed.error(), "no connection can be accepted");
                    self.accept_again_us = Some(self.core.now.monotonic_us + ACCEPT_PAUSE_US);
                }
            }
        }
    }

    fn admit(&mut self, socket: Socket, peer: SocketAddr) {
        match self.core.admit(socket, peer) {
            Some(id) => self.arm_receive(id),
            None => self.io.submit(
                Token::new(token_kind::CLOSE, u32::MAX, 0),
                Op::Close { socket },
            ),
        }
    }

    fn arm_accept(&mut self) {
        let now_us = self.core.now.monotonic_us;
        if self.accept_again_us.is_some_and(|at| at > now_us) {
            return;
        }
        if self.listening && !self.accept_armed {
            self.accept_armed = true;
            self.accept_again_us = None;
            self.io.submit(
                Token::new(token_kind::ACCEPT, 0, 0),
                Op::Accept {
                    listener: self.listener,
                },
            );
        }
    }

    fn arm_receive(&mut self, id: ConnectionId) {
        let connection = self.core.connections.open_mut(id);
        if let Some(connection) = connection.filter(|c| !c.paused && !c.receiving) {
            connection.receiving = true;
            let token = Token::new(token_kind::RECEIVE, id.index, id.generation);
            self.io.submit(
                token,
                Op::Receive {
                    socket: connection.socket,
                },
            );
        }
    }

    fn on_received(&mut self, id: ConnectionId, result: Result<Done, Failed>, more: bool) {
        if !more && let Some(connection) = self.core.connections.get_mut(id) {
            connection.receiving = false;
        }
        match result {
            Ok(Done::Received { buffer, bytes }) => {
                self.lent.push(buffer);
                self.core.on_bytes(id, self.io.received(buffer, bytes));
                if !more {
                    self.arm_receive(id);
                }
            }
            Ok(Done::ReceiveEnded) => self.core.close(id, CloseReason::Client),
            Ok(other) => panic!("receive completed with {other:?}"),
            Err(failed) if failed.errno == libc::ENOBUFS => {
                self.core.counters.receives_starved += 1;
                self.starved.push(id);
            }
            // Stopped, for as long as the connection is paused; a closed one is not armed again.
            Err(failed) if failed.errno == libc::ECANCELED => self.arm_receive(id),
            Err(_) => self.core.close(id, CloseReason::ReceiveFailed),
        }
    }

    fn on_sent(&mut self, id: ConnectionId, result: Result<Done, Failed>) {
        match result {
            Ok(Done::Sent { bytes, segments }) => self.core.on_sent(id, bytes, segments),
            Ok(other) => panic!("send completed with {other:?}"),
            Err(_) => {
                if let Some(connection) = self.core.connections.get_mut(id) {
                    connection.sending = false;
                }
                self.core.close(id, CloseReason::SendFailed);
            }
        }
    }

    fn on_closed(&mut self, id: ConnectionId) {
        if self.core.connections.remove(id).is_some() {
            self.core.counters.connections_closed += 1;
            self.core.counters.connections_now -= 1;
        }
    }

    fn take_mail(&mut self) {
        while let Some(mail) = self.mailbox.take() {
            match mail {
                ToShard::CreateTopic(topic) => self.core.adopt_topic(topic),
                ToShard::Registered { sequence } => self.core.on_registered(sequence),
                ToShard::Call(call) => self.core.on_forwarded(*call),
                ToShard::CallAnswered { id, result } => self.core.on_call_answered(id, result),
                ToShard::Stop => self.begin_stop(),
                ToShard::Ask(ask) => self.core.answer(ask),
            }
        }
    }

    /// Carries out what the handlers asked for: files, reads, closes, mail.
    fn perform(&mut self) {
        self.core.perform_effects();
        for (name, contents) in std::mem::take(&mut self.core.effects.files) {
            self.core.files.replace(name, contents, &mut self.io);
        }
        // A read that needs no disk is answered at once, which may ask for the next one.
        while !self.core.fetches_wanted.is_empty() {
            for (key, missing, have) in std::mem::take(&mut self.core.fetches_wanted) {
                self.core.counters.cold_reads += 1;
                let done = self.core.store.fetch(key, &missing, have, &mut self.io);
                if let Some(done) = done {
                    self.core.on_fetched(done);
                }
            }
        }
        while let Some((id, reason)) = self.core.closing.pop() {
            if let Some(socket) = self.core.begin_close(id, reason) {
                self.io.submit(
                    Token::new(token_kind::CLOSE, id.index, id.generation),
                    Op::Close { socket },
                );
            }
        }
        while let Some(id) = self.core.pausing.pop() {
            let connection = self.core.connections.open_mut(id);
            if let Some(connection) = connection.filter(|c| c.paused && c.receiving) {
                let socket = connection.socket;
                let token = Token::new(token_kind::RECEIVE, id.index, id.generation);
                self.io.submit(token, Op::StopReceive { socket });
            }
        }
        // Closing a connection notifies the rest of its groups.
        self.core.perform_effects();
    }

    /// One send per connection that has something and none in flight.
    fn send_dirty(&mut self) {
        self.core.outgoing.split(&mut self.core.connections);
        let mut dirty = std::mem::take(&mut self.core.outgoing.dirty);
        for id in dirty.drain(..) {
            let Some(connection) = self.core.connections.open_mut(id) else {
                continue;
            };
            connection.dirty = false;
            if connection.sending || connection.queue.is_empty() {
                continue;
            }
            connection.sending = true;
            connection.sending_since_us = self.core.now.monotonic_us;
            let socket = connection.socket;
            let mut segments = self.core.outgoing.segments();
            let count = segments_of_a_send(&connection.queue);
            segments.extend(connection.queue.drain(..count));
            self.io.submit(
                Token::new(token_kind::SEND, id.index, id.generation),
                Op::Send { socket, segments },
            );
        }
        self.core.outgoing.dirty = dirty;
    }

    fn return_buffers(&mut self) {
        for buffer in self.lent.drain(..) {
            self.io.release(buffer);
        }
        while let Some(id) = self.starved.pop() {
            self.arm_receive(id);
        }
        let mut resumed = std::mem::take(&mut self.core.resumed);
        resumed.retain(|id| {
            let is_paused = self
                .core
                .connections
                .open_mut(*id)
                .is_some_and(|c| c.paused);
            if !is_paused {
                self.arm_receive(*id);
            }
            is_paused
        });
        self.core.resumed = resumed;
        self.arm_accept();
    }

    fn begin_stop(&mut self) {
        if self.core.phase != Phase::Serving {
            return;
        }
        tracing::info!(shard = %self.core.id, "stopping");
        self.core.phase = Phase::Stopping {
            deadline_us: self.core.now.monotonic_us + STOP_US,
        };
        self.listening = false;
        self.accept_again_us = None;
        self.io.close_listener(self.listener);
        self.core.answer_holds();
        self.core.files.begin_stop(self.core.now.monotonic_us);
        self.core.store.begin_stop(self.core.now, &mut self.io);
    }

    fn advance_stop(&mut self) {
        let Phase::Stopping { deadline_us } = self.core.phase else {
            return;
        };
        // Offsets of what the broker delivered by itself count when the stop has flushed it.
        self.core.answer_holds();
        self.perform();
        let late = self.core.now.monotonic_us >= deadline_us;
        let quiet =
            self.core.acks.is_empty() && self.core.outgoing_is_empty() && self.core.cold.is_empty();
        let stored = self.core.store.is_stopped() && self.core.files.is_idle();
        if !(late || quiet && stored) {
            self.send_dirty();
            return;
        }
        if late && !stored {
            tracing::error!(shard = %self.core.id, "the store was not closed in time; the next start recovers it");
        }
        self.core.close_all();
        self.perform();
        if self.core.connections.is_empty() || late {
            self.core.phase = Phase::Stopped;
            let shard = self.core.id;
            self.core.report(FromShard::Stopped { shard });
        }
    }
}

/// How many segments go into the next send: one at least.
fn segments_of_a_send(queue: &VecDeque<Bytes>) -> usize {
    let (mut count, mut bytes) = (0, 0);
    for segment in queue.iter().take(SEND_SEGMENTS_MAX) {
        bytes += segment.len();
        if count > 0 && bytes > SEND_BYTES_MAX {
            break;
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_is_bounded_but_goes_on() {
        let of = |sizes: &[usize]| {
            let queue = sizes.iter().map(|size| Bytes::from(vec![0; *size]));
            segments_of_a_send(&queue.collect())
        };
        assert_eq!(of(&[3 * SEND_BYTES_MAX, 1]), 1, "one segment is sent whole");
        assert_eq!(of(&[SEND_BYTES_MAX - 1, 1, 1]), 2);
        assert_eq!(of(&[1; SEND_SEGMENTS_MAX + 5]), SEND_SEGMENTS_MAX);
    }
}
