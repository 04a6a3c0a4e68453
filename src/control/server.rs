//! The embedded name server's connections: one task each.

use crate::clock::Clock;
use crate::limits::CONNECTION_IDLE_SECONDS;
use crate::namesrv::{NameServer, Source};
use crate::protocol::command::{Command, Scratch};
use crate::protocol::frame::{Split, split};
use crate::protocol::response::Body;
use bytes::{Buf, BytesMut};
use std::cell::RefCell;
use std::net::TcpListener;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_uring::net::TcpStream;

/// Connections of the name server; further ones are closed at accept.
const CONNECTIONS_MAX: usize = 10_000;
const READ_BYTES: usize = 16 * 1024;
const IDLE: Duration = Duration::from_secs(CONNECTION_IDLE_SECONDS);

pub async fn accept(listener: TcpListener, state: Rc<RefCell<NameServer>>, clock: Clock) {
    let listener = tokio_uring::net::TcpListener::from_std(listener);
    let open = Rc::new(());
    let mut next_id = 0_u64;
    loop {
        match listener.accept().await {
            Ok((stream, _)) if Rc::strong_count(&open) <= CONNECTIONS_MAX => {
                next_id += 1;
                let source = Source::Connection(next_id);
                let (state, held) = (Rc::clone(&state), Rc::clone(&open));
                tokio_uring::spawn(async move {
                    serve(stream, &state, source, clock).await;
                    state.borrow_mut().on_closed(source);
                    drop(held);
                });
            }
            Ok(_) => tracing::warn!(
                limit = CONNECTIONS_MAX,
                "too many connections to the name server, one was closed"
            ),
            Err(error) => {
                tracing::warn!(%error, "the name server's accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Until the client closes, is silent for 120 s, or sends what is no frame.
async fn serve(stream: TcpStream, state: &RefCell<NameServer>, source: Source, clock: Clock) {
    // Answers are small and awaited: never held back. A failure shows at the first write.
    let _ = stream.set_nodelay(true);
    let mut received = BytesMut::new();
    let mut buffer = Vec::with_capacity(READ_BYTES);
    let mut scratch = Scratch::default();
    loop {
        let Ok((result, returned)) = timeout(IDLE, stream.read(buffer)).await else {
            return;
        };
        buffer = returned;
        match result {
            Ok(0) | Err(_) => return,
            Ok(count) => received.extend_from_slice(&buffer[..count]),
        }
        let mut out = BytesMut::new();
        if let Err(error) = answer(&mut received, &mut out, &mut scratch, state, source, clock) {
            tracing::warn!(
                error,
                "malformed frame at the name server, connection closed"
            );
            return;
        }
        if !out.is_empty() {
            let written = timeout(IDLE, stream.write_all(out.freeze().to_vec())).await;
            if !matches!(written, Ok((Ok(()), _))) {
                return;
            }
        }
    }
}

/// Answers the whole frames at the front.
fn answer(
    received: &mut BytesMut,
    out: &mut BytesMut,
    scratch: &mut Scratch,
    state: &RefCell<NameServer>,
    source: Source,
    clock: Clock,
) -> Result<(), String> {
    loop {
        let used = match split(received).map_err(|e| e.to_string())? {
            Split::Incomplete { .. } => return Ok(()),
            Split::Frame(frame) => {
                let command = Command::decode(&frame, scratch).map_err(|e| e.to_string())?;
                if let Some(response) = state.borrow_mut().handle(&command, source, clock.now()) {
                    response.encode_head(command.opaque, command.encoding, out);
                    if let Body::Bytes(body) = &response.body {
                        out.extend_from_slice(body);
                    }
                }
                frame.bytes
            }
        };
        received.advance(used);
    }
}
