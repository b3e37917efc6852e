//! The list of cases.

mod concurrent;
mod data;
mod directory;
mod identity;
mod names;
mod programs;
mod trees;

use crate::place::Place;
use anyhow::Result;

/// A case: one check.
pub(crate) struct Case {
    pub name: &'static str,
    pub what: &'static str,
    /// Whether it takes more than a few seconds.
    pub long: bool,
    pub run: fn(&Place) -> Result<()>,
}

const fn short(name: &'static str, what: &'static str, run: fn(&Place) -> Result<()>) -> Case {
    Case {
        name,
        what,
        long: false,
        run,
    }
}

const fn long(name: &'static str, what: &'static str, run: fn(&Place) -> Result<()>) -> Case {
    Case {
        name,
        what,
        long: true,
        run,
    }
}

/// Every case, short ones first.
pub(crate) fn all() -> Vec<Case> {
    vec![
        short(
            "objects",
            "every kind of object is made, seen, linked, renamed, removed",
            names::objects,
        ),
        short("errors", "each refusal has its own errno", names::errors),
        short(
            "attributes",
            "mode, owner, size and times are set and kept",
            names::attributes,
        ),
        short(
            "rename",
            "renames replace, refuse and follow POSIX",
            names::rename,
        ),
        short(
            "silly",
            "an unlinked or replaced open file stays readable",
            names::silly,
        ),
        short(
            "symlinks",
            "links of every length are read back",
            names::symlinks,
        ),
        short(
            "statfs",
            "the size of the file system is told",
            names::statfs,
        ),
        short(
            "sizes",
            "files of every odd size are the same on both sides",
            data::sizes,
        ),
        short(
            "random-io",
            "random reads, writes, truncations agree with a model",
            data::random_io,
        ),
        short("append", "appending writers lose nothing", data::append),
        short("offsets", "offsets beyond 4 GiB, and holes", data::offsets),
        short("direct", "O_DIRECT and cached access agree", data::direct),
        short("mmap", "shared and private mappings", data::mmap),
        short(
            "durable",
            "data are at the server after close, fsync and sync",
            data::durable,
        ),
        short("bulk", "64 MiB by checksum", data::bulk),
        short(
            "exclusive",
            "of many exclusive creates one wins",
            concurrent::exclusive,
        ),
        short(
            "writers",
            "concurrent writers and readers of one file and of many",
            concurrent::writers,
        ),
        short(
            "churn",
            "many threads create, rename and remove in one directory",
            concurrent::churn,
        ),
        short(
            "listing",
            "a large directory lists completely and once",
            directory::listing,
        ),
        short(
            "shrinking",
            "a directory listed while it is emptied",
            directory::shrinking,
        ),
        short(
            "identity",
            "calls carry the caller's user, group and groups",
            identity::identity,
        ),
        short(
            "tree",
            "a tree is copied, compared, renamed, truncated, removed",
            trees::tree,
        ),
        long("tar", "tar unpacks and packs", programs::tar),
        long(
            "sqlite",
            "sqlite with its own integrity check",
            programs::sqlite,
        ),
        long("git", "git clone and git fsck", programs::git),
        long("cargo", "a cargo build", programs::cargo),
    ]
}
