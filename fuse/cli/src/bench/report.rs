//! The result of a benchmark, as a table with a verdict and as JSON.

use super::timing::{Percentiles, Times};
use super::verdict::Cause;
use crate::failure::{Exit, Failure};
use crate::output::{self, plain};
use crate::stats::text::time;
use serde::Serialize;
use std::fmt::Write;

/// The rows of large data.
pub(super) const WRITE: &str = "write 1 MiB";
pub(super) const READ: &str = "read 1 MiB";

/// One measurement.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// `MB/s` (powers of 1000), or `/s` for operations.
    unit: &'static str,
    mount: f64,
    /// What the link and the server allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    possible: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<Percentiles>,
}

impl Row {
    fn new(name: &'static str, unit: &'static str, mount: f64, possible: Option<f64>) -> Row {
        let possible = possible.filter(|possible| *possible > 0.0);
        Row {
            name,
            unit,
            mount,
            possible,
            share: possible.map(|possible| mount / possible),
            times: None,
        }
    }

    pub(super) fn large(name: &'static str, mount: f64, possible: f64) -> Row {
        Row::new(name, "MB/s", mount, Some(possible))
    }

    pub(super) fn rate(name: &'static str, mount: f64) -> Row {
        Row::new(name, "/s", mount, None)
    }

    pub(super) fn single(name: &'static str, times: &Times, possible: Option<f64>) -> Row {
        let times = times.percentiles();
        let mount = times.map_or(0.0, |of| 1e6 / of.mean_us);
        Row {
            times,
            ..Row::new(name, "/s", mount, possible)
        }
    }

    fn line(&self) -> String {
        let number = |number: f64| match self.unit {
            "MB/s" => format!("{number:.1} MB/s"),
            _ => format!("{number:.0} /s"),
        };
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let at =
            |of: fn(&Percentiles) -> f64| self.times.as_ref().map(|times| time(Some(of(times))));
        format!(
            "{:<20}{:>14}{:>14}{:>7}{:>10}{:>10}\n",
            self.name,
            number(self.mount),
            shown(self.possible.map(number)),
            shown(self.share.map(|share| format!("{:.0}%", share * 100.0))),
            shown(at(|of| of.p50_us)),
            shown(at(|of| of.p99_us)),
        )
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) mount: String,
    pub(super) source: String,
    pub(super) version: String,
    pub(super) link: String,
    pub(super) credits: u32,
    pub(super) seconds: f64,
    /// Of a call that does nothing.
    pub(super) round_trip: Option<Percentiles>,
    pub(super) rows: Vec<Row>,
    pub(super) causes: Vec<Cause>,
}

impl Report {
    pub(super) fn print(&self, as_json: bool) -> Result<(), Failure> {
        match as_json {
            true => {
                let text = serde_json::to_string_pretty(self).map_err(|error| {
                    Failure::new(Exit::Internal, format!("cannot write JSON: {error}"))
                })?;
                output::json(&(text + "\n")).map(drop)
            }
            false => output::result(&self.text()).map(drop),
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{:<20}{:>14}{:>14}{:>7}{:>10}{:>10}\n",
            "", "mount", "possible", "share", "p50", "p99"
        );
        text.extend(self.rows.iter().map(Row::line));
        if let Some(times) = &self.round_trip {
            let (p50, p99) = (time(Some(times.p50_us)), time(Some(times.p99_us)));
            // Writing to a String does not fail.
            let _ = writeln!(text, "{:<55}{p50:>10}{p99:>10}", "call without work");
        }
        let _ = writeln!(
            text,
            "\n{} on {}, {} credits, {}",
            plain(&self.source),
            plain(&self.mount),
            self.credits,
            plain(&self.link)
        );
        for Cause { text: why, .. } in &self.causes {
            let _ = writeln!(text, "verdict: {why}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared() {
        assert_eq!(
            Row::large(READ, 50.0, 200.0).line(),
            "read 1 MiB               50.0 MB/s    200.0 MB/s    25%         -         -\n"
        );
        assert_eq!(Row::rate("list, stat", 7.0).share, None);
        assert_eq!(Row::large(READ, 50.0, 0.0).share, None);
    }
}
