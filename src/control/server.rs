//! The embedded name server's connections: one task each, bounded in number, in bytes and in time.

use super::embedded::Embedded;
use super::log::Limit;
use crate::limits::{CONNECTION_IDLE_SECONDS, NAMESRV_BUFFERED_BYTES_MAX, NAMESRV_CONNECTIONS_MAX};
use crate::namesrv::Source;
use crate::protocol::command::{Command, HeaderError, Scratch};
use crate::protocol::frame::{FrameError, Split, split};
use crate::protocol::response::Body;
use bytes::{Buf, BytesMut};
use std::cell::Cell;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tokio_uring::net::TcpStream;

/// Kernel's queue of connections that are not accepted yet: all clients of a cluster come back at once.
const BACKLOG: i32 = 4096;
/// Bytes asked for when nothing is half received: a request for a route has about 200. Every idle connection holds
/// as many.
const READ_BYTES_IDLE: usize = 4 * 1024;
/// Bytes asked for inside a frame; registrations are large.
const READ_BYTES_BUSY: usize = 64 * 1024;
/// Answers are written when this much is there, before more requests are answered.
const WRITE_BYTES: usize = 64 * 1024;

/// What connections may cost. Not configuration: tests have smaller ones.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    connections: usize,
    /// Unfinished frames and unread answers of all connections.
    buffered_bytes: usize,
    /// Silence after which a connection is closed.
    idle: Duration,
    /// A client that takes no answer for this long is closed.
    write: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: NAMESRV_CONNECTIONS_MAX,
            buffered_bytes: NAMESRV_BUFFERED_BYTES_MAX,
            idle: Duration::from_secs(CONNECTION_IDLE_SECONDS),
            write: Duration::from_secs(20),
        }
    }
}

/// Binds the name server's port.
///
/// **Errors**: one line that says what to do.
pub fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    let bind = || -> io::Result<TcpListener> {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    let port = address.port();
    bind().map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "name server port {port} is taken: {error}; set namesrvListenPort or stop the other process"
        ),
        _ => format!("the name server can't listen on {address}: {error}"),
    })
}

/// What the connections share.
struct Shared {
    embedded: Rc<Embedded>,
    bounds: Bounds,
    connections: Cell<usize>,
    /// Bytes of unfinished frames and unread answers.
    buffered_bytes: Cell<usize>,
    malformed: Cell<u64>,
    malformed_log: Limit,
    refused_log: Limit,
}

