//! The resources that this process uses.

use super::document::Process;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A size in /proc/self/status (proc(5)), in bytes.
fn kilobytes(status: &str, name: &str) -> u64 {
    number(status, name).saturating_mul(1024)
}

fn number(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.trim_start_matches(':').split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The usage of this process at this moment. Fields that the system does not provide are zero.
pub(super) fn usage() -> Process {
    let cpu = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    Process {
        cpu_ns: nfsrdma_rdma::nanoseconds(cpu),
        resident_bytes: kilobytes(&status, "VmRSS"),
        virtual_bytes: kilobytes(&status, "VmSize"),
        // One descriptor is that of the directory itself.
        open_descriptors: std::fs::read_dir("/proc/self/fd")
            .map_or(0, |entries| entries.count().saturating_sub(1) as u64),
        descriptor_limit: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        threads: number(&status, "Threads"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_this_process() {
        let status = "Name:\tx\nVmSize:\t     200 kB\nVmRSS:\t 17 kB\nThreads:\t3\n";
        assert_eq!(kilobytes(status, "VmRSS"), 17 * 1024);
        assert_eq!((number(status, "Threads"), number(status, "None")), (3, 0));
        let used = usage();
        assert!(used.resident_bytes > 0 && used.resident_bytes <= used.virtual_bytes);
        assert!(used.open_descriptors > 0 && used.open_descriptors <= used.descriptor_limit);
        assert!(used.threads > 0);
    }
}
