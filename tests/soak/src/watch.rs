//! The client's use of resources: memory, descriptors, threads, registrations.

use crate::stand::Mount;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;

/// One sample of a client.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    /// Resident memory in KiB.
    pub(crate) resident: u64,
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
    /// The number of registrations that the server can access.
    pub(crate) registrations: u64,
    pub(crate) in_flight: u64,
    pub(crate) waiting: u64,
    pub(crate) inodes: u64,
    pub(crate) connects: u64,
    pub(crate) retransmits: u64,
    pub(crate) timeouts: u64,
    pub(crate) violations: u64,
}

impl Sample {
    pub(crate) fn of(mount: &Mount) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{}/status", mount.pid))
            .context("the client is gone")?;
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|rest| rest.trim_matches([':', ' ', '\t', 'k', 'B']).parse().ok())
                .unwrap_or(0)
        };
        let stats = mount.stats()?;
        let sum = |key: &str| -> u64 {
            let of = |connection: &Value| {
                let own = connection[key].as_u64();
                own.or_else(|| connection["counters"][key].as_u64())
                    .unwrap_or(0)
            };
            let all = stats["connections"].as_array();
            all.map_or(0, |all| all.iter().map(of).sum())
        };
        Ok(Sample {
            resident: field("VmRSS"),
            threads: field("Threads"),
            descriptors: fs::read_dir(format!("/proc/{}/fd", mount.pid))?.count() as u64,
            registrations: sum("open_registrations"),
            in_flight: sum("credits_in_use"),
            waiting: sum("waiting"),
            inodes: stats["cache"]["inodes"].as_u64().unwrap_or(0),
            connects: sum("connects"),
            retransmits: sum("retransmits"),
            timeouts: sum("timeouts"),
            violations: sum("violations"),
        })
    }
}

/// The samples of a run.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) samples: Vec<Sample>,
}

impl Watch {
    pub(crate) fn look(&mut self, mount: &Mount) -> Result<()> {
        self.samples.push(Sample::of(mount)?);
        Ok(())
    }

    /// The maximum of a quantity.
    pub(crate) fn most(&self, of: impl Fn(&Sample) -> u64) -> u64 {
        self.samples.iter().map(of).max().unwrap_or(0)
    }

    /// The medians of the second and of the last quarter, which differ if it grows without end.
    pub(crate) fn trend(&self, of: impl Fn(&Sample) -> u64) -> (u64, u64) {
        let n = self.samples.len();
        let median = |part: &[Sample]| {
            let mut values: Vec<_> = part.iter().map(&of).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        (
            median(&self.samples[n / 4..n / 2]),
            median(&self.samples[n - n / 4..]),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen() {
        let sample = |resident| Sample {
            resident,
            ..Sample::default()
        };
        let watch = Watch {
            samples: (0..100).map(sample).collect(),
        };
        assert_eq!(watch.trend(|s| s.resident), (37, 87));
        assert_eq!(watch.most(|s| s.resident), 99);
        assert_eq!(Watch::default().trend(|s| s.resident), (0, 0));
    }
}
