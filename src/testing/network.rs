//! Sockets in memory: bytes arrive late, in pieces of any size, or not at all.
//!
//! **Fault model**: a client may stall (takes nothing), end its side in order, or reset the connection, which loses
//! what is under way in both directions. A lent buffer is overwritten as soon as it is given back.

use super::random::Random;
use crate::io::{BufferId, Completion, Done, Failed, Socket, Token};
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

const ENOBUFS: i32 = 105;
const ECONNRESET: i32 = 104;
const ECANCELED: i32 = 125;
const EPIPE: i32 = 32;

const BUFFERS: u16 = 6;
const BUFFER_BYTES: usize = 4096;
const POISON: u8 = 0xdd;

/// How a network misbehaves, for a whole run.
#[derive(Clone, Copy, Debug)]
pub struct NetworkFaults {
    /// Bytes of a piece, at most.
    pub piece_bytes: u64,
    pub latency_us: u64,
    /// Chance of a send that takes only a part, in ten thousand.
    pub short_sends: u32,
}

#[derive(Debug, Default)]
struct Line {
    receive: Option<Token>,
    send: Option<(Token, Vec<Bytes>, u64)>,
    close: Option<Token>,
    to_broker: VecDeque<u8>,
    arrives_us: u64,
    to_client: Vec<u8>,
    stalled_until_us: u64,
    is_ended: bool,
    is_reset: bool,
    is_gone: bool,
}

impl Line {
    fn due_us(&self) -> Option<u64> {
        if self.is_gone {
            return None;
        }
        let is_over = self.close.is_some() || self.is_reset;
        if is_over && (self.close.is_some() || self.receive.is_some() || self.send.is_some()) {
            return Some(0);
        }
        let has_input = !self.to_broker.is_empty() || self.is_ended;
        let input = (self.receive.is_some() && has_input).then_some(self.arrives_us);
        let output = self.send.as_ref();
        let output = output.map(|(_, _, due_us)| (*due_us).max(self.stalled_until_us));
        input.into_iter().chain(output).min()
    }
}

#[derive(Debug)]
pub struct Network {
    faults: NetworkFaults,
    lines: Vec<Line>,
    waiting: VecDeque<Socket>,
    accept: Option<Token>,
    buffers: Vec<Vec<u8>>,
    free: VecDeque<u16>,
    lent: BTreeSet<u16>,
}

fn ended(token: Token, errno: i32) -> Completion {
    Completion {
        token,
        result: Err(Failed { errno }),
        more: false,
    }
}

fn done(token: Token, done: Done, more: bool) -> Completion {
    Completion {
        token,
        result: Ok(done),
        more,
    }
}

impl Network {
    pub fn new(faults: NetworkFaults) -> Self {
        Self {
            faults,
            lines: Vec::new(),
            waiting: VecDeque::new(),
            accept: None,
            buffers: vec![vec![POISON; BUFFER_BYTES]; BUFFERS as usize],
            free: (0..BUFFERS).collect(),
            lent: BTreeSet::new(),
        }
    }

    // The clients' side.

    pub fn connect(&mut self) -> Socket {
        let socket = Socket(self.lines.len() as u32);
        self.lines.push(Line::default());
        self.waiting.push_back(socket);
        socket
    }

    pub fn write(&mut self, socket: Socket, bytes: &[u8], now_us: u64, random: &mut Random) {
        let line = &mut self.lines[socket.0 as usize];
        if line.to_broker.is_empty() {
            line.arrives_us = now_us + random.below(self.faults.latency_us + 1);
        }
        line.to_broker.extend(bytes);
    }

    /// What has arrived at the client.
    pub fn read(&mut self, socket: Socket) -> Vec<u8> {
        std::mem::take(&mut self.lines[socket.0 as usize].to_client)
    }

    pub fn stall(&mut self, socket: Socket, until_us: u64) {
        self.lines[socket.0 as usize].stalled_until_us = until_us;
    }

    /// The client ends its side; what it has written still arrives.
    pub fn end(&mut self, socket: Socket) {
        self.lines[socket.0 as usize].is_ended = true;
    }

    pub fn reset(&mut self, socket: Socket) {
        let line = &mut self.lines[socket.0 as usize];
        line.is_reset = true;
        line.to_broker.clear();
        line.to_client.clear();
    }

    /// The broker has closed it, or is about to.
    pub fn is_over(&self, socket: Socket) -> bool {
        let line = &self.lines[socket.0 as usize];
        line.is_gone || line.close.is_some() || line.is_reset
    }

    pub fn heal(&mut self) {
        for line in &mut self.lines {
            line.stalled_until_us = 0;
        }
    }

    // The broker's side.

    pub fn accept(&mut self, token: Token) {
        self.accept = Some(token);
    }

    pub fn receive(&mut self, token: Token, socket: Socket) {
        let line = &mut self.lines[socket.0 as usize];
        assert!(line.receive.is_none(), "two receives on {socket:?}");
        assert!(
            !line.is_gone && line.close.is_none(),
            "{socket:?} is closed"
        );
        line.receive = Some(token);
    }

    pub fn stop_receive(&mut self, socket: Socket, completions: &mut Vec<Completion>) {
        if let Some(token) = self.lines[socket.0 as usize].receive.take() {
            completions.push(ended(token, ECANCELED));
        }
    }

