//! The differences that are accepted, each with its reason.
//!
//! Every row is stated in docs/SEMANTICS.md, "Differences from a local file system", and is as
//! narrow as possible. A row needs a reason: NFSv3 (RFC 1813) forces the difference, or Linux's own
//! NFSv3 client has it as well. All other differences are defects.
//!
//! A *refusal* is a call that the mount refuses, but that a local file system may execute. It is
//! made on the mount first. If it is refused in the way of the row, it is not made on the local
//! file system, so that the two trees stay alike.

use crate::call::{At, Call, Place, Reply, Step};
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

impl Refusal {
    /// Whether the touched objects can be compared after the refusal.
    pub(crate) fn changes_nothing(&self) -> bool {
        matches!(self.condition, Condition::Always | Condition::Lost)
    }
}

/// The condition under which a refusal is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    /// If a directory of the export has hidden names and no others.
    OnlyHidden,
    /// If the object of the descriptor has no links any more.
    Removed,
    /// If the descriptor or path is that of a directory that has no links, or cannot be reached.
    RemovedDirectory,
    /// The same, with `permissions=server`.
    RemovedDirectoryAsked,
    /// If the user may not open the file like that any more.
    Lost,
}

/// A field in which the two replies may differ.
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
        reason: "NFSv3 has none but ACLs (the others came with RFC 8276, for NFSv4.2)",
        condition: Condition::Always,
        matches: |call| {
            matches!(
                call,
                Call::Setxattr { name, .. }
                    | Call::Getxattr { name, .. }
                    | Call::Removexattr { name, .. } if name.starts_with("user.")
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
                 cannot be changed, nor its ACL be had; Linux's client answers ESTALE as well",
        condition: Condition::Removed,
        matches: |call| {
            matches!(
                call,
                Call::Fchmod { .. }
                    | Call::Fchown { .. }
                    | Call::Futimens { .. }
                    | Call::Fsetacl { .. }
                    | Call::Fgetacl { .. }
            )
        },
        errnos: &[libc::ESTALE],
    },
    Refusal {
        name: "the ACL of a removed object is not known",
        reason: "the kernel asks for the ACL in order to check permissions, and has to be told that there is none where \
                 the object is gone at the server; a program that asks is told the same",
        condition: Condition::Removed,
        matches: |call| matches!(call, Call::Fgetacl { .. }),
        errnos: &[libc::ENODATA],
    },
    Refusal {
        name: "a removed directory cannot be used",
        reason: "a directory that was removed is gone at the server: who has it open or for the current directory \
                 cannot open or change it by `.`, nor list it; Linux's client answers ESTALE as well",
        condition: Condition::RemovedDirectory,
        matches: |call| {
            let dot = call.places().iter().any(|place| {
                place.at != At::Root
                    && place
                        .path
                        .split('/')
                        .all(|part| part == "." || part.is_empty())
            });
            dot || matches!(call, Call::Getdents { .. })
        },
        errnos: &[libc::ESTALE],
    },
    Refusal {
        name: "permission at each READ and WRITE",
        reason: "the server has no open files and checks every READ, WRITE and READDIR (RFC 1813 section 4.4); it lets \
                 owners pass, others lose a descriptor when the mode, the owner or the ACL changes, as with Linux's \
                 client. What was refused has changed nothing",
        condition: Condition::Lost,
        matches: |call| call.moves_data() != (None, None),
        errnos: &[libc::EACCES],
    },
    Refusal {
        name: "permissions=server: a removed directory is asked for",
        reason: "the kernel leaves it to the server who may search a directory: fchdir(2) to one that was removed asks \
                 for what is gone",
        condition: Condition::RemovedDirectoryAsked,
        matches: |call| matches!(call, Call::Fchdir { .. }),
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
            // The file is a single hole.
            (Call::SeekSparse { whence, .. }, "errno") => {
                *whence == libc::SEEK_DATA && d.mount == "OK" && d.local == "ENXIO"
            }
            _ => false,
        },
    },
    Tolerance {
        name: "the removal of a hidden name changes its directory",
        reason: "a file removed while open has a hidden name until it is closed; the removal of that name at the \
                 server gives the directory its time, also if a program set another one meanwhile, as with Linux's \
                 client",
        matches: |step, d| {
            // Whole trees are compared after any call.
            let of_call = !d.call.ends_with("Tree");
            let sets = of_call
                && d.succeeded
                && matches!(step.call, Call::Utimens { .. } | Call::Futimens { .. });
            d.field == "mtime"
                && d.kind == "directory"
                && d.may_hide
                && !sets
                && last(&d.mount) == "now"
        },
    },
    Tolerance {
        name: "times of a FIFO",
        reason: "what goes through a FIFO never comes to the server, which keeps the times it has, as with Linux's \
                 client",
        matches: |_, d| {
            let times = matches!(d.field.as_str(), "atime" | "mtime");
            times && d.kind == "fifo" && last(&d.local) == "now"
        },
    },
    Tolerance {
        name: "the ACL of a removed directory",
        reason: "the ACL of a directory that was removed cannot be had any more, so who may search it is judged by \
                 its mode; there are no names in it",
        matches: |step, d| {
            let field = matches!(d.field.as_str(), "errno" | "state");
            let values = [d.mount.as_str(), d.local.as_str()];
            let one_of = |which: &str| values.iter().filter(|v| **v == which).count() == 1;
            let gone = match step.call {
                Call::Fchdir { .. } => "OK",
                _ => "ENOENT",
            };
            field && d.removed && one_of(gone) && one_of("EACCES")
        },
    },
    Tolerance {
        name: "types in a directory that may not be searched",
        reason: "a directory that may be read and not searched is listed by READDIRPLUS without attributes, so \
                 readdir(3) tells DT_UNKNOWN, as with Linux's client",
        matches: |step, d| {
            let lists = matches!(step.call, Call::List { .. } | Call::Getdents { .. });
            lists && d.field == "data" && alike_but_unknown(&d.mount, &d.local)
        },
    },
    Tolerance {
        name: "attributes that were not asked for",
        reason: "AT_STATX_DONT_SYNC shows what the kernel has (statx(2)), which does not hear of the mode that an ACL has \
                 made, nor of the links of a directory into which another one was moved: it asks for them at the next \
                 stat(2) without that flag",
        matches: |step, d| {
            let Call::Statx { flags, .. } = step.call else {
                return false;
            };
            let field = matches!(d.field.as_str(), "mode" | "nlink");
            flags & libc::AT_STATX_DONT_SYNC != 0 && field && !d.observed
        },
    },
];

