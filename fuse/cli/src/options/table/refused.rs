//! Options that NFS version 3 over RDMA cannot honour. The text of each is the reason in the error. Values
//! of an option that is known otherwise are refused by its own entry, with the same text.

use super::super::entry::*;

pub(super) const TCP_ONLY: &str =
    "this program speaks NFS over RDMA only; use mount -t nfs for TCP and UDP";
pub(super) const V3_ONLY: &str =
    "this program speaks NFS version 3 only; use mount -t nfs for version 4";
pub(super) const OBSOLETE: &str =
    "NFS version 2 is obsolete, and this program speaks version 3 only; use vers=3";
pub(super) const NO_TLS: &str =
    "there is no TLS over RDMA; use mount -t nfs, or encrypt the network below (IPsec)";
pub(super) const OTHER_FLAVORS: &str =
    "AUTH_SYS and Kerberos are available; use sec=sys, krb5, krb5i or krb5p";

pub(super) static SECTION: Section = Section {
    title: "Refused, and why",
    lasts: "it is not for this program",
    entries: &[
        refuse("proto=tcp proto=udp tcp udp", TCP_ONLY),
        refuse(
            "vers=4 v4 v4.0 v4.1 v4.2 minorversion=1 minorversion=2",
            V3_ONLY,
        ),
        refuse("vers=2 v2", OBSOLETE),
        refuse(
            "clientaddr=ADDRESS migration max_connect=N trunkdiscovery",
            "it belongs to NFS version 4, and this program speaks version 3; leave it out",
        ),
        refuse(
            "srcaddr=ADDRESS",
            "its name here is localports; use localports=ADDRESS",
        ),
        refuse(
            "fatal_neterrors=ENETDOWN:ENETUNREACH",
            "a network that is away is waited for like a server that is; use softerr",
        ),
        refuse("sec=none", OTHER_FLAVORS),
        refuse(
            "xprtsec=tls xprtsec=mtls cert_serial=N privkey_serial=N",
            NO_TLS,
        ),
        refuse(
            "fsc",
            "there is no FS-Cache here; leave it out, the page cache is set by cache=SIZE",
        ),
        refuse(
            "sharecache",
            "each mount has a cache of its own; leave it out, or mount once and bind-mount that",
        ),
    ],
};