    pub fn send(&mut self, token: Token, socket: Socket, segments: Vec<Bytes>, due_us: u64) {
        let line = &mut self.lines[socket.0 as usize];
        assert!(line.send.is_none(), "two sends on {socket:?}");
        line.send = Some((token, segments, due_us));
    }

    pub fn close(&mut self, token: Token, socket: Socket) {
        let line = &mut self.lines[socket.0 as usize];
        assert!(
            line.close.is_none() && !line.is_gone,
            "{socket:?} is closed twice"
        );
        line.close = Some(token);
    }

    pub fn close_listener(&mut self, completions: &mut Vec<Completion>) {
        if let Some(token) = self.accept.take() {
            completions.push(ended(token, ECANCELED));
        }
    }

    pub fn received(&self, buffer: BufferId, bytes: u32) -> &[u8] {
        &self.buffers[buffer.0 as usize][..bytes as usize]
    }

    pub fn release(&mut self, buffer: BufferId) {
        assert!(self.lent.remove(&buffer.0), "{buffer:?} was not lent");
        self.buffers[buffer.0 as usize].fill(POISON);
        self.free.push_back(buffer.0);
    }

    pub fn lent(&self) -> usize {
        self.lent.len()
    }

    pub fn in_flight(&self) -> usize {
        let of = |line: &Line| {
            usize::from(line.receive.is_some())
                + usize::from(line.send.is_some())
                + usize::from(line.close.is_some())
        };
        self.lines.iter().map(of).sum()
    }

    /// When something happens next, in monotonic microseconds.
    pub fn due_us(&self) -> Option<u64> {
        let accept = (self.accept.is_some() && !self.waiting.is_empty()).then_some(0);
        let lines = self.lines.iter().filter_map(Line::due_us);
        lines.chain(accept).min()
    }

    /// All that happens until now.
    pub fn advance(&mut self, now_us: u64, random: &mut Random, out: &mut Vec<Completion>) {
        while let Some(token) = self.accept
            && let Some(socket) = self.waiting.pop_front()
        {
            let peer = SocketAddr::from(([127, 0, 0, 1], 40_000 + (socket.0 % 20_000) as u16));
            out.push(done(token, Done::Accepted { socket, peer }, true));
        }
        let count = self.lines.len();
        let first = random.below(count.max(1) as u64) as usize;
        for step in 0..count {
            let index = (first + step) % count;
            if self.lines[index].due_us().is_some_and(|due| due <= now_us) {
                self.advance_line(index, now_us, random, out);
            }
        }
    }

    fn advance_line(
        &mut self,
        index: usize,
        now_us: u64,
        random: &mut Random,
        out: &mut Vec<Completion>,
    ) {
        let line = &mut self.lines[index];
        if line.close.is_some() || line.is_reset {
            let receive = line.receive.take();
            out.extend(receive.map(|token| match line.is_reset {
                true => ended(token, ECONNRESET),
                false => done(token, Done::ReceiveEnded, false),
            }));
            let send = line.send.take();
            out.extend(send.map(|(token, ..)| ended(token, EPIPE)));
            if let Some(token) = line.close.take() {
                line.is_gone = true;
                out.push(done(token, Done::Closed, false));
            }
            return;
        }
        if let Some((token, segments, due_us)) = line.send.take() {
            if due_us.max(line.stalled_until_us) > now_us {
                line.send = Some((token, segments, due_us));
            } else {
                let sum: usize = segments.iter().map(Bytes::len).sum();
                let short = sum > 1 && random.chance(self.faults.short_sends);
                let bytes = match short {
                    true => 1 + random.below(sum as u64 - 1) as usize,
                    false => sum,
                };
                let all = segments.iter().flatten().copied();
                line.to_client.extend(all.take(bytes));
                out.push(done(token, Done::Sent { bytes, segments }, false));
            }
        }
        self.advance_receive(index, now_us, random, out);
    }

    fn advance_receive(
        &mut self,
        index: usize,
        now_us: u64,
        random: &mut Random,
        out: &mut Vec<Completion>,
    ) {
        let line = &mut self.lines[index];
        let Some(token) = line.receive.filter(|_| line.arrives_us <= now_us) else {
            return;
        };
        if line.to_broker.is_empty() {
            if line.is_ended {
                line.receive = None;
                out.push(done(token, Done::ReceiveEnded, false));
            }
            return;
        }
        let Some(buffer) = self.free.pop_front() else {
            line.receive = None;
            out.push(ended(token, ENOBUFS));
            return;
        };
        self.lent.insert(buffer);
        let most = line.to_broker.len().min(BUFFER_BYTES) as u64;
        let count = 1 + random.below(most.min(self.faults.piece_bytes));
        let piece: Vec<u8> = line.to_broker.drain(..count as usize).collect();
        self.buffers[buffer as usize][..piece.len()].copy_from_slice(&piece);
        line.arrives_us = now_us + random.below(self.faults.latency_us + 1);
        let received = Done::Received {
            buffer: BufferId(buffer),
            bytes: piece.len() as u32,
        };
        out.push(done(token, received, true));
    }
}
