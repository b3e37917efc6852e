//! Why a call of the library failed.

use std::fmt;
use thiserror::Error;

/// What a failure means to whoever has to do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Kind {
    /// There is no library, and so no Kerberos.
    #[error(
        "libgssapi_krb5.so.2 is not installed; install the package libgssapi-krb5-2 (Debian) or krb5-libs (Fedora)"
    )]
    NotInstalled,
    /// There is no ticket, or no key in the keytab for this client.
    #[error("there is no Kerberos ticket; get one by kinit")]
    NoCredential,
    /// The ticket, or the context made with it, has expired.
    #[error("the Kerberos ticket has expired; get a new one by kinit")]
    Expired,
    /// The KDC does not know the server's principal, or the server has another key.
    #[error(
        "the server has no usable Kerberos key; its realm, which krb5.conf names, needs a principal nfs/HOST for the name \
         that is mounted, and its keytab the present key"
    )]
    NoServerKey,
    /// Clocks differ by more than the realm allows (five minutes).
    #[error(
        "the clocks of this host, the server and the KDC differ too much; synchronize them by NTP"
    )]
    ClockSkew,
    /// No KDC answers for the realm, or the realm is unknown.
    #[error(
        "no Kerberos server (KDC) of the realm can be reached; look at krb5.conf and at the network"
    )]
    Realm,
    /// A token, MIC or message of the peer is not genuine.
    #[error("a Kerberos token is damaged, or not from the peer")]
    Defective,
    /// Anything else: the library's text says what.
    #[error("the Kerberos library fails")]
    Other,
}

impl Kind {
    /// Every kind.
    pub const ALL: &'static [Kind] = &[
        Kind::NotInstalled,
        Kind::NoCredential,
        Kind::Expired,
        Kind::NoServerKey,
        Kind::ClockSkew,
        Kind::Realm,
        Kind::Defective,
        Kind::Other,
    ];

    /// The kind of a routine error (RFC 2744 section 3.9.1) with the mechanism's own code, of the library here or
    /// of a server.
    pub fn of(major: u32, minor: u32) -> Kind {
        let routine = (major >> 16) & 0xff;
        if matches!(routine, BAD_MIC | DEFECTIVE_TOKEN) {
            return Kind::Defective;
        }
        match krb5(minor) {
            // The name, the service or the key has expired; the ticket has.
            Some(1 | 2 | 23 | 32) => return Kind::Expired,
            // Of the client: unknown, revoked, wrong key; its ticket is not valid yet. No cache, nothing in it, no key
            // in the keytab.
            Some(6 | 18 | 24 | 33 | 141 | 142 | 181 | 195) => return Kind::NoCredential,
            // Of the server: unknown; another key or number of a key; not the name it knows.
            Some(7 | 31 | 35 | 36 | 44 | 45 | 144 | 230) => return Kind::NoServerKey,
            // Too great a difference, seen by a server or here.
            Some(37 | 148) => return Kind::ClockSkew,
            // The service is unavailable, the realm wrong or unknown, krb5.conf unreadable or malformed, no KDC reached.
            Some(29 | 68 | 135 | 136 | 154 | 156 | 217 | 224) => return Kind::Realm,
            _ => {}
        }
        match routine {
            7 => Kind::NoCredential,
            11 | 12 => Kind::Expired,
            _ => Kind::Other,
        }
    }
}

/// Routine errors.
const BAD_MIC: u32 = 6;
const DEFECTIVE_TOKEN: u32 = 9;
/// The first code of krb5's own table of errors (krb5.h).
const KRB5_BASE: i32 = -1_765_328_384;

/// The number of an error in krb5's table.
fn krb5(minor: u32) -> Option<i32> {
    let number = minor.cast_signed().wrapping_sub(KRB5_BASE);
    (0..256).contains(&number).then_some(number)
}

/// A failure. `Display` is one sentence with the remedy; neither it nor `Debug` names principals.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{kind}{}", Codes(*.major, *.minor))]
pub struct Error {
    kind: Kind,
    major: u32,
    minor: u32,
    text: Box<str>,
}