/// Accepts until the runtime ends.
pub async fn accept(listener: TcpListener, embedded: Rc<Embedded>, bounds: Bounds) {
    let listener = tokio_uring::net::TcpListener::from_std(listener);
    let shared = Rc::new(Shared {
        embedded,
        bounds,
        connections: Cell::new(0),
        buffered_bytes: Cell::new(0),
        malformed: Cell::new(0),
        malformed_log: Limit::new(),
        refused_log: Limit::new(),
    });
    let mut next_id = 0_u64;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                next_id += 1;
                shared.start(stream, peer, Source::Connection(next_id));
            }
            Err(error) => {
                // Out of descriptors, most likely: the connection waits in the backlog meanwhile.
                if shared.refused_log.admit(Instant::now()).is_some() {
                    tracing::warn!(%error, "the name server's accept failed");
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

impl Shared {
    fn start(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr, source: Source) {
        if self.connections.get() >= self.bounds.connections {
            if let Some(left_out) = self.refused_log.admit(Instant::now()) {
                let limit = self.bounds.connections;
                tracing::warn!(%peer, limit, lines_left_out = left_out, "too many connections to the name server, one was closed");
            }
            return;
        }
        self.connections.set(self.connections.get() + 1);
        let shared = Rc::clone(self);
        tokio_uring::spawn(async move {
            // Answers are small and awaited: never held back. A failure shows at the first write.
            let _ = stream.set_nodelay(true);
            let mut connection = Connection {
                stream: &stream,
                shared: &shared,
                source,
                received: BytesMut::new(),
                out: Vec::new(),
                charged: 0,
            };
            let end = connection.serve().await;
            drop(connection);
            // A read that was given up is still in the kernel and keeps the socket open until it ends.
            let _ = stream.shutdown(Shutdown::Both);
            shared.connections.set(shared.connections.get() - 1);
            shared.embedded.on_closed(source);
            shared.log_end(&end, peer);
        });
    }

    fn log_end(&self, end: &End, peer: SocketAddr) {
        match end {
            End::Closed => {}
            End::Malformed(error) => {
                self.malformed.set(self.malformed.get() + 1);
                if self.malformed_log.admit(Instant::now()).is_some() {
                    let total = self.malformed.get();
                    tracing::warn!(%peer, error, total, "malformed frame at the name server, connection closed");
                }
            }
            End::Overfull | End::Silent => {
                if self.refused_log.admit(Instant::now()).is_some() {
                    let reason = match end {
                        End::Overfull => "the name server's buffers are full, connection closed",
                        _ => "a client takes no answers from the name server, connection closed",
                    };
                    tracing::warn!(%peer, buffered = self.buffered_bytes.get(), "{reason}");
                }
            }
        }
    }
}

/// Why a connection ends.
enum End {
    /// By the peer, by an error of the network, or after 120 s of silence.
    Closed,
    Malformed(String),
    /// The buffers of all connections together are full.
    Overfull,
    /// It does not read.
    Silent,
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<HeaderError> for End {
    fn from(error: HeaderError) -> Self {
        Self::Malformed(error.to_string())
    }
}

struct Connection<'s> {
    stream: &'s TcpStream,
    shared: &'s Shared,
    source: Source,
    received: BytesMut,
    out: Vec<u8>,
    /// Its part of `buffered_bytes`.
    charged: usize,
}

impl Connection<'_> {
    async fn serve(&mut self) -> End {
        let mut buffer = Vec::with_capacity(READ_BYTES_IDLE);
        loop {
            let Ok((result, returned)) =
                timeout(self.shared.bounds.idle, self.stream.read(buffer)).await
            else {
                return End::Closed;
            };
            buffer = returned;
            match result {
                Ok(0) | Err(_) => return End::Closed,
                Ok(count) => self
                    .received
                    .extend_from_slice(buffer.get(..count).unwrap_or_default()),
            }
            if let Err(end) = self.answer_all().await {
                if matches!(end, End::Malformed(_)) {
                    // What came before it is answered. The end is the same if that fails.
                    let _ = self.write().await;
                }
                return end;
            }
            buffer = self.fitting(buffer);
        }
    }

    /// A read buffer for what is expected next, so that idle connections cost little.
    fn fitting(&mut self, buffer: Vec<u8>) -> Vec<u8> {
        let wanted = if self.received.is_empty() {
            self.received = BytesMut::new();
            READ_BYTES_IDLE
        } else {
            READ_BYTES_BUSY
        };
        if buffer.capacity() == wanted {
            buffer
        } else {
            Vec::with_capacity(wanted)
        }
    }

    /// Answers the whole frames that were received.
    async fn answer_all(&mut self) -> Result<(), End> {
        // Not kept: a single large header would stay allocated as long as the connection.
        let mut scratch = Scratch::default();
        loop {
            self.charge()?;
            let used = match split(&self.received)? {
                Split::Incomplete { .. } => break,
                Split::Frame(frame) => {
                    let command = Command::decode(&frame, &mut scratch)?;
                    let answer = self.shared.embedded.handle(&command, self.source).await;
                    if let Some(answer) = answer {
                        let mut head = BytesMut::new();
                        answer.encode_head(command.opaque, command.encoding, &mut head);
                        self.out.extend_from_slice(&head);
                        if let Body::Bytes(body) = &answer.body {
                            self.out.extend_from_slice(body);
                        }
                    }
                    frame.bytes
                }
            };
            self.received.advance(used);
            if self.out.len() >= WRITE_BYTES {
                self.charge()?;
                self.write().await?;
            }
        }
        self.write().await
    }

    async fn write(&mut self) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        let limit = self.shared.bounds.write;
        match timeout(limit, self.stream.write_all(out)).await {
            Ok((Ok(()), _)) => self.charge(),
            Ok((Err(_), _)) => Err(End::Closed),
            Err(_) => Err(End::Silent),
        }
    }

    /// Counts what it holds. One connection alone is never refused: a frame is far smaller than the limit.
    fn charge(&mut self) -> Result<(), End> {
        let held = self.received.len() + self.out.len();
        let total = self.shared.buffered_bytes.get() - self.charged + held;
        let grows = held > self.charged;
        self.charged = held;
        self.shared.buffered_bytes.set(total);
        if grows && total > self.shared.bounds.buffered_bytes {
            return Err(End::Overfull);
        }
        Ok(())
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        let total = self.shared.buffered_bytes.get() - self.charged;
        self.shared.buffered_bytes.set(total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::namesrv::{NameServer, Settings};
    use crate::protocol::bodies::{TopicConfig, TopicTable};
    use crate::protocol::command::Encoding;
    use crate::protocol::response::Request;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream as StdStream};

    const BOUNDS: Bounds = Bounds {
        connections: 3,
        buffered_bytes: 1024 * 1024,
        idle: Duration::from_secs(10),
        write: Duration::from_millis(200),
    };

    fn frame(code: i32, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        Request {
            code,
            opaque: 1,
            one_way: false,
            encoding: Encoding::Json,
            fields,
            body,
        }
        .encode(&mut out);
        out.to_vec()
    }

    /// Runs blocking clients against a server with these bounds.
    fn with_server(bounds: Bounds, clients: impl FnOnce(SocketAddr) + Send + 'static) {
        let listener = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio_uring::start(async move {
            let state = NameServer::new(Settings::default(), None).expect("no file");
            let embedded = Embedded::new(state, Clock::new(), "unused".into());
            tokio_uring::spawn(accept(listener, Rc::new(embedded), bounds));
            let clients = tokio::task::spawn_blocking(move || clients(address));
            clients.await.expect("the clients are content");
        });
    }

    fn connect(address: SocketAddr) -> StdStream {
        let stream = StdStream::connect(address).expect("the port is open");
        let patience = Some(Duration::from_secs(10));
        stream.set_read_timeout(patience).expect("a socket");
        stream
    }

    fn is_answered(stream: &mut StdStream) -> bool {
        let written = stream.write_all(&frame(105, &[("topic", "T")], b""));
        written.is_ok() && matches!(stream.read(&mut [0; 1024]), Ok(1..))
    }

    fn is_closed(stream: &mut StdStream) -> bool {
        loop {
            match stream.read(&mut [0; 64 * 1024]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }

    /// Whether the server ends it within a moment; what it sends is skipped.
    fn is_closed_soon(stream: &mut StdStream) -> bool {
        let patience = stream.read_timeout().expect("a socket");
        let moment = Some(Duration::from_millis(100));
        stream.set_read_timeout(moment).expect("a socket");
        let is_closed = is_closed(stream);
        stream.set_read_timeout(patience).expect("a socket");
        is_closed
    }

    /// Asks until it is so.
    fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
            std::thread::yield_now();
        }
    }

    fn open_sockets() -> usize {
        let entries = std::fs::read_dir("/proc/self/fd").expect("a list");
        entries
            .flatten()
            .filter_map(|e| std::fs::read_link(e.path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("socket:"))
            .count()
    }

    /// A read that was given up holds the socket; only a shutdown ends it.
    #[test]
    fn silent_connections_are_closed_and_their_sockets_too() {
        let bounds = Bounds {
            connections: 1000,
            idle: Duration::from_millis(200),
            ..BOUNDS
        };
        with_server(bounds, |address| {
            let before = open_sockets();
            for _ in 0..5 {
                let mut streams: Vec<_> = (0..40).map(|_| connect(address)).collect();
                assert!(is_answered(&mut streams[0]));
                assert!(streams.iter_mut().all(is_closed));
            }
            // Other tests of this process open some as well.
            wait_for("sockets are closed", || open_sockets() < before + 100);
        });
    }

    #[test]
    fn connections_beyond_the_limit_are_closed() {
        with_server(BOUNDS, |address| {
            let mut streams: Vec<_> = (0..3).map(|_| connect(address)).collect();
            assert!(streams.iter_mut().all(is_answered));
            assert!(is_closed(&mut connect(address)));
            assert!(streams.iter_mut().all(is_answered));
            streams.pop();
            wait_for("there is room again", || is_answered(&mut connect(address)));
        });
    }

    #[test]
    fn unfinished_frames_are_bounded_over_all_connections() {
        with_server(BOUNDS, |address| {
            let part = |bytes: usize| {
                let mut part = vec![0; bytes];
                part[..8].copy_from_slice(&[0, 0xF0, 0, 0, 0, 0, 0, 2]);
                part
            };
            let mut both = vec![connect(address), connect(address)];
            for stream in &mut both {
                // The server may close in the midst of it.
                let _ = stream.write_all(&part(700 * 1024));
            }
            wait_for("one is closed", || {
                both.retain_mut(|stream| !is_closed_soon(stream));
                both.len() < 2
            });
            assert_eq!(both.len(), 1, "the other has room");
            drop(both);
            let mut third = connect(address);
            wait_for("there is room again", || {
                third = connect(address);
                let _ = third.write_all(&part(700 * 1024));
                !is_closed_soon(&mut third)
            });
            assert!(is_answered(&mut connect(address)));
        });
    }

    #[test]
    fn client_that_does_not_read_is_closed() {
        let bounds = Bounds {
            buffered_bytes: 8 * 1024 * 1024,
            ..BOUNDS
        };
        with_server(bounds, move |address| {
            let mut table = TopicTable::default();
            for index in 0..5000 {
                let name = format!("topic-{index:0>100}");
                let topic = TopicConfig::new(&name, 1, 6);
                table.topic_config_table.insert(name, topic);
            }
            let fields = [
                ("brokerName", "b"),
                ("brokerAddr", "b:1"),
                ("clusterName", "c"),
                ("brokerId", "0"),
            ];
            let mut broker = connect(address);
            let register = frame(103, &fields, &table.encode_registration());
            broker.write_all(&register).expect("it reads");
            assert!(broker.read(&mut [0; 1024]).expect("an answer") > 0);
            let mut lazy = connect(address);
            let list = frame(206, &[], b"");
            for _ in 0..200 {
                // The server may close in the midst of it.
                let _ = lazy.write_all(&list);
            }
            let begun = std::time::Instant::now();
            while begun.elapsed() < bounds.write * 7 {
                assert!(is_answered(&mut broker), "others are served");
            }
            assert!(is_closed(&mut lazy));
        });
    }
}
