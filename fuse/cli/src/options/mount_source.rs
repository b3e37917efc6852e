//! The mount source: `server:/path`, `[v6]:/path` or `nfs://server[:port]/path` (RFC 2224).

use std::ffi::OsStr;
use std::fmt;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use thiserror::Error;

/// Longest path of MOUNT version 3, in bytes (MNTPATHLEN, RFC 1813 section 5.1.2).
pub const MAX_EXPORT: usize = 1024;
/// Longest host name, in bytes (RFC 1035 section 2.3.4).
const MAX_HOST: usize = 255;

/// A server and a directory it exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSource {
    /// A name or an address. An IPv6 address has no brackets, and may have a `%scope`.
    pub host: String,
    /// An absolute path. It is bytes, because servers know no character sets.
    pub export: Vec<u8>,
    /// Only given by a URL.
    pub port: Option<u16>,
}

/// Why a text is not a mount source. The text of each error is a sentence with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MountSourceError {
    #[error("'{0}' names no export: write SERVER:/PATH, [IPV6]:/PATH or nfs://SERVER/PATH")]
    Shape(String),
    #[error("put the IPv6 address in brackets: [{0}]:/PATH")]
    Brackets(String),
    #[error("'{0}' is not an IPv6 address: write [2001:db8::1]:/PATH, and a name without brackets")]
    NotIpv6(String),
    #[error("the link-local address {0} needs its interface: write [{0}%eth0]:/PATH with its name")]
    Scope(String),
    #[error("'{0}' is not a host name: write SERVER:/PATH, [IPV6]:/PATH or nfs://SERVER/PATH")]
    Host(String),
    #[error("{}", match port.as_str() {
        // It would be asked for RDMA, in vain.
        "2049" => format!(
            "the port does not stand there, and 2049 is that of NFS over TCP: write {host}:{path}, for RDMA at port 20049, or name another by the option port="
        ),
        _ => format!("the port does not stand there: write {host}:{path} with the option port={port}, or nfs://{host}:{port}{path}"),
    })]
    PortInSource {
        host: String,
        port: String,
        path: String,
    },
    #[error("no user stands there, since NFS has no logins: write {0}:/PATH")]
    User(String),
    #[error("{0} is a URL of another protocol: write SERVER:/PATH or nfs://SERVER/PATH")]
    Scheme(String),
    #[error("'{0}' is not a port: give a number from 1 to 65535")]
    Port(String),
    #[error("the export path must begin with a slash, not '{0}': write SERVER:/{0}")]
    Relative(String),
    #[error(
        "the export path is longer than the {MAX_EXPORT} bytes that MOUNT allows: export a directory with a shorter path"
    )]
    TooLong,
    #[error(
        "'{0}' has a wrong %-escape: two hexadecimal digits follow each '%', and not 00; write %25 for a percent sign"
    )]
    Escape(String),
}

impl MountSource {
    /// Parses the first field of a line of fstab, or the first argument of a mount command.
    pub fn parse(text: &OsStr) -> Result<MountSource, MountSourceError> {
        let bytes = text.as_bytes();
        let shape = || MountSourceError::Shape(text.to_string_lossy().into_owned());
        if let Some(rest) = strip_scheme(bytes) {
            return parse_url(rest, &shape);
        }
        if let Some(scheme) = foreign_scheme(bytes) {
            return Err(MountSourceError::Scheme(scheme));
        }
        if bytes.first() == Some(&b'[') {
            let end = bytes
                .iter()
                .position(|&byte| byte == b']')
                .ok_or_else(shape)?;
            let host = ipv6(&bytes[1..end])?;
            let path = bytes[end + 1..].strip_prefix(b":").ok_or_else(shape)?;
            return MountSource::checked(host, path.to_vec(), None);
        }
        let colon = bytes
            .iter()
            .position(|&byte| byte == b':')
            .ok_or_else(shape)?;
        if let Some(end) = bytes.windows(2).position(|pair| pair == b":/")
            && end > colon
            && let Ok(host) = std::str::from_utf8(&bytes[..end])
            && ipv6(host.as_bytes()).is_ok()
        {
            return Err(MountSourceError::Brackets(host.into()));
        }
        let host = std::str::from_utf8(&bytes[..colon]).map_err(|_| {
            MountSourceError::Host(String::from_utf8_lossy(&bytes[..colon]).into_owned())
        })?;
        if host.is_empty() || colon + 1 == bytes.len() {
            return Err(shape());
        }
        MountSource::checked(host.into(), bytes[colon + 1..].to_vec(), None)
    }