impl Error {
    /// What the library returned, with its own words.
    pub(crate) fn of_library(major: u32, minor: u32, text: String) -> Error {
        Error {
            kind: Kind::of(major, minor),
            major,
            minor,
            text: text.into(),
        }
    }

    /// An error that was found without the library.
    pub(crate) fn new(kind: Kind, text: impl Into<Box<str>>) -> Error {
        Error {
            kind,
            major: 0,
            minor: 0,
            text: text.into(),
        }
    }

    /// What it means.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The major status of GSS-API; 0 if the library was not asked.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The minor status, which is the mechanism's.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// Whether the library says that it finds or reaches no KDC of this realm, in just these words: the realm of a
    /// user's ticket may have any name.
    pub fn is_without_kdc_of(&self, realm: &str) -> bool {
        let minor = self.text.split_once(": ").map(|(_, minor)| minor);
        minor.is_some_and(|minor| {
            minor == format!("Cannot contact any KDC for realm '{realm}'")
                || minor == format!("Cannot find KDC for realm \"{realm}\"")
        })
    }

    /// The library's own words, which may name principals: not for a log that others read.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}", self.kind, Codes(self.major, self.minor))
    }
}

/// The two codes behind a sentence, for who looks them up.
struct Codes(u32, u32);

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Codes(0, 0) => Ok(()),
            Codes(major, minor) => {
                write!(f, " (GSS-API error {:#x}, {})", major, minor.cast_signed())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A routine error and the number of an error of krb5.
    fn kind(routine: u32, number: i32) -> Kind {
        Kind::of(routine << 16, (KRB5_BASE + number).cast_unsigned())
    }

    #[test]
    fn kinds_by_codes() {
        const FAILURE: u32 = 13;
        assert_eq!(kind(FAILURE, 7), Kind::NoServerKey);
        assert_eq!(kind(FAILURE, 32), Kind::Expired);
        assert_eq!(kind(FAILURE, 37), Kind::ClockSkew);
        assert_eq!(kind(FAILURE, 33), Kind::NoCredential);
        assert_eq!(kind(FAILURE, 156), Kind::Realm);
        assert_eq!(kind(FAILURE, 195), Kind::NoCredential);
        assert_eq!(kind(FAILURE, 60), Kind::Other);
        assert_eq!(Kind::of(7 << 16, 1), Kind::NoCredential);
        assert_eq!(Kind::of(12 << 16, 0), Kind::Expired);
        assert_eq!(kind(BAD_MIC, 31), Kind::Defective);
        assert_eq!(Kind::of(6 << 16, 0), Kind::Defective);
        assert_eq!(Kind::of(9 << 16, 0), Kind::Defective);
        // A calling error beside it.
        assert_eq!(Kind::of(1 << 24 | 9 << 16, 0), Kind::Defective);
        assert_eq!(Kind::of(13 << 16, u32::MAX), Kind::Other);
    }

    #[test]
    fn the_realm_without_a_kdc() {
        let of = |minor: &str| Error::of_library(13 << 16, 0, format!("Unspecified: {minor}"));
        let unreached = of("Cannot contact any KDC for realm 'A'");
        assert!(unreached.is_without_kdc_of("A") && !unreached.is_without_kdc_of("B"));
        assert!(of("Cannot find KDC for realm \"A\"").is_without_kdc_of("A"));
        // A ticket of a realm with a name like a sentence.
        let other = "x': Cannot contact any KDC for realm 'A";
        let other = of(&format!("Cannot contact any KDC for realm '{other}'"));
        assert!(!other.is_without_kdc_of("A"));
    }

    #[test]
    fn nobody_is_named() {
        let error = Error::of_library(7 << 16, 0, "no ticket of alice@REALM".into());
        assert!(!format!("{error} {error:?}").contains("alice"), "{error}");
        assert!(error.text().contains("alice"));
        assert_eq!(
            error.to_string(),
            "there is no Kerberos ticket; get one by kinit (GSS-API error 0x70000, 0)"
        );
        let error = Error::new(Kind::NotInstalled, "");
        assert!(error.to_string().contains("libgssapi-krb5-2"));
    }
}
