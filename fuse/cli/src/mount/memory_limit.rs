//! The memory limit of this process's control groups, as of a container. The kernel kills a mount that does not fit into
//! it, and each successor, too: data that outlive a process count again.

use crate::mount::settings;
use crate::options::size::show_size;
use crate::options::{LEAST_CACHE, Options, split};
use std::fs;
use std::path::Path;

/// What a limit should have besides the cache (docs/TUNING.md), in bytes.
const BESIDES_CACHE: u64 = 128 << 20;
/// What a process takes besides its buffers, in bytes.
const BESIDES_BUFFERS: u64 = 64 << 20;

/// Makes a cache of the default size fit into the limit, in `options` and in their text. Returns what to say of it.
pub(crate) fn fit(options: &mut Options, text: &mut String) -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let limit = smallest(&groups, Path::new("/sys/fs/cgroup"))?;
    fit_into(limit, options, text)
}

/// The smallest limit, in bytes, of these groups (cgroups(7)) and of those above them. Inside a container only the
/// container's own one may be visible, at the top.
fn smallest(groups: &str, top: &Path) -> Option<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        let (top, name) = match controllers {
            "" => (top.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (top.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for group in Path::new(group.trim_start_matches('/')).ancestors() {
            let limit = fs::read_to_string(top.join(group).join(name)).unwrap_or_default();
            // Without one it is the word `max`, or more than any machine has.
            limits.extend(limit.trim().parse::<u64>());
        }
    }
    limits.into_iter().min()
}

fn fit_into(limit: u64, options: &mut Options, text: &mut String) -> Option<String> {
    let mut line = None;
    let is_given = |word: &String| word.starts_with("cache=") || word.starts_with("dirty=");
    let room = limit.saturating_sub(BESIDES_CACHE).max(LEAST_CACHE) >> 20 << 20;
    if room < options.cache && !split(text).iter().any(is_given) {
        options.cache = room;
        let cache = format!("cache={}", show_size(room));
        // A successor reads this.
        text.push_str(&format!(",{cache}"));
        line = Some(format!(
            "the memory limit of the control group is {} MiB: {cache} is used",
            limit >> 20
        ));
    }
    let needs = settings::pool_bytes(options, &settings::file_system(options)) as u64;
    let needs = needs + BESIDES_BUFFERS;
    if needs <= limit {
        return line;
    }
    Some(format!(
        "the memory limit of the control group is {} MiB, and this mount may take {} MiB: raise the limit, or give a \
         smaller cache= (at least 16M), lest the kernel kill it",
        limit >> 20,
        needs >> 20
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_counts() {
        let top = std::env::temp_dir().join(format!("nfsrdma-groups-{}", std::process::id()));
        for (file, limit) in [
            ("memory.max", "max\n"),
            ("a/memory.max", "1000\n"),
            ("a/b/memory.max", "3000\n"),
            ("c/memory.max", "1\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/memory.limit_in_bytes", "2000\n"),
        ] {
            let file = top.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, limit).unwrap();
        }
        let found = [
            "0::/a/b\n",
            "0::/a/not-visible\n",
            "9:cpu:/c\n4:memory,hugetlb:/a:b\n1:name=systemd:/a\n",
            "4:memory:/a\n0::/\n",
            "0::/\n",
            "none",
            "",
        ]
        .map(|groups| smallest(groups, &top));
        fs::remove_dir_all(&top).unwrap();
        let all = 9223372036854771712;
        assert_eq!(
            found,
            [
                Some(1000),
                Some(1000),
                Some(all),
                Some(2000),
                None,
                None,
                None
            ]
        );
    }

    #[test]
    fn a_cache_fits_into_the_limit_unless_its_size_was_given() {
        for (mib, text, cache, said) in [
            (384, "", 256, None),
            (300, "ro", 172, Some("is used")),
            (128, "ro", 16, Some("is used")),
            (100, "ro", 16, Some("may take 128")),
            (300, "cache=256M", 256, Some("may take 324")),
            (300, "cache=64M", 64, None),
            (128, "dirty=8M", 256, Some("raise the limit")),
        ] {
            let (mut options, mut text) = (Options::parse(text).unwrap(), text.to_owned());
            // As many connections on each machine.
            options.nconnect = Some(4);
            let line = fit_into(mib << 20, &mut options, &mut text);
            assert_eq!(options.cache, cache << 20, "{mib} {text}");
            assert_eq!(line.is_some(), said.is_some(), "{mib} {text}: {line:?}");
            assert!(
                line.unwrap_or_default().contains(said.unwrap_or_default()),
                "{mib} {text}"
            );
            assert_eq!(Options::parse(&text).unwrap().cache, options.cache);
        }
    }
}
