//! What was measured: a table for a reader, JSON and an HdrHistogram log for programs.

use super::process::rounded;
use crate::cli::table::aligned;
use clap::ArgMatches;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

const NANOS_MAX: u64 = 600_000_000_000;
const QUANTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("max", 1.0),
];

/// Latencies of one kind, in nanoseconds; what lies beyond ten minutes counts as that.
#[derive(Debug, Clone)]
pub struct Latencies(pub Histogram<u64>);

impl Latencies {
    pub fn new() -> Self {
        let histogram = Histogram::new_with_max(NANOS_MAX, 3);
        Self(histogram.expect("three digits up to ten minutes"))
    }

    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }
}

pub struct Report {
    pub name: &'static str,
    /// Settings and counts, in the order of the table.
    pub values: Map<String, Value>,
    pub latencies: Vec<(&'static str, Latencies)>,
    pub findings: Vec<String>,
    pub began: SystemTime,
    pub seconds: f64,
}

fn micros(nanos: u64) -> f64 {
    rounded(nanos as f64 / 1e3)
}

impl Report {
    pub fn table(&self) -> String {
        let mut out = format!("{}\n", self.name);
        let mut rows = Vec::new();
        for (name, value) in &self.values {
            let Value::Object(parts) = value else {
                rows.push(vec![format!("  {name}"), plain(value)]);
                continue;
            };
            for (part, value) in parts {
                rows.push(vec![format!("  {name} {part}"), plain(value)]);
            }
        }
        // The heading of columns that need none.
        out.push_str(aligned(&["", ""], &rows).trim_start_matches('\n'));
        if !self.latencies.is_empty() {
            let names = QUANTILES.iter().map(|(name, _)| *name);
            let heading: Vec<&str> = ["microseconds", "count"].into_iter().chain(names).collect();
            let rows: Vec<Vec<String>> = self.latencies.iter().map(latency_row).collect();
            let _ = write!(out, "\n{}", aligned(&heading, &rows));
        }
        for finding in &self.findings {
            let _ = writeln!(out, "WRONG: {finding}");
        }
        out
    }

    pub fn json(&self) -> Value {
        let latencies = self.latencies.iter().map(|(name, latencies)| {
            let mut row = Map::new();
            row.insert("count".to_owned(), json!(latencies.0.len()));
            row.insert("mean".to_owned(), json!(rounded(latencies.0.mean() / 1e3)));
            for (quantile, part) in QUANTILES {
                let value = latencies.0.value_at_quantile(part);
                row.insert(quantile.to_owned(), json!(micros(value)));
            }
            ((*name).to_owned(), Value::Object(row))
        });
        json!({
            "benchmark": self.name,
            "version": env!("CARGO_PKG_VERSION"),
            "seconds": rounded(self.seconds),
            "values": self.values,
            "latencyMicros": latencies.collect::<Map<String, Value>>(),
            "wrong": self.findings,
        })
    }

    /// The log of HdrHistogram's tools; values in it are nanoseconds, a tag for each kind.
    fn histogram_log(&self) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        let mut serializer = V2DeflateSerializer::new();
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment(&format!("ringmq bench {}; nanoseconds", self.name))
            .with_start_time(self.began)
            .with_max_value_divisor(1e6)
            .begin_log_with(&mut out, &mut serializer)
            .map_err(|error| error.to_string())?;
        for (name, latencies) in &self.latencies {
            let tag = name.replace(' ', "-");
            let length = Duration::from_secs_f64(self.seconds);
            log.write_histogram(&latencies.0, Duration::ZERO, length, Tag::new(&tag))
                .map_err(|error| format!("{error:?}"))?;
        }
        Ok(out)
    }

    /// Prints the table and writes the files that were asked for. **Errors**: a file can't be written; something was
    /// wrong with what came.
    pub fn publish(&self, matches: &ArgMatches) -> Result<(), String> {
        crate::cli::print(&self.table())?;
        let write = |path: &PathBuf, bytes: &[u8]| {
            let written = std::fs::write(path, bytes);
            written.map_err(|error| format!("{}: {error}", path.display()))
        };
        if let Some(path) = matches.get_one::<PathBuf>("json") {
            write(path, format!("{:#}\n", self.json()).as_bytes())?;
        }
        if let Some(path) = matches.get_one::<PathBuf>("hgrm") {
            write(path, &self.histogram_log()?)?;
        }
        match self.findings.len() {
            0 => Ok(()),
            _ => Err("what came is not what was sent".to_owned()),
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn latency_row((name, latencies): &(&'static str, Latencies)) -> Vec<String> {
    let mut row = vec![(*name).to_owned(), latencies.0.len().to_string()];
    for (_, part) in QUANTILES {
        let value = latencies.0.value_at_quantile(part);
        row.push(format!("{:.1}", micros(value)));
    }
    row
}
