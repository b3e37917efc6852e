//! The differences that are accepted, each with its reason.
//!
//! Every row is stated in docs/SEMANTICS.md, "Differences from a local file system", and is as
//! narrow as it can be. A row has a reason that NFSv3 (RFC 1813) forces or that Linux's own
//! NFSv3 client shares; everything else is a defect.
//!
//! A *refusal* is a call that the mount refuses and that a local file system may run. It is
//! made on the mount first; if it is refused there in the way the row says, it is not made on
//! the local file system, so that the two trees stay alike.

use crate::call::{Call, Reply, Step};
use crate::compare::Difference;
use crate::observe::errno_name;

/// A call that may be refused on the mount.
pub(crate) struct Refusal {
    pub(crate) name: &'static str,
    pub(crate) reason: &'static str,
    condition: Condition,
    matches: fn(&Call) -> bool,
    errnos: &'static [i32],
}

/// When a refusal is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    /// While a directory of the export has hidden names and no others.
    OnlyHidden,
    /// If what the descriptor stands for has no links any more.
    Removed,
}

/// A field whose two values may differ.
pub(crate) struct Tolerance {
    pub(crate) name: &'static str,
    pub(crate) reason: &'static str,
    matches: fn(&Step, &Difference) -> bool,
}

pub(crate) const REFUSALS: &[Refusal] = &[
    Refusal {
        name: "no O_TMPFILE",
        reason: "NFSv3 has no file without a name (RFC 1813 section 3.3.8)",
        condition: Condition::Always,
        matches: |call| matches!(call, Call::Open { flags, .. } if flags.has(libc::O_TMPFILE)),
        errnos: &[libc::EOPNOTSUPP],
    },
    Refusal {
        name: "no flags of renameat2",
        reason: "RENAME of NFSv3 has none (RFC 1813 section 3.3.14); Linux's client answers EINVAL as well",
        condition: Condition::Always,
        matches: |call| matches!(call, Call::Rename { flags, .. } if *flags != 0),
        errnos: &[libc::EINVAL],
    },
    Refusal {
        name: "no fallocate",
        reason: "NFSv3 has no call that reserves or frees a range; Linux's client answers EOPNOTSUPP as well",
        condition: Condition::Always,
        matches: |call| matches!(call, Call::Fallocate { .. }),
        errnos: &[libc::EOPNOTSUPP],
    },
    Refusal {
        name: "no extended attributes",
        reason: "NFSv3 has none (they came with RFC 8276, for NFSv4.2)",
        condition: Condition::Always,
        matches: |call| {
            matches!(
                call,
                Call::Setxattr { .. }
                    | Call::Getxattr { .. }
                    | Call::Removexattr { .. }
                    | Call::Listxattr { .. }
            )
        },
        errnos: &[libc::EOPNOTSUPP],
    },
    Refusal {
        name: "a directory of hidden files is not empty",
        reason: "a file removed while open has a hidden name until it is closed, so its directory \
                 cannot be removed or replaced; Linux's client has the same",
        condition: Condition::OnlyHidden,
        matches: |call| matches!(call, Call::Rmdir { .. } | Call::Rename { .. }),
        errnos: &[libc::ENOTEMPTY, libc::EEXIST, libc::EBUSY],
    },
    Refusal {
        name: "a removed object cannot be changed",
        reason: "what is removed is gone at the server, but for regular files that this client has open: mode, \
                 owner and times of a directory, FIFO, device or socket held open, or of what O_PATH holds, \
                 cannot be changed; Linux's client answers ESTALE as well",
        condition: Condition::Removed,
        matches: |call| {
            matches!(
                call,
                Call::Fchmod { .. } | Call::Fchown { .. } | Call::Futimens { .. }
            )
        },
        errnos: &[libc::ESTALE],
    },
];

pub(crate) const TOLERANCES: &[Tolerance] = &[
    Tolerance {
        name: "times from 1970 to 2106",
        reason: "nfstime3 is an unsigned 32-bit number of seconds (RFC 1813 section 2.5): earlier and later \
                 times become the first and the last one, as with Linux's client",
        matches: |_, d| {
            matches!(d.field.as_str(), "atime" | "mtime") && clamped(&d.mount) && outside(&d.local)
        },
    },
    Tolerance {
        name: "holes are data",
        reason: "NFSv3 does not say where a file has holes: SEEK_DATA finds data at once, SEEK_HOLE the end \
                 of the file, as with Linux's client",
        matches: |step, d| match (&step.call, d.field.as_str()) {
            (Call::SeekSparse { .. }, "value") => true,
            // Nothing but a hole.
            (Call::SeekSparse { whence, .. }, "errno") => {
                *whence == libc::SEEK_DATA && d.mount == "OK" && d.local == "ENXIO"
            }
            _ => false,
        },
    },
];

/// A hidden name that is left when everything is closed.
pub(crate) const HIDDEN_NAME_LEFT: (&str, &str) = (
    "a hidden name is left",
    "a hidden name is removed as the user who removed the file: if the directory may not be changed by that \
     user any more, it stays, as with Linux's client",
);

