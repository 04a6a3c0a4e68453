//! From a snapshot to text: the formats, and one way to write each kind of family.

use super::families::Snapshot;
use crate::stats::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::fmt::Error;

/// Which text a reader takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// 0.0.4, what everything reads.
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// By the `Accept` header of a request.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The whole answer.
pub fn text(snapshot: Snapshot, format: Format) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut out = String::new();
    match format {
        Format::Prometheus => prometheus_text::encode(&mut out, &registry)?,
        Format::OpenMetrics => text::encode(&mut out, &registry)?,
    }
    Ok(out)
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.write(&mut Families { encoder })
    }
}

/// Labels of one row.
pub type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// A histogram of a row: bounds with what lies between them and the ones before, without the last, infinite one.
pub struct Buckets {
    pub sum: f64,
    pub count: u64,
    pub counts: Vec<(f64, u64)>,
}

impl Buckets {
    /// Of the powers of two from 1 up to `2^last`, every `step`th of them; values and bounds times `unit`.
    pub fn octaves(histogram: &Histogram, unit: f64, last: u32, step: usize) -> Self {
        let mut below = 0;
        let bounds = (0..=last).step_by(step).map(|power| 1_u64 << power);
        let counts = bounds.map(|bound| {
            let count = histogram.count_to(bound);
            (
                bound as f64 * unit,
                count - std::mem::replace(&mut below, count),
            )
        });
        Self {
            counts: counts.collect(),
            sum: histogram.sum() as f64 * unit,
            count: histogram.count(),
        }
    }

    /// Of counts with the last one for what lies above all bounds.
    pub fn listed(bounds: &[u64], counts: &[u64], sum: f64) -> Self {
        let bounds = bounds.iter().map(|bound| *bound as f64);
        Self {
            counts: bounds.zip(counts.iter().copied()).collect(),
            sum,
            count: counts.iter().sum(),
        }
    }
}

/// Writes families one after the other. One without rows is left out.
pub struct Families<'e> {
    encoder: DescriptorEncoder<'e>,
}

impl Families<'_> {
    /// The name is without `_total`, which the encoder adds.
    pub fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) -> Result<(), Error> {
        let write = |encoder: MetricEncoder<'_>, value| ConstCounter::new(value).encode(encoder);
        self.family(name, help, MetricType::Counter, rows, write)
    }

    pub fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) -> Result<(), Error> {
        let write = |encoder: MetricEncoder<'_>, value: u64| {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            ConstGauge::new(value).encode(encoder)
        };
        self.family(name, help, MetricType::Gauge, rows, write)
    }

    pub fn histogram<'a>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'a>, Buckets)>,
    ) -> Result<(), Error> {
        let write = |mut encoder: MetricEncoder<'_>, mut buckets: Buckets| {
            let below: u64 = buckets.counts.iter().map(|(_, count)| count).sum();
            let above = buckets.count - below;
            buckets.counts.push((f64::INFINITY, above));
            encoder.encode_histogram::<NoLabelSet>(
                buckets.sum,
                buckets.count,
                &buckets.counts,
                None,
            )
        };
        self.family(name, help, MetricType::Histogram, rows, write)
    }

    fn family<'a, V>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        rows: impl IntoIterator<Item = (Labels<'a>, V)>,
        write: impl Fn(MetricEncoder<'_>, V) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in rows {
            write(family.encode_family(&labels)?, value)?;
        }
        Ok(())
    }
}
