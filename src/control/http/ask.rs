//! Questions to shards, and what became of them.

use super::{Watched, WatchedShards};
use crate::control::mail::{Ask, ToShard};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// A shard answers at the end of a turn, so that one that takes this long is in trouble.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a shard has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Silence {
    #[error("is starting")]
    Starting,
    #[error("takes no mail")]
    Full,
    #[error("does not answer")]
    Late,
    /// It dropped the question.
    #[error("has stopped")]
    Stopped,
}

/// Asks one shard.
fn send<T>(
    watched: &Watched,
    ask: impl FnOnce(oneshot::Sender<T>) -> Ask,
) -> Result<oneshot::Receiver<T>, Silence> {
    let sender = watched.sender.get().ok_or(Silence::Starting)?;
    let (answer, wait) = oneshot::channel();
    match sender(ToShard::Ask(ask(answer))) {
        Ok(()) => Ok(wait),
        Err(_) => Err(Silence::Full),
    }
}

/// Asks all shards at once and waits for all of them together.
pub async fn all<T>(
    shards: &WatchedShards,
    ask: impl Fn(oneshot::Sender<T>) -> Ask,
) -> Vec<(&Watched, Result<T, Silence>)> {
    let asked: Vec<_> = shards.0.iter().map(|w| (w, send(w, &ask))).collect();
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let mut answers = Vec::with_capacity(asked.len());
    for (watched, wait) in asked {
        let answer = match wait {
            Ok(wait) => within(deadline, wait).await,
            Err(silence) => Err(silence),
        };
        answers.push((watched, answer));
    }
    answers
}

/// Asks one shard and waits.
pub async fn one<T>(
    watched: &Watched,
    ask: impl FnOnce(oneshot::Sender<T>) -> Ask,
) -> Result<T, Silence> {
    within(Instant::now() + ANSWER_TIMEOUT, send(watched, ask)?).await
}

async fn within<T>(deadline: Instant, wait: oneshot::Receiver<T>) -> Result<T, Silence> {
    match timeout_at(deadline, wait).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(Silence::Stopped),
        Err(_) => Err(Silence::Late),
    }
}