    fn checked(
        host: String,
        export: Vec<u8>,
        port: Option<u16>,
    ) -> Result<MountSource, MountSourceError> {
        let bad = |c: char| {
            c.is_whitespace() || c.is_control() || matches!(c, '/' | ',' | '\\' | '[' | ']')
        };
        if host.is_empty() || host.len() > MAX_HOST || host.starts_with('-') || host.contains(bad) {
            return Err(MountSourceError::Host(host));
        }
        if let Some((_, host)) = host.rsplit_once('@') {
            return Err(MountSourceError::User(host.into()));
        }
        if let Some((port, path)) = port_and_path(&export) {
            let host = match host.contains(':') {
                true => format!("[{host}]"),
                false => host,
            };
            return Err(MountSourceError::PortInSource { host, port, path });
        }
        if is_link_local_without_interface(&host) {
            return Err(MountSourceError::Scope(host));
        }
        if export.first() != Some(&b'/') {
            return Err(MountSourceError::Relative(
                String::from_utf8_lossy(&export).into_owned(),
            ));
        }
        if export.len() > MAX_EXPORT {
            return Err(MountSourceError::TooLong);
        }
        Ok(MountSource { host, export, port })
    }

    /// The source in the form of /proc/mounts: `host:/path`.
    pub fn source(&self) -> Vec<u8> {
        let mut source = if self.host.contains(':') {
            format!("[{}]:", self.host)
        } else {
            format!("{}:", self.host)
        }
        .into_bytes();
        source.extend_from_slice(&self.export);
        source
    }
}

impl fmt::Display for MountSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.source()))
    }
}

/// URL schemes that people try. Any other word before `://` may be the name of a host.
const FOREIGN: [&str; 16] = [
    "http", "https", "ftp", "ftps", "sftp", "ssh", "scp", "smb", "cifs", "file", "s3", "webdav",
    "dav", "rdma", "nfs4", "nfsrdma",
];

fn foreign_scheme(bytes: &[u8]) -> Option<String> {
    let end = bytes.windows(3).position(|part| part == b"://")?;
    let scheme = std::str::from_utf8(&bytes[..end])
        .ok()?
        .to_ascii_lowercase();
    FOREIGN
        .contains(&scheme.as_str())
        .then(|| String::from_utf8_lossy(bytes).into_owned())
}

/// Parses `PORT:/PATH` after the host's colon, a form that other programs have.
fn port_and_path(rest: &[u8]) -> Option<(String, String)> {
    // Somebody may write HOST:PORT:/PATH or HOST:PORT/PATH.
    let (port, path) = std::str::from_utf8(rest).ok()?.split_once([':', '/'])?;
    port.parse::<u16>().ok()?;
    let path = match path.strip_prefix('/') {
        Some(_) => path.to_owned(),
        None => format!("/{path}"),
    };
    Some((port.to_owned(), path))
}

/// Whether it is a link-local address (RFC 4291 section 2.5.6) without its interface.
fn is_link_local_without_interface(host: &str) -> bool {
    host.parse::<Ipv6Addr>()
        .is_ok_and(|address| address.is_unicast_link_local())
}

fn strip_scheme(bytes: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"nfs://";
    bytes
        .get(..SCHEME.len())
        .filter(|start| start.eq_ignore_ascii_case(SCHEME))
        .map(|_| &bytes[SCHEME.len()..])
}

