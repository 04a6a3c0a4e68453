//! Registration with external name servers: one task and one connection per address. A slow or dead one delays
//! nobody else.

use super::ShardIdentity;
use crate::protocol::codes::RequestCode;
use crate::protocol::command::Encoding;
use crate::protocol::frame::{Split, split};
use crate::protocol::hash::body_crc;
use crate::protocol::response::Request;
use bytes::{Bytes, BytesMut};
use std::io;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_uring::net::TcpStream;

/// Most that one registration may take.
pub const TIMEOUT: Duration = Duration::from_secs(3);
/// Registrations that wait for one name server; when full, the newest waits for the next period.
const QUEUE_SLOTS: usize = 256;

struct Job {
    identity: ShardIdentity,
    /// `None`: unregister.
    body: Option<Bytes>,
    done: oneshot::Sender<()>,
}

pub struct External {
    jobs: mpsc::Sender<Job>,
}

impl External {
    pub fn start(address: String) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE_SLOTS);
        tokio_uring::spawn(work(address, queue));
        Self { jobs }
    }

    pub fn register(&self, identity: &ShardIdentity, body: Bytes) -> oneshot::Receiver<()> {
        self.send(identity, Some(body))
    }

    pub fn unregister(&self, identity: &ShardIdentity) -> oneshot::Receiver<()> {
        self.send(identity, None)
    }

    /// The receiver ends with an error where the queue is full: nobody waits for it then.
    fn send(&self, identity: &ShardIdentity, body: Option<Bytes>) -> oneshot::Receiver<()> {
        let (done, wait) = oneshot::channel();
        if self
            .jobs
            .try_send(Job {
                identity: identity.clone(),
                body,
                done,
            })
            .is_err()
        {
            tracing::warn!(
                broker = identity.broker_name,
                "too many registrations wait for a name server"
            );
        }
        wait
    }
}

async fn work(address: String, mut queue: mpsc::Receiver<Job>) {
    let mut stream: Option<TcpStream> = None;
    let mut reachable = true;
    while let Some(job) = queue.recv().await {
        let result = match timeout(TIMEOUT, perform(&address, &mut stream, &job)).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        };
        match result {
            Ok(()) if !reachable => tracing::info!(address, "name server reached again"),
            Ok(()) => {}
            Err(ref error) => {
                stream = None;
                if reachable {
                    tracing::warn!(address, %error, "name server not reached");
                }
            }
        }
        reachable = result.is_ok();
        // The one who waited may have given up.
        let _ = job.done.send(());
    }
}

async fn perform(address: &str, stream: &mut Option<TcpStream>, job: &Job) -> io::Result<()> {
    if stream.is_none() {
        let mut resolved = tokio::net::lookup_host(address).await?;
        let target = resolved
            .next()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        *stream = Some(TcpStream::connect(target).await?);
    }
    let Some(stream) = stream.as_ref() else {
        return Ok(());
    };
    let (written, _) = stream.write_all(request(job).to_vec()).await;
    written?;
    let mut received = BytesMut::new();
    let mut buffer = Vec::with_capacity(16 * 1024);
    loop {
        let (result, returned) = stream.read(buffer).await;
        buffer = returned;
        let count = result?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        received.extend_from_slice(&buffer[..count]);
        let frame = split(&received).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        if let Split::Frame(frame) = frame {
            let mut scratch = crate::protocol::command::Scratch::default();
            let answer = crate::protocol::command::Command::decode(&frame, &mut scratch)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            if answer.code != 0 {
                tracing::warn!(
                    address,
                    code = answer.code,
                    remark = answer.remark,
                    "the name server refused"
                );
            }
            return Ok(());
        }
    }
}

fn request(job: &Job) -> BytesMut {
    let identity = &job.identity;
    let id = identity.broker_id.to_string();
    let crc = job.body.as_deref().map_or(0, body_crc).to_string();
    let fields = [
        ("brokerName", identity.broker_name.as_str()),
        ("brokerAddr", &identity.address),
        ("clusterName", &identity.cluster),
        ("brokerId", &id),
        ("haServerAddr", &identity.ha_address),
        ("compressed", "false"),
        ("bodyCrc32", &crc),
    ];
    let code = if job.body.is_some() {
        RequestCode::REGISTER_BROKER
    } else {
        RequestCode::UNREGISTER_BROKER
    };
    let mut out = BytesMut::new();
    Request {
        code: code.0,
        opaque: 1,
        one_way: false,
        encoding: Encoding::Json,
        fields: &fields,
        body: job.body.as_deref().unwrap_or_default(),
    }
    .encode(&mut out);
    out
}
