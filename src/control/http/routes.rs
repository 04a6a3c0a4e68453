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
        Ok(State {
            disk_full: Some(why),
            ..
        }) => format!("has no room on its disk: {why}"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ShardIdentity;
    use crate::control::http::SharedSender;
    use crate::control::mail::ToShard;
    use crate::ids::ShardId;
    use crate::stats::report::HoldPage;
    use http_body_util::BodyExt;

    fn identity(shard: u16) -> ShardIdentity {
        ShardIdentity {
            shard: ShardId(shard),
            cluster: "c".to_owned(),
            broker_name: format!("b-{shard}"),
            broker_id: 0,
            address: "127.0.0.1:10911".to_owned(),
            ha_address: "127.0.0.1:10912".to_owned(),
        }
    }

    /// Shards that answer at once by these functions; `None` has not started.
    fn routes(shards: Vec<Option<SharedSender>>) -> Routes {
        let identities = (0..shards.len() as u16).map(identity);
        let watched = WatchedShards::new(identities.map(|identity| (identity, "/".into())));
        for (shard, sender) in (0..).zip(shards) {
            if let Some(sender) = sender {
                watched.started(&identity(shard), sender);
            }
        }
        Routes::new(watched)
    }

    /// Waits are over at once, since the runtime's clock jumps to the next one.
    fn ask(routes: &Routes, path: &str) -> (u16, String) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        runtime.expect("a runtime").block_on(async {
            let request = Request::get(path).body(()).expect("a request");
            let answer = routes.answer(&request).await;
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.expect("a body");
            (
                status,
                String::from_utf8_lossy(&body.to_bytes()).into_owned(),
            )
        })
    }

    fn says(is_stopping: bool, read_only: Option<&'static str>) -> Option<SharedSender> {
        Some(Box::new(move |mail| {
            if let ToShard::Ask(Ask::State(answer)) = mail {
                let read_only = read_only.map(str::to_owned);
                let state = State {
                    is_stopping,
                    read_only,
                    disk_full: None,
                };
                answer.send(state).expect("somebody waits");
            }
            Ok(())
        }))
    }

    fn has_no_room() -> Option<SharedSender> {
        Some(Box::new(|mail| {
            if let ToShard::Ask(Ask::State(answer)) = mail {
                let state = State {
                    is_stopping: false,
                    read_only: None,
                    disk_full: Some("90 % are in use".to_owned()),
                };
                answer.send(state).expect("somebody waits");
            }
            Ok(())
        }))
    }

    /// Keeps the question and never answers.
    fn hangs() -> Option<SharedSender> {
        let kept = std::sync::Mutex::new(Vec::new());
        Some(Box::new(move |mail| {
            kept.lock().expect("one thread").push(mail);
            Ok(())
        }))
    }

    fn is_full() -> Option<SharedSender> {
        Some(Box::new(Err))
    }

    fn drops() -> Option<SharedSender> {
        Some(Box::new(|_| Ok(())))
    }

    #[test]
    fn it_is_ready_when_every_shard_serves() {
        let all = routes(vec![says(false, None), says(false, None)]);
        assert_eq!(ask(&all, "/readyz"), (200, "ready\n".to_owned()));
    }

    #[test]
    fn every_shard_that_does_not_serve_says_why() {
        let all = routes(vec![
            None,
            says(false, None),
            says(true, None),
            says(false, Some("write failed")),
            hangs(),
            is_full(),
            drops(),
            has_no_room(),
        ]);
        let expected = "shard 0 is starting
shard 2 is stopping
shard 3 is read-only until restart: write failed
shard 4 does not answer
shard 5 takes no mail
shard 6 has stopped
shard 7 has no room on its disk: 90 % are in use
";
        assert_eq!(ask(&all, "/readyz"), (503, expected.to_owned()));
        assert_eq!(ask(&all, "/healthz").0, 200, "it runs all the same");
        let (status, text) = ask(&all, "/metrics");
        assert_eq!(status, 200);
        for shard in 0..7 {
            let line = format!("ringmq_shard_up{{shard=\"{shard}\",node_id=\"b-{shard}\"}} 0\n");
            assert!(text.contains(&line), "{text}");
        }
        assert!(ask(&all, "/slow").1.contains("shard 0 is starting"));
    }

    /// Three pages of two holds each, of which one matches.
    #[test]
    fn holds_are_listed_page_by_page() {
        let pages: SharedSender = Box::new(|mail| {
            if let ToShard::Ask(Ask::Holds(wanted, answer)) = mail {
                assert_eq!(
                    (wanted.topic.as_deref(), wanted.group),
                    (Some("%RETRY%G"), None)
                );
                let page = HoldPage {
                    rows: Vec::new(),
                    matching: 1,
                    next: (wanted.from < 4).then_some(wanted.from + 2),
                };
                answer.send(page).expect("somebody waits");
            }
            Ok(())
        });
        let (status, body) = ask(&routes(vec![Some(pages)]), "/holds?topic=%25RETRY%25G");
        assert_eq!(status, 200);
        assert!(body.contains("\"total\":3"), "{body}");
    }
}
