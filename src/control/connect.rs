//! A connection to an external name server: made off the loop, written with a time-out, read by a task of its own.

use crate::protocol::command::{Command, Scratch};
use crate::protocol::frame::{Split, split};
use bytes::{Buf, Bytes, BytesMut};
use std::net::{Shutdown, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_uring::net::TcpStream;

/// Addresses of one host name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Most that writing one request may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);
const READ_BYTES: usize = 16 * 1024;
/// Answers that wait for the task; the reader waits when there are more.
const REPLY_SLOTS: usize = 64;

/// An answer, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub opaque: i32,
    pub code: i32,
    pub remark: Option<String>,
    pub body: Bytes,
}

/// An open connection. Closed when dropped.
pub struct Link {
    stream: Rc<TcpStream>,
    replies: Receiver<Result<Reply, String>>,
}

/// Resolves the name and connects. Both block, so a thread does it; one that hangs in a resolver outlives the wait,
/// and nothing waits for it at the end of the process.
///
/// **Errors**: text for the log.
pub async fn connect(address: &str, limit: Duration) -> Result<Link, String> {
    let (done, wait) = oneshot::channel();
    let target = address.to_owned();
    std::thread::Builder::new()
        .name("ringmq-connect".to_owned())
        .spawn(move || {
            // Nobody may be waiting any more.
            let _ = done.send(connect_blocking(&target, limit));
        })
        .map_err(|e| format!("no thread to connect: {e}"))?;
    let stream = wait
        .await
        .map_err(|_| "the connecting thread ended".to_owned())??;
    // Registrations are single requests that are waited for. A failure shows at the first write.
    let _ = stream.set_nodelay(true);
    let stream = Rc::new(TcpStream::from_std(stream));
    let (sender, replies) = channel(REPLY_SLOTS);
    tokio_uring::spawn(read(Rc::clone(&stream), sender));
    Ok(Link { stream, replies })
}

fn connect_blocking(address: &str, limit: Duration) -> Result<std::net::TcpStream, String> {
    let resolved = address
        .to_socket_addrs()
        .map_err(|e| format!("{address} can't be resolved: {e}"))?;
    let mut last = format!("{address} has no address");
    for target in resolved.take(ADDRESSES_MAX) {
        match std::net::TcpStream::connect_timeout(&target, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = format!("{target}: {error}"),
        }
    }
    Err(last)
}

impl Link {
    /// Writes one frame.
    pub async fn send(&self, frame: Vec<u8>) -> Result<(), String> {
        match timeout(WRITE_TIMEOUT, self.stream.write_all(frame)).await {
            Ok((result, _)) => result.map_err(|e| e.to_string()),
            Err(_) => Err("it does not read".to_owned()),
        }
    }

    /// The next answer. May be given up at any time without losing one. **Errors**: the connection is over.
    pub async fn reply(&mut self) -> Result<Reply, String> {
        let reply = self.replies.recv().await;
        reply.unwrap_or_else(|| Err("the connection ended".to_owned()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Ends the reader's read, and with it the last owner of the socket.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Passes answers on until the connection ends or nobody listens.
async fn read(stream: Rc<TcpStream>, replies: Sender<Result<Reply, String>>) {
    let mut received = BytesMut::new();
    let mut buffer = Vec::with_capacity(READ_BYTES);
    let mut scratch = Scratch::default();
    let error = loop {
        let (result, returned) = stream.read(buffer).await;
        buffer = returned;
        match result {
            Ok(0) => break "closed by the name server".to_owned(),
            Ok(count) => received.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(error) => break error.to_string(),
        }
        loop {
            let reply = match take_reply(&mut received, &mut scratch) {
                Ok(Taken::Reply(reply)) => reply,
                Ok(Taken::Other) => continue,
                Ok(Taken::Incomplete) => break,
                Err(error) => {
                    // Nobody may be listening any more.
                    let _ = replies.send(Err(error)).await;
                    return;
                }
            };
            if replies.send(Ok(reply)).await.is_err() {
                return;
            }
        }
    };
    let _ = replies.send(Err(error)).await;
}

enum Taken {
    Reply(Reply),
    /// A request of the name server, which has nothing to ask here.
    Other,
    Incomplete,
}

fn take_reply(received: &mut BytesMut, scratch: &mut Scratch) -> Result<Taken, String> {
    let (taken, used) = match split(received).map_err(|e| e.to_string())? {
        Split::Incomplete { .. } => return Ok(Taken::Incomplete),
        Split::Frame(frame) => {
            let command = Command::decode(&frame, scratch).map_err(|e| e.to_string())?;
            let reply = Reply {
                opaque: command.opaque,
                code: command.code,
                remark: command.remark.map(|r| r.chars().take(200).collect()),
                body: Bytes::copy_from_slice(command.body),
            };
            let taken = if command.is_response() {
                Taken::Reply(reply)
            } else {
                Taken::Other
            };
            (taken, frame.bytes)
        }
    };
    received.advance(used);
    Ok(taken)
}
