//! `ringmq bench floor`: what this machine takes for the least that a broker has to do.
//!
//! The relay forwards each message to another connection and acknowledges it; blocking, both sides sleep until bytes
//! come; spinning, both poll, which needs a processor for each.

use super::arguments::value;
use super::report::{Latencies, Report};
use super::{Interrupt, pin};
use clap::ArgMatches;
use serde_json::{Map, json};
use std::io::{ErrorKind, Read, Seek, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Of a frame around a body, about.
const FRAME_BYTES: usize = 250;
const ACKNOWLEDGEMENT_BYTES: usize = 200;
/// Rounds before the first that counts.
const WARM_UP: usize = 200;
/// The file is written from its start again then.
const FILE_BYTES: u64 = 64 << 20;

pub fn run(matches: &ArgMatches, interrupt: &Interrupt) -> Result<(), String> {
    let began = SystemTime::now();
    let floor = Floor {
        duration: value(matches, "duration"),
        body: value::<u32>(matches, "body") as usize,
        peer_cpu: matches.get_one::<usize>("peer-cpu").copied(),
        dir: value(matches, "dir"),
        interrupt: interrupt.clone(),
    };
    let start = Instant::now();
    let latencies = vec![
        ("relay blocking", floor.relay(false)?),
        ("relay spinning", floor.relay(true)?),
        ("ping-pong blocking", floor.ping_pong(false)?),
        ("ping-pong spinning", floor.ping_pong(true)?),
        ("write", floor.write(false)?),
        ("write and fdatasync", floor.write(true)?),
    ];
    let mut values = Map::new();
    values.insert("body bytes".to_owned(), json!(floor.body));
    values.insert("ended early".to_owned(), json!(interrupt.is_set()));
    let report = Report {
        name: "floor",
        values,
        latencies,
        findings: Vec::new(),
        began,
        seconds: start.elapsed().as_secs_f64(),
    };
    report.publish(matches)
}

/// A thread, and why it did not serve if so.
type Peer = JoinHandle<Result<(), String>>;

struct Floor {
    /// Of each of them.
    duration: Duration,
    body: usize,
    peer_cpu: Option<usize>,
    dir: PathBuf,
    interrupt: Interrupt,
}

impl Floor {
    fn repeat(
        &self,
        mut round: impl FnMut() -> std::io::Result<Duration>,
    ) -> Result<Latencies, String> {
        let mut latencies = Latencies::new();
        let mut start = Instant::now();
        for count in 0_usize.. {
            if count == WARM_UP {
                start = Instant::now();
            }
            let is_over = count > WARM_UP && start.elapsed() > self.duration;
            if is_over || self.interrupt.is_set() {
                break;
            }
            let took = round().map_err(|error| error.to_string())?;
            if count >= WARM_UP {
                latencies.record(took.as_nanos() as u64);
            }
        }
        Ok(latencies)
    }

    /// Time until the message is at the consumer; the acknowledgement is taken before the next one.
    fn relay(&self, spins: bool) -> Result<Latencies, String> {
        let bytes = self.body + FRAME_BYTES;
        let (sockets, thread) = self.peer(2, spins, move |sockets| {
            let mut message = vec![0; bytes];
            while read(&sockets[0], &mut message, spins).is_ok() {
                let sent = write(&sockets[1], &message, spins);
                let acknowledgement = [0; ACKNOWLEDGEMENT_BYTES];
                if sent.is_err() || write(&sockets[0], &acknowledgement, spins).is_err() {
                    return;
                }
            }
        })?;
        let mut message = vec![0; bytes];
        let mut acknowledgement = [0; ACKNOWLEDGEMENT_BYTES];
        let [producer, consumer] = &sockets[..] else {
            return Err("no pair of connections".to_owned());
        };
        let outcome = self.repeat(|| {
            let began = Instant::now();
            write(producer, &message, spins)?;
            read(consumer, &mut message, spins)?;
            let took = began.elapsed();
            read(producer, &mut acknowledgement, spins)?;
            Ok(took)
        });
        end(&sockets, thread)?;
        outcome
    }

    fn ping_pong(&self, spins: bool) -> Result<Latencies, String> {
        let bytes = self.body;
        let (sockets, thread) = self.peer(1, spins, move |sockets| {
            let mut message = vec![0; bytes];
            while read(&sockets[0], &mut message, spins).is_ok() {
                if write(&sockets[0], &message, spins).is_err() {
                    return;
                }
            }
        })?;
        let mut message = vec![0; bytes];
        let socket = sockets.first().ok_or("no connection")?;
        let outcome = self.repeat(|| {
            let began = Instant::now();
            write(socket, &message, spins)?;
            read(socket, &mut message, spins)?;
            Ok(began.elapsed())
        });
        end(&sockets, thread)?;
        outcome
    }

    fn write(&self, flushes: bool) -> Result<Latencies, String> {
        let name = format!("ringmq-bench-{}", std::process::id());
        let path = self.dir.join(name);
        let explain = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut file = std::fs::File::create_new(&path).map_err(explain)?;
        // Without a name: it is gone with the process, whatever happens.
        std::fs::remove_file(&path).map_err(explain)?;
        let body = vec![0x5A; self.body];
        let mut written = 0;
        self.repeat(|| {
            if written >= FILE_BYTES {
                file.rewind()?;
                written = 0;
            }
            let began = Instant::now();
            file.write_all(&body)?;
            if flushes {
                file.sync_data()?;
            }
            written += body.len() as u64;
            Ok(began.elapsed())
        })
    }

    /// `count` connections to a thread that runs `serve` with its ends of them.
    fn peer(
        &self,
        count: usize,
        spins: bool,
        serve: impl FnOnce(&[TcpStream]) + Send + 'static,
    ) -> Result<(Vec<TcpStream>, Peer), String> {
        let connect = || -> std::io::Result<(Vec<TcpStream>, Vec<TcpStream>)> {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..count {
                ours.push(TcpStream::connect(listener.local_addr()?)?);
                theirs.push(listener.accept()?.0);
            }
            for socket in ours.iter().chain(&theirs) {
                socket.set_nodelay(true)?;
                socket.set_nonblocking(spins)?;
            }
            Ok((ours, theirs))
        };
        let (ours, theirs) = connect().map_err(|error| error.to_string())?;
        let peer = self.peer_cpu;
        let thread = std::thread::spawn(move || {
            peer.map_or(Ok(()), pin)?;
            serve(&theirs);
            Ok(())
        });
        Ok((ours, thread))
    }
}

/// Closes the connections, with which the thread ends. **Errors**: why the thread did not serve.
fn end(sockets: &[TcpStream], thread: Peer) -> Result<(), String> {
    for socket in sockets {
        // Closed already, if the peer was first.
        let _ = socket.shutdown(Shutdown::Both);
    }
    let ended = thread.join();
    ended.map_err(|_| "the peer panicked".to_owned())?
}

/// Polls a socket that does not block, until it can.
fn polled<T>(mut attempt: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            result => return result,
        }
    }
}

fn read(mut socket: &TcpStream, buffer: &mut [u8], spins: bool) -> std::io::Result<()> {
    if !spins {
        return socket.read_exact(buffer);
    }
    let mut at = 0;
    while at < buffer.len() {
        match polled(|| socket.read(&mut buffer[at..]))? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => at += count,
        }
    }
    Ok(())
}

fn write(mut socket: &TcpStream, bytes: &[u8], spins: bool) -> std::io::Result<()> {
    if !spins {
        return socket.write_all(bytes);
    }
    let mut at = 0;
    while at < bytes.len() {
        at += polled(|| socket.write(&bytes[at..]))?;
    }
    Ok(())
}
