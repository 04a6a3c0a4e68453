//! The HTTP port: metrics for Prometheus, health, holds, the slowest deliveries.
//!
//! **Runs on** a thread of its own with a plain `tokio` runtime: it has to answer while shards still recover, when
//! the control thread is not there yet, and tables of a megabyte must not keep a client's route waiting. It reads only
//! what shards hand over, and asks them through their mailboxes.
//!
//! **Bounds**: so many connections, each good for one request and for so many seconds; shards are asked for metrics by
//! one request at a time, and not again right away, so that a scraper in a loop costs a shard a few percent at most.

mod ask;
mod encode;
mod families;
mod routes;

use super::ShardIdentity;
use super::mail::ToShard;
use crate::limits::{HTTP_CONNECTIONS_MAX, HTTP_TIMEOUT_SECONDS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use routes::Routes;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

const TIMEOUT: Duration = Duration::from_secs(HTTP_TIMEOUT_SECONDS);
/// Requests are lines; longer ones are refused.
const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// Gives mail to a shard, from any thread; `Err` when its box is full.
pub type SharedSender = Box<dyn Fn(ToShard) -> Result<(), ToShard> + Send + Sync>;

/// A shard that is to come.
pub struct Watched {
    pub identity: ShardIdentity,
    /// Folder of its store.
    pub store: PathBuf,
    sender: OnceLock<SharedSender>,
}

/// The shards of this process, whether they have started or not.
#[derive(Clone)]
pub struct WatchedShards(Arc<Vec<Watched>>);

impl WatchedShards {
    pub fn new(shards: impl IntoIterator<Item = (ShardIdentity, PathBuf)>) -> Self {
        let watched = shards.into_iter().map(|(identity, store)| Watched {
            identity,
            store,
            sender: OnceLock::new(),
        });
        Self(Arc::new(watched.collect()))
    }

    /// The shard has started.
    pub fn started(&self, identity: &ShardIdentity, sender: SharedSender) {
        let watched = self.0.iter().find(|w| w.identity.shard == identity.shard);
        if watched.is_none_or(|watched| watched.sender.set(sender).is_err()) {
            tracing::error!(shard = %identity.shard, "a shard was not expected to start");
        }
    }
}

/// Binds the port. **Errors**: one line that says what to do.
pub fn open(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).map_err(|error| {
        format!("the metrics can't listen on {address}: {error}; set metricsPort (0: off) or stop the other process")
    })
}

/// Serves on a thread of its own until the process ends. **Errors**: the thread can't be started.
pub fn start(listener: TcpListener, shards: WatchedShards) -> Result<(), String> {
    let serve = move || {
        if let Err(error) = serve(listener, shards) {
            tracing::error!(%error, "there are no metrics");
        }
    };
    let thread = std::thread::Builder::new().name("ringmq-http".to_owned());
    let spawned = thread.spawn(serve);
    spawned.map_err(|e| format!("the metrics' thread can't be started: {e}"))?;
    Ok(())
}

fn serve(listener: TcpListener, shards: WatchedShards) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async move {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let routes = Rc::new(Routes::new(shards));
        let places = Arc::new(Semaphore::new(HTTP_CONNECTIONS_MAX));
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let routes = Rc::clone(&routes);
                    spawn_local(async move {
                        answer_one(stream, routes).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely: the connection waits in the backlog meanwhile.
                    tracing::warn!(%error, "the metrics' accept failed");
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
        Ok(())
    })
}

/// One request, answered within the time, or not at all.
async fn answer_one(stream: TcpStream, routes: Rc<Routes>) {
    let service = service_fn(move |request| {
        let routes = Rc::clone(&routes);
        async move { Ok::<_, Infallible>(routes.answer(&request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(TIMEOUT)
        .max_buf_size(REQUEST_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request for metrics failed"),
        Err(_) => tracing::debug!("a reader of metrics was too slow"),
    }
}
