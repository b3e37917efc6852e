//! Options of security flavors, locks, and the ports of callbacks.

use super::super::LocalLock;
use super::super::draft::PORT;
use super::super::entry::{Entry, flag, refuse, value};

const CALLBACK_PORT: &str = "a port, or none";
const LOCAL_LOCK: &str = "none, flock, posix or all";
const NO_TLS: &str =
    "there is no TLS over RDMA; use mount -t nfs, or encrypt the network below (IPsec)";
const NO_GSS: &str = "only AUTH_SYS is available; use sec=sys";

pub(super) static TABLE: &[Entry] = &[
    // A list, of which the first flavor that the server supports is used (nfs(5)).
    value!("sec", "sys", |d, n, v| {
        const OTHERS: [&str; 14] = [
            "none", "null", "krb5", "krb5i", "krb5p", "lkey", "lkeyi", "lkeyp", "spkm", "spkmi",
            "spkmp", "spkm3", "spkm3i", "spkm3p",
        ];
        let flavors = || v.split(':');
        if !flavors().all(|flavor| flavor == "sys" || OTHERS.contains(&flavor)) {
            return d.bad(n, "sys");
        }
        if !flavors().any(|flavor| flavor == "sys") {
            return d.cannot(NO_GSS);
        }
        d.claim(n, "sys")
    }),
    refuse!("cert_serial", NO_TLS),
    refuse!("privkey_serial", NO_TLS),
    value!("xprtsec", "none", |d, n, v| match v {
        "none" => Ok(()),
        "tls" | "mtls" => d.cannot(NO_TLS),
        _ => d.bad(n, "none"),
    }),
    // Locks.
    flag!("lock", |d, _| {
        d.options.lock = Some(true);
        d.claim("lock", true)
    }),
    flag!("nolock", |d, _| {
        d.options.lock = Some(false);
        d.claim("lock", false)
    }),
    value!("local_lock", LOCAL_LOCK, |d, n, v| {
        d.options.local_lock = Some(match v {
            "none" => LocalLock::None,
            "flock" => LocalLock::Flock,
            "posix" => LocalLock::Posix,
            "all" => LocalLock::All,
            _ => return d.bad(n, LOCAL_LOCK),
        });
        d.claim(n, v)
    }),
    value!("lockport", PORT, |d, n, v| {
        d.options.lock_port = d.port(n, v)?;
        Ok(())
    }),
    value!("callbackport", CALLBACK_PORT, |d, n, v| {
        if v == "none" {
            d.options.callback_port = Some(0);
            return d.claim(n, v);
        }
        let port = d.number(n, v, 1..=65535, CALLBACK_PORT)? as u16;
        d.options.callback_port = Some(port);
        d.claim(n, port)
    }),
    flag!("resvport", |d, _| d.claim("resvport", true)),
    flag!("noresvport", |d, _| {
        d.options.client.resvport = false;
        d.claim("resvport", false)
    }),
];