/// Whether a line of the client's log says so.
pub(crate) fn leaves_hidden_name(line: &str) -> bool {
    let denied = [
        "EACCES",
        "EPERM",
        "NFS3ERR_ACCES",
        "NFS3ERR_PERM",
        "permission",
        "Perm",
        "Access",
    ];
    line.contains("unlinked while open") && denied.iter().any(|word| line.contains(word))
}

/// What the workers leave out, on both trees: its result would depend on what the client has
/// cached.
pub(crate) const LEFT_OUT: &[(&str, &str)] = &[
    (
        "permission at each READ and WRITE",
        "the server has no open files and checks every READ and WRITE (RFC 1813 section 4.4); it lets owners \
         pass, others lose a descriptor when the mode or the owner changes, as with Linux's client",
    ),
    (
        "chown without an owner",
        "chown(2) with -1 for both ids changes nothing, but a local file system clears the set-id bits; there is \
         no such SETATTR, and Linux's client has the same",
    ),
    (
        "set-id bits and mappings",
        "a server clears the set-id bits at each WRITE of another than root (RFC 1813 section 4.8 leaves it to it), \
         also when what was written through a mapping comes to it, which locally clears nothing",
    ),
    (
        "sendfile within a file",
        "what sendfile(2) copies within one file, where source and destination overlap, depends on how much the \
         kernel copies at a time",
    ),
    (
        "set-gid bit of an exclusive create",
        "an EXCLUSIVE CREATE has no mode (RFC 1813 section 3.3.8): it is set afterwards, and chmod(2) clears the \
         set-gid bit for who is not in the file's group, as with Linux's client",
    ),
    (
        "time of access",
        "who reads from a cache does not change the time of access at the server, as with Linux's client",
    ),
];

/// The last word of a value: trees put the name before it.
fn last(value: &str) -> &str {
    value.rsplit(' ').next().unwrap_or(value)
}

/// The first or the last time NFSv3 has.
fn clamped(time: &str) -> bool {
    let seconds = last(time).split('.').next();
    seconds == Some("0") || seconds == Some("4294967295")
}

/// A time that NFSv3 does not have.
fn outside(time: &str) -> bool {
    let seconds = last(time)
        .split('.')
        .next()
        .and_then(|s| s.parse::<i64>().ok());
    seconds.is_some_and(|s| !(0..=i64::from(u32::MAX)).contains(&s))
}

/// Whether the call is made on the mount first.
pub(crate) fn refusable(call: &Call) -> bool {
    REFUSALS.iter().any(|row| (row.matches)(call))
}

/// The row by which the mount may refuse `call` with `errno`. `hidden` looks whether a
/// directory has hidden names only.
pub(crate) fn refused(
    call: &Call,
    reply: &Reply,
    hidden: impl FnOnce() -> bool,
) -> Option<&'static Refusal> {
    let errno = &reply.outcome.errno;
    let row = REFUSALS
        .iter()
        .find(|row| (row.matches)(call) && row.errnos.contains(errno))?;
    let met = match row.condition {
        Condition::Always => true,
        Condition::OnlyHidden => hidden(),
        Condition::Removed => reply.states.iter().all(|state| state.contains(" nlink=0 ")),
    };
    met.then_some(row)
}

/// The row that accepts `difference`.
pub(crate) fn tolerated(step: &Step, difference: &Difference) -> Option<&'static Tolerance> {
    TOLERANCES
        .iter()
        .find(|row| (row.matches)(step, difference))
}

/// The table, for people.
pub(crate) fn print() {
    for row in REFUSALS {
        let errnos: Vec<_> = row.errnos.iter().map(|&e| errno_name(e)).collect();
        println!("{} ({}): {}", row.name, errnos.join(", "), row.reason);
    }
    for row in TOLERANCES {
        println!("{}: {}", row.name, row.reason);
    }
    for (name, reason) in LEFT_OUT.iter().chain([&HIDDEN_NAME_LEFT]) {
        println!("{name} (left out): {reason}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_that_nfs_lacks_are_tolerated() {
        assert!(outside("-5.000000000") && outside("d0/f 4294967296.0"));
        assert!(!outside("now") && !outside("12.000000005"));
        assert!(clamped("0.000000000") && !clamped("now") && !clamped("12.0"));
    }

    #[test]
    fn every_row_is_in_the_documentation() {
        let text = include_str!("../../../docs/SEMANTICS.md");
        let names = REFUSALS
            .iter()
            .map(|r| r.name)
            .chain(TOLERANCES.iter().map(|t| t.name));
        let names = names.chain(LEFT_OUT.iter().chain([&HIDDEN_NAME_LEFT]).map(|row| row.0));
        for name in names {
            assert!(
                text.contains(&format!("({name})")),
                "docs/SEMANTICS.md lacks ({name})"
            );
        }
    }
}
