//! The variants of the server, by name.

/// A server that imitates habits of other servers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    /// Options of `nfsrdma-responder`.
    pub(crate) arguments: &'static [&'static str],
    /// The commands that the scheduler sends to the server between calls.
    pub(crate) commands: &'static [&'static str],
}

const RESTARTS: &[&str] = &["restart", "disconnect"];
const HANGUPS: &[&str] = &[
    "hangup WRITE",
    "hangup COMMIT",
    "hangup RENAME",
    "hangup REMOVE",
    "hangup CREATE",
    "hangup SETATTR",
    "hangup LINK",
];

const fn variant(
    name: &'static str,
    arguments: &'static [&'static str],
    commands: &'static [&'static str],
) -> Variant {
    Variant {
        name,
        arguments,
        commands,
    }
}

pub(crate) const ALL: &[Variant] = &[
    variant("plain", &[], &[]),
    variant("not-for-write", &["--pre-op", "not-for-write"], &[]),
    variant("never", &["--pre-op", "never"], &[]),
    variant("not-atomic", &["--pre-op", "not-atomic"], &[]),
    variant(
        "clock",
        &["--clock-offset", "-1h"],
        &["clock -5s", "clock +5s", "clock -1h", "clock +1h"],
    ),
    variant("one-second", &["--one-second-times"], &[]),
    variant("equal-fileids", &["--equal-fileids"], &[]),
    variant("jukebox", &["--fail", "ANY=JUKEBOX/150"], &[]),
    variant("delay", &["--delay", "ANY=1", "--delay", "WRITE=4"], &[]),
    variant("unstable", &["--fake-unstable"], RESTARTS),
    variant("lost-replies", &[], HANGUPS),
    variant(
        "all",
        &[
            "--fake-unstable",
            "--pre-op",
            "not-for-write",
            "--equal-fileids",
        ],
        &[
            "restart",
            "disconnect",
            "hangup WRITE",
            "hangup COMMIT",
            "clock -5s",
            "clock +1h",
        ],
    ),
];

/// A server that was not started here, with unknown habits.
pub(crate) const GIVEN: Variant = variant("given", &[], &[]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ() {
        let mut names: Vec<_> = ALL.iter().map(|v| v.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