/// Further ones with `permissions=server`.
const SERVER_CHECKS: &[Tolerance] = &[Tolerance {
    name: "permissions=server: another reason to fail",
    reason: "where a call fails for several reasons, the kernel finds its own before the server is asked for permission",
    matches: |step, d| {
        const FOUND_BEFORE: [&str; 9] = [
            "ENOENT",
            "ENOTDIR",
            "EISDIR",
            "EBUSY",
            "EBADF",
            "ENAMETOOLONG",
            "EEXIST",
            "ELOOP",
            "EPERM",
        ];
        // If contents cannot be read, no data follows the errno.
        let (mount, local) = (d.mount.trim_end_matches('/'), d.local.trim_end_matches('/'));
        // rmdir(2) of a name that ends in a dot.
        let dots = |place: &Place| matches!(place.path.rsplit('/').next(), Some("." | ".."));
        let removes_dots = match &step.call {
            Call::Rmdir { place } => dots(place) && ["EINVAL", "ENOTEMPTY"].contains(&mount),
            _ => false,
        };
        matches!(d.field.as_str(), "errno" | "state" | "contents")
            && matches!(local, "EACCES" | "EPERM")
            && (FOUND_BEFORE.contains(&mount) || removes_dots)
    },
}];

/// Whether two listings differ only by types that the first one does not have.
fn alike_but_unknown(mount: &str, local: &str) -> bool {
    let (mount, local) = (mount.split(' '), local.split(' '));
    mount.clone().count() == local.clone().count()
        && mount.zip(local).all(|(ours, theirs)| {
            ours == theirs
                || ours
                    .strip_suffix(":0")
                    .is_some_and(|name| theirs.rsplit_once(':').is_some_and(|t| t.0 == name))
        })
}

/// A hidden name that is left when all files are closed.
pub(crate) const HIDDEN_NAME_LEFT: (&str, &str) = (
    "a hidden name is left",
    "a hidden name is removed as the user who removed the file: if the directory may not be changed by that \
     user any more, it stays as a name like others, and counts as a link, as with Linux's client",
);

/// Whether a line of the client's log reports that.
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

/// Whether a line of the client's log reports that the server did not permit a WRITE.
pub(crate) fn refused_data(line: &str) -> bool {
    line.contains("data could not be written") && line.contains("server answered Access")
}

