//! Options of caches, their times and their coherence.

use super::super::LookupCache;
use super::super::draft::{Draft, SECONDS};
use super::super::entry::{Entry, accept, either, flag, refuse, value};

pub(super) static TABLE: &[Entry] = &[
    flag!("ac", |d, _| d.claim("ac", true)),
    flag!("noac", |d, _| {
        d.options.noac = true;
        d.claim("ac", false)
    }),
    value!("acregmin", SECONDS, Draft::actime),
    value!("acregmax", SECONDS, Draft::actime),
    value!("acdirmin", SECONDS, Draft::actime),
    value!("acdirmax", SECONDS, Draft::actime),
    value!("actimeo", SECONDS, Draft::actime),
    flag!("cto", |d, _| d.claim("cto", true)),
    flag!("nocto", |d, _| {
        d.options.fs.nocto = true;
        d.claim("cto", false)
    }),
    value!("lookupcache", "all, positive or none", |d, n, v| {
        d.options.fs.lookup_cache = match v {
            "all" => LookupCache::All,
            "pos" | "positive" => LookupCache::Positive,
            "none" => LookupCache::None,
            _ => return d.bad(n, "all, positive or none"),
        };
        d.claim(n, &v[..3])
    }),
    either!("rdirplus", |d, n, v| {
        d.options.fs.readdirplus = match v {
            None | Some("force") => true,
            Some("none") => false,
            Some(_) => return d.bad(n, "none or force, or stands alone"),
        };
        d.claim("rdirplus", d.options.fs.readdirplus)
    }),
    flag!("nordirplus", |d, _| {
        d.options.fs.readdirplus = false;
        d.claim("rdirplus", false)
    }),
    value!("nconnect", "a number from 1 to 16", |d, n, v| {
        let count = d.number(n, v, 1..=16, "a number from 1 to 16")?;
        d.options.nconnect = Some(count as u32);
        d.claim(n, count)
    }),
    refuse!(
        "fsc",
        "there is no FS-Cache here; leave it out, the page cache is set by cache=SIZE"
    ),
    accept!("nofsc"),
    accept!("nosharecache"),
    refuse!(
        "sharecache",
        "each mount has a cache of its own; leave it out, or mount once and bind-mount that"
    ),
    accept!("nosoftreval"),
    // Shown with softerr. Here, expired attributes are always fetched, which may fail.
    accept!("softreval"),
    value!("write", "lazy, eager or wait", |d, n, v| {
        match v {
            // Both are the behaviour here: written in the background, beginning after a few pages.
            "lazy" | "eager" => {}
            "wait" => d.wait = true,
            _ => return d.bad(n, "lazy, eager or wait"),
        }
        d.claim(n, v)
    }),
    accept!("alignwrite"),
    accept!("noalignwrite"),
    flag!("acl", |d, _| d.claim("acl", true)),
    flag!("noacl", |d, _| {
        d.options.client.acl = false;
        d.claim("acl", false)
    }),
];
