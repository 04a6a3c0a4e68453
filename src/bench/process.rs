//! What a server costs, from `/proc` of its process.

use serde_json::{Value, json};
use std::fs;

/// Sums over all threads at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    cpu_micros: u64,
    switches: u64,
    resident_kib: u64,
}

impl Usage {
    /// **Errors**: no such process, in one line.
    pub fn read(pid: u32) -> Result<Self, String> {
        let text = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
        };
        let stat = text("stat")?;
        // The name in parentheses may hold anything; times are the 14th and 15th field.
        let behind_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let ticks = behind_name.split(' ').skip(11).take(2);
        let ticks: u64 = ticks.filter_map(|n| n.parse::<u64>().ok()).sum();
        let per_second = rustix::param::clock_ticks_per_second();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| error.to_string())?;
        let mut switches = 0;
        for task in tasks.flatten() {
            // A thread may end in between.
            let name = task.file_name();
            let status = text(&format!("task/{}/status", name.display())).unwrap_or_default();
            switches += numbers(&status, "ctxt_switches").sum::<u64>();
        }
        Ok(Self {
            cpu_micros: ticks * 1_000_000 / per_second,
            switches,
            resident_kib: numbers(&text("status")?, "VmRSS").sum(),
        })
    }

    /// From `self` to `later`, without messages.
    pub fn while_idle(self, later: Self, seconds: f64) -> Value {
        let mut cost = self.until(later, seconds.max(1e-9), 0);
        if let Some(parts) = cost.as_object_mut() {
            parts.retain(|name, _| !name.ends_with("PerMessage"));
        }
        cost
    }

    /// Resident memory that each of `count` things has added.
    pub fn growth(self, later: Self, count: u32) -> Value {
        let grown = later.resident_kib as f64 - self.resident_kib as f64;
        json!(rounded(grown / f64::from(count)))
    }

    /// From `self` to `later`, for each of `messages`.
    pub fn until(self, later: Self, seconds: f64, messages: u64) -> Value {
        let cpu = later.cpu_micros.saturating_sub(self.cpu_micros) as f64;
        let switches = later.switches.saturating_sub(self.switches) as f64;
        let share = messages.max(1) as f64;
        json!({
            "cpuPercent": rounded(cpu / seconds / 1e4),
            "cpuMicrosPerMessage": rounded(cpu / share),
            "contextSwitches": switches,
            "contextSwitchesPerMessage": rounded(switches / share),
            "residentKiB": later.resident_kib,
        })
    }
}

/// Three digits behind the point.
pub fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn numbers<'t>(status: &'t str, name: &'t str) -> impl Iterator<Item = u64> + 't {
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    let values = lines.filter(move |(key, _)| key.ends_with(name));
    values.filter_map(|(_, value)| value.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_status_file() {
        let status =
            "VmRSS:\t  1234 kB\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(numbers(status, "ctxt_switches").sum::<u64>(), 7);
        assert_eq!(numbers(status, "VmRSS").sum::<u64>(), 1234);
    }

    #[test]
    fn own_process_is_read() {
        let usage = Usage::read(std::process::id()).expect("it runs");
        assert!(usage.resident_kib > 0 && usage.switches > 0, "{usage:?}");
    }
}
