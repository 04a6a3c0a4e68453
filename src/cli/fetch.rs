//! One GET.

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Most that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Answers beyond this are not read.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The body at a path of the metrics' port of a broker. **Errors**: one line that says what to do.
pub fn get(address: &str, path: &str) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let answer = runtime.block_on(async { timeout(TIMEOUT, fetch(address, path)).await });
    answer.unwrap_or_else(|_| {
        Err(format!(
            "{address} has not answered within {} s; is it the metricsPort of a broker?",
            TIMEOUT.as_secs()
        ))
    })
}

async fn fetch(address: &str, path: &str) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| {
        format!("{address}: {error}; --broker is the metricsPort of a broker, 5557 by default")
    };
    let stream = TcpStream::connect(address).await.map_err(|e| failed(&e))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|e| failed(&e))?;
    tokio::spawn(connection);
    let request = Request::get(path)
        .header(HOST, address)
        .body(Empty::<Bytes>::new())
        .map_err(|e| failed(&e))?;
    let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX)
        .collect()
        .await;
    let body = body.map_err(|e| failed(&e))?.to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    if status == StatusCode::OK {
        Ok(body)
    } else {
        Err(failed(&format!("{status}: {}", body.trim_end())))
    }
}
