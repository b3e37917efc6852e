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
            call for one object only: `noacl` saves these as well.\n\nWhile mounting, the \
            server is asked whether it has NFS_ACL; if it does not, the mount behaves as with \
            `noacl`. A server that does not answer is asked once more. If it does not answer \
            then either, the mount behaves as with `noacl` until the next mount, and the log \
            says so: with `permissions=kernel` only modes count",
        ..switch!(client.acl)
    }],
};
