//! A request from its frame to its outcome; one whose bytes are not in memory waits for them and runs again.

use super::Core;
use super::acks::PendingAck;
use super::cold::{Cold, ColdError};
use crate::broker::{self, Addressed, Context, Outcome, Peer, handler, internal};
use crate::ids::ConnectionId;
use crate::limits::REGISTRATIONS_WAITING_MAX;
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::{Command, Encoding};
use crate::protocol::frame::{self, Frame, Split};
use crate::protocol::response::Response;
use crate::stats::Asked;
use crate::stats::rpc::OTHER_CODE;
use crate::storage::{FetchDone, Fetched, Missing};
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

impl Core {
    /// Handles one frame. False: the connection is done for.
    pub(super) fn on_frame(&mut self, id: ConnectionId, frame: &Frame<'_>) -> bool {
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
            asked,
            one_way,
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
                let addressed = Addressed {
                    connection: peer.connection,
                    opaque,
                    encoding,
                    response,
                };
                self.await_registration(addressed, asked);
            }
        }
        true
    }

    /// Answers once the name servers know of what changed in this turn; at once, if too many wait for that.
    fn await_registration(&mut self, addressed: Addressed, asked: Asked) {
        if self.registrations.len() >= REGISTRATIONS_WAITING_MAX {
            self.count_answer(asked, addressed.response.code);
            self.reply(
                addressed.connection,
                addressed.opaque,
                addressed.encoding,
                addressed.response,
            );
            return;
        }
        let sequence = self.registration_sequence + 1;
        self.registrations.push_back((sequence, addressed, asked));
    }

    /// A request that was not held is answered. One with a code that isn't known has no series of its own: clients
    /// choose it.
    pub(super) fn count_answer(&mut self, asked: Asked, code: ResponseCode) {
        let is_known = code != ResponseCode::REQUEST_CODE_NOT_SUPPORTED;
        let request_code = if is_known { asked.code } else { OTHER_CODE };
        let asked = Asked {
            code: request_code,
            ..asked
        };
        self.counters.count_answer(asked, code.0, false);
    }

    /// Parks a request until its bytes are there.
    pub(super) fn read(
        &mut self,
        id: ConnectionId,
        opaque: i32,
        encoding: Encoding,
        cold: Cold,
        steps: u32,
        missing: SmallVec<[Missing; 4]>,
    ) {
        let asked = cold.asked();
        match self.cold.insert(cold, steps) {
            Ok(key) => self.fetches_wanted.push((key, missing, Fetched::default())),
            Err(error) => {
                let code = match error {
                    ColdError::TooMany(_) => ResponseCode::SYSTEM_BUSY,
                    ColdError::TooManySteps => ResponseCode::SYSTEM_ERROR,
                };
                let Some(asked) = asked else {
                    tracing::warn!(shard = %self.id, %error, "a one-way request is dropped");
                    return;
                };
                self.count_answer(asked, code);
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
                peer, frame, asked, ..
            } => {
                if self.connections.open_mut(peer.connection).is_none() {
                    return;
                }
                if let Ok(Split::Frame(whole)) = frame::split(&frame) {
                    self.with_fetched(fetched, |core, fetched| {
                        core.run_frame(peer, &whole, fetched, steps, asked.since_us);
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
            Cold::Task(task) => self.run_task(task, fetched, steps),
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

    /// Parks a task of the broker until its bytes are there.
    pub(super) fn read_for_task(
        &mut self,
        task: internal::Task,
        steps: u32,
        missing: SmallVec<[Missing; 4]>,
    ) {
        match self.cold.insert(Cold::Task(task), steps) {
            Ok(key) => self.fetches_wanted.push((key, missing, Fetched::default())),
            Err(error) => {
                tracing::warn!(shard = %self.id, ?task, %error, "a task of the broker waits");
                self.task_failed(task);
            }
        }
    }

    fn task_failed(&mut self, task: internal::Task) {
        let nothing = Fetched::default();
        internal::failed(&mut self.broker, task, context!(self, &nothing, true));
    }

    /// Runs a task again; what it still misses is read in addition to what it has.
    fn run_task(&mut self, task: internal::Task, fetched: Fetched, steps: u32) {
        let before = std::mem::take(&mut self.effects.task_reads);
        self.with_fetched(fetched, |core, fetched| {
            internal::run(&mut core.broker, task, context!(core, fetched, false));
            for (task, missing) in std::mem::replace(&mut core.effects.task_reads, before) {
                core.read_for_task(task, steps, missing);
            }
        });
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
        let (id, opaque, encoding, is_clients_place) = match &cold {
            Cold::Task(task) => {
                tracing::error!(shard = %self.id, reason, ?task, "a read for a task of the broker failed");
                return self.task_failed(*task);
            }
            Cold::Pull(request) => (request.connection, request.opaque, request.encoding, false),
            Cold::Frame { peer, frame, .. } => {
                let Ok(Split::Frame(whole)) = frame::split(frame) else {
                    return;
                };
                let mut scratch = std::mem::take(&mut self.scratch);
                let head = Command::decode(&whole, &mut scratch);
                let head = head.map(|c| (c.opaque, c.encoding, c.code));
                self.scratch = scratch;
                let Ok((opaque, encoding, code)) = head else {
                    return;
                };
                let is_view = [
                    RequestCode::VIEW_MESSAGE_BY_ID.0,
                    RequestCode::CONSUMER_SEND_MSG_BACK.0,
                    RequestCode::END_TRANSACTION.0,
                ]
                .contains(&code);
                (peer.connection, opaque, encoding, is_view)
            }
        };
        if is_clients_place {
            // Tools take any 32 digits for a message id.
            tracing::debug!(shard = %self.id, reason, "there is no message where a client looked for one");
        } else {
            tracing::error!(shard = %self.id, reason, "a read for a request failed");
        }
        let Some(asked) = cold.asked() else {
            return;
        };
        self.count_answer(asked, ResponseCode::SYSTEM_ERROR);
        self.reply(
            id,
            opaque,
            encoding,
            Response::error(ResponseCode::SYSTEM_ERROR, reason.to_owned()),
        );
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
