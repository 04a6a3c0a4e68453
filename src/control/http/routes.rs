//! What each path answers.

use super::ask::{self, Silence};
use super::encode::{self, Format};
use super::families::{ShardMetrics, Snapshot};
use super::{Watched, WatchedShards};
use crate::control::mail::Ask;
use crate::limits::{HOLDS_LISTED_MAX, SLOW_DELIVERIES_MAX};
use crate::stats::report::{HoldRow, HoldsWanted, State};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// Pause after the shards were asked for their metrics.
const METRICS_PAUSE: Duration = Duration::from_millis(50);

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const PATHS: &str = "/metrics        for Prometheus, as text or OpenMetrics
/healthz        200 while the process runs
/readyz         200 while every shard serves, 503 with the reasons otherwise
/holds          pulls that wait, and why; ?topic=T&group=G&limit=N
/slow           the slowest deliveries to held pulls, hop by hop
";

type Answer = Response<Full<Bytes>>;

pub struct Routes {
    shards: WatchedShards,
    /// When the shards may be asked for metrics again; held while they are.
    metrics_next: Mutex<Instant>,
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json(status: StatusCode, value: &serde_json::Value) -> Answer {
    answer(status, JSON, value.to_string())
}

impl Routes {
    pub fn new(shards: WatchedShards) -> Self {
        Self {
            shards,
            metrics_next: Mutex::new(Instant::now()),
        }
    }

    /// Answers a request. Bodies are not looked at.
    pub async fn answer<B>(&self, request: &Request<B>) -> Answer {
        if *request.method() != Method::GET && *request.method() != Method::HEAD {
            return answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
        }
        let query = form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes());
        let query: BTreeMap<String, String> = query.into_owned().collect();
        match request.uri().path() {
            "/" => answer(StatusCode::OK, TEXT, PATHS),
            "/metrics" => {
                let accept = request.headers().get(ACCEPT);
                let accept = accept.and_then(|value| value.to_str().ok());
                self.metrics(Format::accepted(accept.unwrap_or_default()))
                    .await
            }
            "/healthz" => answer(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => self.ready().await,
            "/holds" => self.holds(query).await,
            "/slow" => self.slow().await,
            _ => answer(StatusCode::NOT_FOUND, TEXT, PATHS),
        }
    }

    async fn metrics(&self, format: Format) -> Answer {
        let mut next = self.metrics_next.lock().await;
        sleep_until(*next).await;
        let reports = ask::all(&self.shards, Ask::Report).await;
        *next = Instant::now() + METRICS_PAUSE;
        drop(next);
        let shards = reports.into_iter().map(|(watched, report)| ShardMetrics {
            identity: watched.identity.clone(),
            store_bytes: used_bytes(watched),
            report: report.ok(),
        });
        let snapshot = Snapshot {
            shards: shards.collect(),
        };
        match encode::text(snapshot, format) {
            Ok(text) => answer(StatusCode::OK, format.content_type(), text),
            Err(error) => answer(
                StatusCode::INTERNAL_SERVER_ERROR,
                TEXT,
                format!("the metrics can't be written: {error}\n"),
            ),
        }
    }

    async fn ready(&self) -> Answer {
        let states = ask::all(&self.shards, Ask::State).await;
        let reasons = states
            .iter()
            .filter_map(|(watched, state)| reason(watched, state));
        let reasons: String = reasons.collect();
        if reasons.is_empty() {
            answer(StatusCode::OK, TEXT, "ready\n")
        } else {
            answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, reasons)
        }
    }

    async fn holds(&self, mut query: BTreeMap<String, String>) -> Answer {
        let limit = match query.remove("limit").map(|limit| limit.parse::<usize>()) {
            None => HOLDS_LISTED_MAX,
            Some(Ok(limit)) => limit.min(HOLDS_LISTED_MAX),
            Some(Err(_)) => return answer(StatusCode::BAD_REQUEST, TEXT, "limit is a number\n"),
        };
        let mut wanted = HoldsWanted {
            topic: query.remove("topic"),
            group: query.remove("group"),
            from: 0,
            rows_max: 0,
        };
        if let Some((unknown, _)) = query.pop_first() {
            let text = format!("{unknown:?} is none of topic, group and limit\n");
            return answer(StatusCode::BAD_REQUEST, TEXT, text);
        }
        let (mut holds, mut total, mut silent) = (Vec::new(), 0, Vec::new());
        for watched in self.shards.0.iter() {
            let found = list_holds(watched, &mut wanted, &mut holds).await;
            total += found.matching;
            silent.extend(found.silence.map(|why| said(watched, why)));
        }
        // The longest first.
        holds.sort_by_key(|hold| std::cmp::Reverse(hold.waited_ms));
        holds.truncate(limit);
        let body =
            json!({"total": total, "listed": holds.len(), "holds": holds, "notAnswering": silent});
        json(StatusCode::OK, &body)
    }

    async fn slow(&self) -> Answer {
        let (mut rows, mut silent) = (Vec::new(), Vec::new());
        for (watched, answer) in ask::all(&self.shards, Ask::Slow).await {
            match answer {
                Ok(slow) => rows.extend(slow),
                Err(why) => silent.push(said(watched, why)),
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.reply_queued_us));
        rows.truncate(SLOW_DELIVERIES_MAX);
        json(
            StatusCode::OK,
            &json!({"deliveries": rows, "notAnswering": silent}),
        )
    }
}

/// Why a shard doesn't serve, as a line; `None` if it does.
fn reason(watched: &Watched, state: &Result<State, Silence>) -> Option<String> {
    let why = match state {
        Ok(State {
            is_stopping: true, ..
        }) => "is stopping".to_owned(),
        Ok(State {
            read_only: Some(why),
            ..
        }) => format!("is read-only until restart: {why}"),
        Ok(_) => return None,
        Err(silence) => silence.to_string(),
    };
    Some(format!("shard {} {why}\n", watched.identity.shard))
}

fn said(watched: &Watched, why: Silence) -> String {
    format!("shard {} {why}", watched.identity.shard)
}

/// Bytes in use on the file system of a shard's store. Source: apache/rocketmq `DefaultStoreMetricsManager`.
fn used_bytes(watched: &Watched) -> Option<u64> {
    let space = rustix::fs::statvfs(&watched.store).ok()?;
    Some(space.f_blocks.saturating_sub(space.f_bfree) * space.f_frsize)
}

struct Found {
    matching: u64,
    silence: Option<Silence>,
}

/// Adds the holds of one shard, page by page.
async fn list_holds(
    watched: &Watched,
    wanted: &mut HoldsWanted,
    holds: &mut Vec<HoldRow>,
) -> Found {
    let mut found = Found {
        matching: 0,
        silence: None,
    };
    wanted.from = 0;
    loop {
        wanted.rows_max = HOLDS_LISTED_MAX.saturating_sub(holds.len());
        let question = wanted.clone();
        match ask::one(watched, |answer| Ask::Holds(question, answer)).await {
            Ok(page) => {
                found.matching += page.matching;
                holds.extend(page.rows);
                match page.next {
                    Some(next) => wanted.from = next,
                    None => return found,
                }
            }
            Err(silence) => {
                found.silence = Some(silence);
                return found;
            }
        }
    }
}
