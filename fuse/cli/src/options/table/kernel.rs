//! Options that the kernel's client shows in /proc/mounts.

use super::super::OptionError;
use super::super::draft::Draft;
use super::super::entry::*;
use super::refused::V3_ONLY;
use std::net::IpAddr;

pub(super) const ADDRESS: &str = "an IPv4 or IPv6 address";

pub(super) static SECTION: Section = Section {
    title: "Of the kernel's NFS client",
    lasts: "it has no effect on a mount",
    entries: &[
        Entry {
            forms: "addr=ADDRESS",
            takes: ADDRESS,
            help: "the server's address, which is looked up anew",
            action: Action::Set(|d, _, v| {
                let address = address(d, v)?;
                d.addr = Some(address);
                Ok(())
            }),
            ..Entry::NONE
        },
        Entry {
            forms: "namlen=N bsize=N",
            takes: "a number",
            help: "without effect: the longest name is that of the server (PATHCONF), `st_blksize` of \
            a file is 65536",
            action: Action::Set(|d, _, v| d.number(v, 0..=u32::MAX.into()).map(drop)),
            ..Entry::NONE
        },
        accept(
            "posix noposix nomigration notrunkdiscovery",
            "this is always the case with NFS version 3",
        ),
        Entry {
            forms: "minorversion=0",
            help: "the minor version, of which NFS version 3 has none",
            action: Action::Set(|d, _, v| match v {
                "0" => Ok(()),
                "1" | "2" => d.cannot(V3_ONLY),
                _ => d.bad(),
            }),
            ..Entry::NONE
        },
        Entry {
            forms: "nfsprog=100003",
            help: "the program number of NFS, which is the only one",
            action: Action::Set(Draft::only),
            ..Entry::NONE
        },
        Entry {
            forms: "mountprog=100005",
            help: "the program number of MOUNT, which is the only one",
            action: Action::Set(Draft::only),
            ..Entry::NONE
        },
        Entry {
            forms: "fatal_neterrors=default|none",
            help: "an unreachable network is waited for, like a server that does not answer",
            action: Action::Set(|d, _, v| match v {
                "default" | "none" => Ok(()),
                "ENETDOWN:ENETUNREACH" | "ENETUNREACH:ENETDOWN" => d.cannot(
                    "a network that is away is waited for like a server that is; use softerr",
                ),
                _ => d.bad(),
            }),
            ..Entry::NONE
        },
    ],
};

/// Parses a literal address, which the kernel shows in its own format.
pub(super) fn address(d: &Draft, text: &str) -> Result<String, OptionError> {
    match text.parse::<IpAddr>() {
        Ok(address) => Ok(address.to_string()),
        Err(_) => d.bad(),
    }
}
