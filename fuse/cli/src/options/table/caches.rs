//! Options of caches, their times and their coherence.

use super::super::draft::{Draft, SECONDS};
use super::super::entry::*;
use super::super::{LEAST_CACHE, LookupCache};

pub(super) static SECTION: Section = Section {
    title: "Caching",
    lasts: "the kernel is told of it once",
    entries: &[
        Entry {
            forms: "acregmin=S acregmax=S",
            changes: true,
            default: "`3`, `60`",
            takes: SECONDS,
            help: "the shortest and the longest time, in seconds, for which the attributes of a file \
            are valid. It begins at the minimum after a change and doubles, up to the maximum, \
            each time when the server reports the attributes unchanged",
            action: Action::Set(Draft::actime),
            show: |o, _, w| {
                if !o.noac {
                    w.value("acregmin", o.fs.times.acregmin.as_secs());
                    w.value("acregmax", o.fs.times.acregmax.as_secs());
                }
            },
        },
        Entry {
            forms: "acdirmin=S acdirmax=S",
            changes: true,
            default: "`30`, `60`",
            takes: SECONDS,
            help: "the same for directories, and for the names in them",
            action: Action::Set(Draft::actime),
            show: |o, _, w| {
                if !o.noac {
                    w.value("acdirmin", o.fs.times.acdirmin.as_secs());
                    w.value("acdirmax", o.fs.times.acdirmax.as_secs());
                }
            },
        },
        Entry {
            forms: "actimeo=S",
            changes: true,
            takes: SECONDS,
            help: "sets all four",
            action: Action::Set(Draft::actime),
            ..Entry::NONE
        },
        Entry {
            forms: "ac noac",
            default: "`ac`",
            help: "`noac` is `actimeo=0,sync`: attributes are never taken from the cache, and each \
            write(2) waits for stable storage. Several machines see each other's changes at \
            once, slowly",
            ..toggle!(noac, "noac")
        },
        Entry {
            forms: "cto nocto",
            changes: true,
            default: "`cto`",
            help: "close-to-open: open(2) asks the server whether the file has changed. `nocto` saves \
            one call for each open, and is for files that nobody changes",
            ..toggle!(fs.nocto, "nocto")
        },
        Entry {
            forms: "lookupcache=all|positive|none",
            changes: true,
            default: "`all`",
            takes: "all, positive or none",
            help: "which results of LOOKUP are remembered: with `all` names that exist and names that \
            do not; with `positive`, or `pos`, only names that exist, so that a file which \
            another client created is found at once; with `none` no names",
            show: |o, n, w| match o.fs.lookup_cache {
                LookupCache::All => {}
                LookupCache::Positive => w.value(n, "positive"),
                LookupCache::None => w.value(n, "none"),
            },
            ..choice!(
                fs.lookup_cache,
                "all" => LookupCache::All,
                "positive" => LookupCache::Positive,
                "pos" => LookupCache::Positive,
                "none" => LookupCache::None
            )
        },
        Entry {
            forms: "rdirplus rdirplus=force nordirplus rdirplus=none",
            changes: true,
            default: "`rdirplus`",
            takes: "none or force, or stands alone",
            help: "use READDIRPLUS, which returns attributes with the names, for listings. \
            `rdirplus=force` is `rdirplus`, and `rdirplus=none` is `nordirplus`",
            action: Action::Set(|d, n, v| {
                d.options.fs.readdirplus = match (n, v) {
                    ("rdirplus", "" | "force") => true,
                    ("nordirplus", _) | (_, "none") => false,
                    _ => return d.bad(),
                };
                d.claim("rdirplus", d.options.fs.readdirplus)
            }),
            show: |o, _, w| {
                if !o.fs.readdirplus {
                    w.flag("nordirplus");
                }
            },
        },
        Entry {
            forms: "write=lazy|eager|wait",
            default: "`lazy`",
            help: "`wait` is `sync`; with the others data is written behind",
            action: Action::Set(|d, n, v| {
                match v {
                    // Both are the behaviour here: written in the background, beginning after a few pages.
                    "lazy" | "eager" => {}
                    "wait" => d.wait = true,
                    _ => return d.bad(),
                }
                d.claim(n, v)
            }),
            ..Entry::NONE
        },
        Entry {
            forms: "cache=SIZE",
            changes: true,
            default: "`256M`, less in a small container",
            takes: "16M to 1T",
            help: "memory for data that is read ahead or not yet on the server's stable storage, \
            16M to 1T. Messages, names and objects come in addition ([how \
            much](TUNING.md#memory-of-a-mount)): about 0.5 KiB for each object that the kernel has \
            in memory (slabtop(1): `fuse_inode`). The memory is taken as it is needed and given \
            back when the mount is idle",
            ..size!(LEAST_CACHE..=1 << 40, cache)
        },
        Entry {
            forms: "dirty=SIZE",
            changes: true,
            default: "a quarter of the cache",
            takes: "1M to the size of the cache",
            help: "memory, in bytes, that unwritten data may take before write(2) waits, at least 1M \
            and at most three quarters of the cache (a larger value, up to the size of the \
            cache, has that effect). If `cache` is not given, the cache grows to twice as much \
            if necessary",
            show: |o, n, w| w.value(n, show_size(o.dirty_limit())),
            ..size!(1 << 20..=1 << 40, dirty)
        },
        Entry {
            forms: "readahead=SIZE",
            changes: true,
            default: "`4M`",
            takes: "0 to 1G",
            help: "bytes read ahead of a sequential reader, up to 1G, and to 3/16 of `cache`; 0 turns it \
            off. The kernel's own 128 KiB are not changed. nfs(5) has no such option",
            ..size!(0..=1 << 30, fs.readahead_bytes)
        },
        accept(
            "nofsc nosharecache",
            "accepted: this is always the case, as there is no FS-Cache and each mount has a \
            page cache of its own",
        ),
        // The kernel shows softreval with softerr.
        accept(
            "softreval nosoftreval alignwrite noalignwrite",
            "accepted, without effect: attributes that are too old are always asked for again, \
            as with `nosoftreval`",
        ),
    ],
};