/// Calls that the workers leave out on both trees, because their results would depend on the
/// client's cache.
pub(crate) const LEFT_OUT: &[(&str, &str)] = &[
    (
        "a mapping or a copy after permission was lost",
        "a fault in a mapping cannot fail with EACCES: who may not read or write the file any more gets what is cached, \
         or SIGBUS; what was written is refused by the server when it is written back. copy_file_range(2) and \
         sendfile(2) copy what is cached before they fail",
    ),
    (
        "a mask without users or groups",
        "NFS_ACL always has a mask: one that equals the group's permissions, in an ACL without named users and groups, \
         cannot be told from none, and both Linux's server and its client take it for none",
    ),
    (
        "permissions=server: special files",
        "the kernel opens FIFOs, sockets and devices by itself, and leaves their modes to the server, which is not asked",
    ),
    (
        "permissions=server: sticky directories",
        "the kernel, which FUSE does not tell of sticky directories then, does not refuse to open another's file with O_CREAT \
         in one (fs.protected_regular, fs.protected_fifos)",
    ),
    (
        "set-id bits and mappings",
        "a server clears the set-id bits at each WRITE of another user than root (RFC 1813 section 4.8 leaves it to it), \
         also when what was written through a mapping comes to it, which locally clears nothing",
    ),
    (
        "sendfile within a file",
        "what sendfile(2) copies within one file, where source and destination overlap, depends on how much the \
         kernel copies at a time",
    ),
    (
        "truncate to the size that is",
        "truncate(2) that changes no size leaves the times alone (POSIX); some local file systems set them, as the \
         one in memory for a file that is not empty",
    ),
    (
        "groups at the time of open",
        "whether a write clears the set-gid bit may depend on the writer's groups: the server is told those of when \
         the descriptor was opened, as with Linux's client",
    ),
    (
        "time of a mapping that is written",
        "the kernel writes what was written through a shared mapping when msync(2) or munmap(2) is called or some time \
         later, and that sets the time of modification, also if a program set another one meanwhile",
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

/// Calls that are replaced on the local file system by another one, or by none, whose result must
/// be that of the mount.
pub(crate) const INSTEAD: &[(&str, &str)] = &[
    (
        "chown without an owner",
        "chown(2) with -1 for both ids changes nothing, but a local file system clears the set-id bits, or refuses to \
         who is not the owner; there is no such SETATTR (RFC 1813 section 3.3.2), and Linux's client has the same: it \
         must succeed, and change nothing",
    ),
    (
        "permissions=server: dots",
        "the kernel walks `.` and `..` without asking who may search the directory before them: such a path must lead \
         where it leads without the dots",
    ),
];

/// The last word of a value, since trees put the name before it.
pub(crate) fn last(value: &str) -> &str {
    value.rsplit(' ').next().unwrap_or(value)
}

/// Whether a time is the first or the last one of NFSv3.
fn clamped(time: &str) -> bool {
    let seconds = last(time).split('.').next();
    seconds == Some("0") || seconds == Some("4294967295")
}

/// Whether NFSv3 cannot represent a time.
fn outside(time: &str) -> bool {
    let seconds = last(time)
        .split('.')
        .next()
        .and_then(|s| s.parse::<i64>().ok());
    seconds.is_some_and(|s| !(0..=i64::from(u32::MAX)).contains(&s))
}

/// Whether the call is made on the mount first.
pub(crate) fn refusable(call: &Call, server_checks: bool) -> bool {
    let asked = Condition::RemovedDirectoryAsked;
    let mut rows = REFUSALS
        .iter()
        .filter(|row| server_checks || row.condition != asked);
    rows.any(|row| (row.matches)(call))
}

/// The row by which the mount may refuse `call` with `errno`. `hidden` finds out whether a
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
        Condition::Lost => reply.lost,
        Condition::RemovedDirectory | Condition::RemovedDirectoryAsked => {
            reply.states.first().is_some_and(|state| {
                state.contains("type=directory") && state.contains(" nlink=0 ") || state == "ESTALE"
            })
        }
        Condition::Removed => reply.states.iter().all(|state| state.contains(" nlink=0 ")),
    };
    met.then_some(row)
}

/// The row that accepts `difference`.
pub(crate) fn tolerated(
    step: &Step,
    difference: &Difference,
    server_checks: bool,
) -> Option<&'static Tolerance> {
    let more = SERVER_CHECKS.iter().filter(|_| server_checks);
    TOLERANCES
        .iter()
        .chain(more)
        .find(|row| (row.matches)(step, difference))
}

/// Prints the table for people.
pub(crate) fn print() {
    for row in REFUSALS {
        let errnos: Vec<_> = row.errnos.iter().map(|&e| errno_name(e)).collect();
        println!("{} ({}): {}", row.name, errnos.join(", "), row.reason);
    }
    for row in TOLERANCES.iter().chain(SERVER_CHECKS) {
        println!("{}: {}", row.name, row.reason);
    }
    for (name, reason) in LEFT_OUT.iter().chain([&HIDDEN_NAME_LEFT]) {
        println!("{name} (left out): {reason}");
    }
    for (name, reason) in INSTEAD {
        println!("{name} (compared with another call): {reason}");
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
            .chain(TOLERANCES.iter().chain(SERVER_CHECKS).map(|t| t.name));
        let words = LEFT_OUT.iter().chain(INSTEAD).chain([&HIDDEN_NAME_LEFT]);
        let names = names.chain(words.map(|row| row.0));
        for name in names {
            assert!(
                text.contains(&format!("({name})")),
                "docs/SEMANTICS.md lacks ({name})"
            );
        }
    }
}
