//! What limits a mount, in words, from what was measured.

use crate::path_mtu::LEAST_MTU;
use serde::Serialize;

/// Fewer credits than this make calls wait for each other.
const FEW_CREDITS: u32 = 8;
/// The time that stable storage takes is long from here on, in microseconds, and if it is so many times
/// that of a READ.
const SLOW_DISK_US: f64 = 3000.0;
const SLOW_DISK_TIMES: f64 = 4.0;
/// The way to the server and back is long from here on, in microseconds.
const FAR_US: f64 = 2000.0;
/// A mount that reaches this share of what the link and the server allow is as fast as it can be.
const GOOD: f64 = 0.6;

/// What the verdict goes by. Times are medians in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    pub(super) credits: u32,
    /// The largest packet, in bytes, where packets matter.
    pub(super) packet: Option<u32>,
    pub(super) null_us: f64,
    pub(super) read_us: f64,
    /// The slower of a stable WRITE, and of a WRITE and its COMMIT.
    pub(super) stable_us: f64,
    /// The shares of what is possible that large reads and writes reach, 0 to 1 and more.
    pub(super) read_share: f64,
    pub(super) write_share: f64,
}

/// A limit that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Cause {
    /// `credits`, `packets`, `disk`, `distance`, `machine` or `none`.
    pub(super) cause: &'static str,
    pub(super) text: String,
}

fn cause(cause: &'static str, text: impl Into<String>) -> Cause {
    Cause {
        cause,
        text: text.into(),
    }
}

/// The limits, the one that explains the most first. There is always one.
pub(super) fn causes(measured: &Measured) -> Vec<Cause> {
    let mut found = Vec::new();
    let Measured {
        credits,
        packet,
        null_us,
        read_us,
        stable_us,
        read_share,
        write_share,
    } = *measured;
    let ms = |micros: f64| format!("{:.1} ms", micros / 1e3);
    if (1..FEW_CREDITS).contains(&credits) {
        let calls = match credits {
            1 => "1 credit: each call waits until the one before has ended".to_owned(),
            few => format!("{few} credits: no more calls can be under way"),
        };
        found.push(cause(
            "credits",
            format!("the server grants only {calls}; give it more credits or threads, or leave credits= out"),
        ));
    }
    if let Some(bytes) = packet.filter(|bytes| *bytes < LEAST_MTU) {
        found.push(cause(
            "packets",
            format!("packets to the server have at most {bytes} bytes, so large data takes many; raise the MTU of the path to 1500 or more"),
        ));
    }
    let disk_us = stable_us - read_us;
    if disk_us > SLOW_DISK_US && stable_us > SLOW_DISK_TIMES * read_us {
        found.push(cause(
            "disk",
            format!(
                "the server's disk is slow: 4 KiB take {} to be in stable storage, and {} to be read; fsync(2), close(2) and small files wait for it",
                ms(stable_us),
                ms(read_us)
            ),
        ));
    }
    if null_us > FAR_US {
        found.push(cause(
            "distance",
            format!(
                "a call takes {} there and back, whatever it does: make several at a time",
                ms(null_us)
            ),
        ));
    }
    if found.is_empty() {
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        let shares = format!(
            "large reads reach {} and large writes {} of what the link and the server allow",
            percent(read_share),
            percent(write_share)
        );
        found.push(match read_share.min(write_share) >= GOOD {
            true => cause("none", format!("nothing is in the way: {shares}")),
            false => cause(
                "machine",
                format!("{shares}: the rest is spent on this machine, by the kernel, FUSE and the processor; see its load, and workers= and nconnect="),
            ),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD_ONE: Measured = Measured {
        credits: 64,
        packet: Some(1500),
        null_us: 50.0,
        read_us: 70.0,
        stable_us: 400.0,
        read_share: 0.9,
        write_share: 0.8,
    };

    fn first(measured: Measured) -> &'static str {
        causes(&measured)[0].cause
    }

    #[test]
    fn each_cause_is_named() {
        assert_eq!(first(GOOD_ONE), "none");
        let of = |change: fn(&mut Measured)| {
            let mut measured = GOOD_ONE;
            change(&mut measured);
            first(measured)
        };
        assert_eq!(of(|m| m.credits = 1), "credits");
        assert_eq!(of(|m| m.packet = Some(600)), "packets");
        assert_eq!(of(|m| m.stable_us = 20_000.0), "disk");
        assert_eq!(of(|m| m.read_share = 0.2), "machine");
        assert_eq!(of(|m| m.packet = None), "none");
        assert_eq!(of(|m| m.credits = 0), "none");
    }

    #[test]
    fn a_server_far_away_has_no_slow_disk() {
        let far = Measured {
            null_us: 20_000.0,
            read_us: 20_100.0,
            stable_us: 21_000.0,
            ..GOOD_ONE
        };
        assert_eq!(first(far), "distance");
        assert_eq!(causes(&far).len(), 1);
    }
}