fn parse_url(
    rest: &[u8],
    shape: &dyn Fn() -> MountSourceError,
) -> Result<MountSource, MountSourceError> {
    let slash = rest
        .iter()
        .position(|&byte| byte == b'/')
        .ok_or_else(shape)?;
    let authority = std::str::from_utf8(&rest[..slash]).map_err(|_| shape())?;
    let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
        let (address, behind) = inner.split_once(']').ok_or_else(shape)?;
        let port = match behind {
            "" => None,
            _ => Some(behind.strip_prefix(':').ok_or_else(shape)?),
        };
        (ipv6(address.as_bytes())?, port)
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (authority.to_owned(), None),
        }
    };
    if host.is_empty() {
        return Err(shape());
    }
    let port = match port {
        None | Some("") => None,
        Some(text) => Some(
            text.parse::<u16>()
                .ok()
                .filter(|&port| port != 0)
                .ok_or_else(|| MountSourceError::Port(text.into()))?,
        ),
    };
    MountSource::checked(host, unescape(&rest[slash..])?, port)
}

/// Decodes percent-encoding (RFC 3986 section 2.1). A path cannot contain NUL.
fn unescape(path: &[u8]) -> Result<Vec<u8>, MountSourceError> {
    let wrong = || MountSourceError::Escape(String::from_utf8_lossy(path).into_owned());
    let mut plain = Vec::with_capacity(path.len());
    let mut bytes = path.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let mut digit = || {
            let digit = bytes.next().copied().map(char::from);
            digit.and_then(|digit| digit.to_digit(16)).ok_or_else(wrong)
        };
        let byte = (digit()? * 16 + digit()?) as u8;
        if byte == 0 {
            return Err(wrong());
        }
        plain.push(byte);
    }
    Ok(plain)
}

/// Checks an IPv6 address, with or without a scope, and returns it unchanged.
fn ipv6(bytes: &[u8]) -> Result<String, MountSourceError> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (address, scope) = match text.split_once('%') {
        Some((address, scope)) => (address, Some(scope)),
        None => (text.as_str(), None),
    };
    if scope == Some("") && address.parse::<Ipv6Addr>().is_ok() {
        return Err(MountSourceError::Scope(address.to_owned()));
    }
    if address.parse::<Ipv6Addr>().is_err() {
        return Err(MountSourceError::NotIpv6(text));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<MountSource, MountSourceError> {
        MountSource::parse(OsStr::new(text))
    }

    fn spec(host: &str, export: &str, port: Option<u16>) -> Result<MountSource, MountSourceError> {
        Ok(MountSource {
            host: host.into(),
            export: export.into(),
            port,
        })
    }

    #[test]
    fn forms() {
        assert_eq!(parse("srv:/data"), spec("srv", "/data", None));
        assert_eq!(parse("srv:/"), spec("srv", "/", None));
        assert_eq!(parse("srv:/a:/b"), spec("srv", "/a:/b", None));
        assert_eq!(parse("10.1.2.3:/a b"), spec("10.1.2.3", "/a b", None));
        assert_eq!(parse("[::1]:/x"), spec("::1", "/x", None));
        assert_eq!(parse("[fe80::1%eth0]:/x"), spec("fe80::1%eth0", "/x", None));
        assert_eq!(parse("nfs://srv/x"), spec("srv", "/x", None));
        assert_eq!(parse("NFS://srv:2050/x"), spec("srv", "/x", Some(2050)));
        assert_eq!(parse("nfs://srv:/x"), spec("srv", "/x", None));
        assert_eq!(parse("nfs://[::1]:7/x"), spec("::1", "/x", Some(7)));
        assert_eq!(parse("nfs://[::1]/a%20b"), spec("::1", "/a b", None));
        let long = format!("srv:/{}", "x".repeat(MAX_EXPORT));
        assert_eq!(parse(&long), Err(MountSourceError::TooLong));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes: Vec<u8>) {
            let _ = MountSource::parse(OsStr::from_bytes(&bytes));
        }

        #[test]
        fn the_source_is_parsed_again(
            host in "[a-z][a-z0-9.-]{0,20}|[0-9a-f:]{1,4}::[0-9a-f]{1,4}",
            path in "/[^\u{0}]{0,30}",
        ) {
            let made = MountSource { host, export: path.into_bytes(), port: None };
            if let Ok(again) = MountSource::parse(OsStr::from_bytes(&made.source())) {
                prop_assert_eq!(again, made);
            } else {
                let address = made.host.parse::<Ipv6Addr>();
                prop_assert!(made.host.contains(':'));
                prop_assert!(address.is_err() || is_link_local_without_interface(&made.host));
            }
        }
    }
}
