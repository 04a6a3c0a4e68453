//! `ringmq bench race`: a pull and the message that it waits for, at nearly the same moment. A broker that looks for
//! messages, and then parks the pull, can miss the one that comes in between.

use super::Interrupt;
use super::arguments::value;
use super::load::{self, Target};
use super::pair::Pair;
use super::process::rounded;
use super::report::{Latencies, Report};
use super::verify::Findings;
use clap::ArgMatches;
use serde_json::{Map, json};
use std::time::{Duration, Instant, SystemTime};

/// Deliveries that took longer are counted, for each of these.
const LATE: [(&str, Duration); 3] = [
    ("over 1 ms", Duration::from_millis(1)),
    ("over 100 ms", Duration::from_millis(100)),
    ("over 1 s", Duration::from_secs(1)),
];
/// The report, and why it ended early if it did.
pub async fn measure(
    matches: &ArgMatches,
    interrupt: &Interrupt,
    target: Target,
) -> Result<(Report, Option<String>), String> {
    let rounds: u64 = value(matches, "rounds");
    let skew = i64::from(value::<u32>(matches, "skew"));
    let mut pair = Pair::connect(&target, 0).await?;
    let start = Instant::now();
    let began = SystemTime::now();
    let (mut latencies, mut findings) = (Latencies::new(), Findings::default());
    let (mut late, mut done) = ([0_u64; LATE.len()], 0);
    let bar = load::progress(Duration::from_millis(rounds));
    let mut failure = None;
    while done < rounds && !interrupt.is_set() {
        // Every skew in turn, to the microsecond: sends behind the pull above 0, before it below.
        let micros = done as i64 % (2 * skew + 1) - skew;
        let round = pair.round(done, micros, &mut findings).await;
        let took = match round {
            Ok(took) => took,
            Err(reason) => {
                failure = Some(reason);
                break;
            }
        };
        latencies.record(took.as_nanos() as u64);
        for (count, (_, limit)) in late.iter_mut().zip(LATE) {
            *count += u64::from(took > limit);
        }
        done += 1;
        bar.set_position(done);
    }
    bar.finish_and_clear();
    let mut values = Map::new();
    values.insert("broker".to_owned(), json!(target.address.to_string()));
    values.insert("body bytes".to_owned(), json!(target.body));
    values.insert("skew up to microseconds".to_owned(), json!(skew));
    values.insert("rounds".to_owned(), json!(done));
    for (count, (name, _)) in late.into_iter().zip(LATE) {
        values.insert(name.to_owned(), json!(count));
    }
    values.insert("wrong".to_owned(), json!(findings.count));
    values.insert("ended early".to_owned(), json!(done < rounds));
    let report = Report {
        name: "race",
        values,
        latencies: vec![("later of both to delivery", latencies)],
        findings: findings.lines,
        began,
        seconds: rounded(start.elapsed().as_secs_f64()),
    };
    Ok((report, failure))
}
