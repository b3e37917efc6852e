//! The numbers of CPUs that are online and that may ever be, from the lists in /sys.

use std::fs;
use std::io;

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The number of CPUs in a list like `0-3,8`.
fn count(list: &str) -> Option<u32> {
    let mut number = 0u32;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        number = number.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(number)
}

fn cpus(file: &str) -> io::Result<u32> {
    let unreadable = || io::Error::other(format!("{file} holds no list of CPUs"));
    count(&fs::read_to_string(file)?).ok_or_else(unreadable)
}

/// The number of possible CPUs, each of which has a queue, and of those that are online.
pub(super) fn possible_and_online() -> io::Result<(u16, u16)> {
    let small = |number: u32| u16::try_from(number).map_err(io::Error::other);
    Ok((small(cpus(POSSIBLE)?)?, small(cpus(ONLINE)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-127\n"), Some(128));
        assert_eq!(count("0-3,8,10-11\n"), Some(7));
        for bad in ["", "a", "3-1", "0-", "0-4294967295", "1,,2"] {
            assert_eq!(count(bad), None, "{bad:?}");
        }
    }
}
