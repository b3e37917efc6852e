//! Options of access control lists.

use super::super::entry::*;

pub(super) static SECTION: Section = Section {
    title: "Access control lists",
    lasts: "the kernel is told of it once",
    entries: &[Entry {
        forms: "acl noacl",
        default: "`acl`",
        help: "use the NFS_ACL side protocol where the server has it: getfacl(1) and setfacl(1) \
            work, and a directory's default ACL takes precedence over the umask. With \
            `permissions=kernel` the kernel checks ACLs, and asks for the ACL of each object \
            that the caller does not own; `noacl` saves that call where there are no ACLs. `ls \
            -l` asks for the ACL of each name, by whatever `permissions`, and NFS_ACL has a \
            call for one object only: `noacl` saves these as well. So that the kernel remembers \
            the root directory's ACL, mounts by root show a copy of it: findmnt(8) has the source \
            `server:/path[/export]`.\n\nWhile mounting, the server is asked whether it has \
            NFS_ACL, twice if it does not answer. If it does not have it, or does not answer, the \
            mount behaves as with `noacl` until the next mount, and the log says so if there was \
            no answer: with `permissions=kernel` only modes count",
        ..switch!(client.acl)
    }],
};
