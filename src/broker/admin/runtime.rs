//! 28: what a broker is doing, as texts by name.
//!
//! The names are Apache's, as far as what they mean exists here: tools read them and fail on some that are missing.
//! Queues of thread pools and the lock of the page cache don't exist; their lengths and times are 0, which is true.
//!
//! Source: apache/rocketmq 5.3.x `AdminBrokerProcessor#prepareRuntimeInfo`, `StoreStatsService#getRuntimeInfo`,
//! readers `ClusterListSubCommand`, `BrokerStatusSubCommand`.

use super::Answer;
use crate::broker::rates::Totals;
use crate::broker::{Broker, Context, Outcome};
use crate::protocol::bodies::{self, KvTableBuf};
use crate::protocol::command::{Command, VERSION};
use crate::protocol::response::Response;
use std::collections::BTreeMap;

/// What exists here only as nothing.
const ALWAYS_ZERO: [&str; 18] = [
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "queryThreadPoolQueueSize",
    "EndTransactionQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "pageCacheLockTimeMills",
    "dispatchBehindBytes",
    "remainTransientStoreBufferNumbs",
    "litePullThreadPoolQueueSize",
    "litePullThreadPoolQueueHeadWaitTimeMills",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "startAcceptSendRequestTimeStamp",
];

pub fn runtime(broker: &Broker, _command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let mut table = BTreeMap::new();
    for name in ALWAYS_ZERO {
        table.insert(name.to_owned(), "0".to_owned());
    }
    identity(broker, cx, &mut table);
    traffic(broker, cx, &mut table);
    log(cx, &mut table);
    Ok(Outcome::Reply(Response::with_body(bodies::encode(
        &KvTableBuf { table },
    ))))
}

fn identity(broker: &Broker, cx: &Context<'_>, table: &mut BTreeMap<String, String>) {
    let started = broker.rates.started().unwrap_or(cx.now);
    let lived_s = (cx.now.monotonic_us - started.monotonic_us) / 1_000_000;
    let (days, hours) = (lived_s / 86_400, lived_s / 3600 % 24);
    let (minutes, seconds) = (lived_s / 60 % 60, lived_s % 60);
    let runtime = format!("[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]");
    let desc = concat!("ringmq-", env!("CARGO_PKG_VERSION"));
    let mut put = |name: &str, value: String| table.insert(name.to_owned(), value);
    put("brokerVersion", VERSION.to_string());
    put("brokerVersionDesc", desc.to_owned());
    put("brokerActive", "true".to_owned());
    put("bootTimestamp", started.wall_ms.to_string());
    put("runtime", runtime);
}

fn traffic(broker: &Broker, cx: &Context<'_>, table: &mut BTreeMap<String, String>) {
    let counters = &*cx.counters;
    let mut put = |name: &str, value: String| table.insert(name.to_owned(), value);
    let rate = |of: fn(&Totals) -> u64| {
        let [short, middle, long] = broker.rates.per_second(cx.now, counters, of);
        format!("{short} {middle} {long}")
    };
    put("putTps", rate(|t| t.put));
    put("getFoundTps", rate(|t| t.found));
    put("getMissTps", rate(|t| t.missed));
    put("getTotalTps", rate(|t| t.found + t.missed));
    // 4.x wrote it with one r, 5.x has both.
    put("getTransferedTps", rate(|t| t.transferred));
    put("getTransferredTps", rate(|t| t.transferred));
    let (now, mornings) = (Totals::of(counters), broker.rates.mornings());
    put("msgPutTotalTodayNow", now.put.to_string());
    put("msgPutTotalTodayMorning", mornings.today.put.to_string());
    put(
        "msgPutTotalYesterdayMorning",
        mornings.yesterday.put.to_string(),
    );
    put("msgGetTotalTodayNow", now.transferred.to_string());
    put(
        "msgGetTotalTodayMorning",
        mornings.today.transferred.to_string(),
    );
    put(
        "msgGetTotalYesterdayMorning",
        mornings.yesterday.transferred.to_string(),
    );
    let (times, bytes) = (counters.messages_in, counters.message_bytes_in);
    put("putMessageTimesTotal", times.to_string());
    put("putMessageSizeTotal", bytes.to_string());
    put(
        "putMessageAverageSize",
        (bytes as f64 / times.max(1) as f64).to_string(),
    );
    put("putMessageFailedTimes", counters.sends_refused.to_string());
    put("holds", counters.holds_now.to_string());
    put("connections", counters.connections_now.to_string());
    put(
        "connectionsPausedSlow",
        counters.slow_readers_paused.to_string(),
    );
    put(
        "connectionsClosedSlow",
        counters.slow_readers_closed.to_string(),
    );
    put(
        "connectionsRefused",
        counters.connections_refused.to_string(),
    );
    put("framesMalformed", counters.frames_malformed.to_string());
    put("receivesStarved", counters.receives_starved.to_string());
    put("turns", counters.turns.to_string());
}

fn log(cx: &Context<'_>, table: &mut BTreeMap<String, String>) {
    let mut put = |name: &str, value: String| table.insert(name.to_owned(), value);
    let (start, end) = cx.store.log_bounds();
    put("commitLogMinOffset", start.0.to_string());
    put("commitLogMaxOffset", end.0.to_string());
    let unflushed = cx.store.written().0.saturating_sub(cx.store.flushed().0);
    put("remainHowManyDataToFlush", format!("{unflushed} B"));
    put("writable", cx.store.failure().is_none().to_string());
}
