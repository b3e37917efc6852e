//! Finds the tickets of a user as rpc.gssd does: where krb5.conf has them, and then the newest cache
//! that belongs to the user in the directories where programs like sshd put them. Root has a key of
//! the machine instead. The shell's KRB5CCNAME is never seen.

use crate::kerberos::keytab::machine_principals;
use crate::kerberos::protocol::{Refusal, Request};
use nfsrdma_gss::{Credential, Initiator, Kind, Library, Output};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// How ticket caches are named.
const PREFIX: &str = "krb5cc_";
/// Most caches that are tried: a directory for all users may be full of names.
const MAX_CACHES: usize = 32;
/// Largest keytab that is read, in bytes.
const MAX_KEYTAB: u64 = 1 << 20;

/// Begins a context with the tickets of this process's user; also returns the first token.
pub(super) fn begin(library: Library, request: &Request) -> Result<(Initiator, Output), Refusal> {
    if request.uid == 0 {
        return of_machine(library, request);
    }
    let usual = library.usual_cache()?;
    let begun = match belongs_to(&usual, request.uid) {
        true => begin_with(library, library.tickets(None), request),
        false => Err(Refusal::new(
            Kind::NoCredential,
            Kind::NoCredential.to_string(),
        )),
    };
    let mut why = match begun {
        Err(refusal) if may_have_others(&refusal) => refusal,
        begun => return begun,
    };
    for cache in caches(request) {
        match begin_with(library, library.tickets(Some(&cache)), request) {
            // The first is where the user expects tickets, unless another one tells more.
            Err(refusal) if may_have_others(&refusal) => {
                if refusal.kind == Kind::Expired {
                    why = refusal;
                }
            }
            begun => return begun,
        }
    }
    Err(why)
}

/// Whether other tickets may help.
fn may_have_others(refusal: &Refusal) -> bool {
    matches!(
        refusal.kind,
        Kind::NoCredential | Kind::Expired | Kind::Defective | Kind::Other
    )
}

fn begin_with(
    library: Library,
    tickets: Result<Credential, nfsrdma_gss::Error>,
    request: &Request,
) -> Result<(Initiator, Output), Refusal> {
    let mut initiator = library.initiator(tickets?, &request.target)?;
    let step = initiator.step(&[]).map_err(|error| {
        match request.uid != 0 && is_of_another_realm(library, request, &error) {
            true => Refusal::new(
                Kind::NoCredential,
                "there is no Kerberos ticket that can be used: no KDC of its realm can be reached; get one of this \
                 host's realm by kinit",
            ),
            false => error.into(),
        }
    })?;
    Ok((initiator, step.token))
}

/// Whether it is the realm of the user's tickets that is not reached, not that of this host or of the server. Anybody
/// may have a ticket that names a realm without a KDC.
fn is_of_another_realm(library: Library, request: &Request, error: &nfsrdma_gss::Error) -> bool {
    if error.kind() != Kind::Realm {
        return false;
    }
    // Without any, krb5.conf is at fault.
    let Ok(realms) = library.realms(&request.target) else {
        return false;
    };
    !realms.iter().any(|realm| error.is_without_kdc_of(realm))
}

/// Whether a cache is the user's own. Where krb5.conf has caches in a directory for everybody, anybody may
/// put one there in the name of another user, who would then call as somebody else. What is no file is
/// kept by who knows its owner.
fn belongs_to(cache: &str, uid: u32) -> bool {
    let path = match cache.split_once(':') {
        Some(("FILE" | "DIR", path)) => path,
        Some((kind, _)) if !kind.contains('/') => return true,
        _ => cache,
    };
    // One cache of a collection.
    let path = match path.strip_prefix(':') {
        Some(one) => Path::new(one).parent(),
        None => Some(Path::new(path)),
    };
    path.and_then(|path| fs::symlink_metadata(path).ok())
        .is_some_and(|found| found.uid() == uid && (found.is_file() || found.is_dir()))
}

/// The ticket caches of the user, newest first.
fn caches(request: &Request) -> Vec<String> {
    let mut found: Vec<(SystemTime, String)> = Vec::new();
    for directory in &request.directories {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if !name.starts_with(PREFIX) {
                continue;
            }
            // This does not follow a symbolic link, which anybody may put into /tmp.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.uid() != request.uid {
                continue;
            }
            let kind = match metadata.file_type() {
                kind if kind.is_file() => "FILE",
                kind if kind.is_dir() => "DIR",
                _ => continue,
            };
            let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((changed, format!("{kind}:{directory}/{name}")));
        }
    }
    found.sort();
    let newest = found.into_iter().rev().take(MAX_CACHES);
    newest.map(|(_, name)| name).collect()
}

/// With a key of the machine, by which the library gets a ticket for this context alone.
fn of_machine(library: Library, request: &Request) -> Result<(Initiator, Output), Refusal> {
    let path = &request.keytab;
    let no_key = |why: String| {
        let sentence = format!(
            "root has no Kerberos key: {why}; put one of nfs/HOST or host/HOST into the keytab, by kadmin's ktadd or \
             when this host joins the realm"
        );
        Refusal::new(Kind::NoCredential, sentence)
    };
    let size = fs::metadata(path).map(|metadata| metadata.len());
    let keytab = match size {
        Ok(MAX_KEYTAB..) => return Err(no_key(format!("{path} is too large"))),
        _ => fs::read(path).map_err(|error| no_key(format!("{path} cannot be read ({error})")))?,
    };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut last = no_key(format!("{path} has none of HOST$, root/, nfs/ and host/"));
    for principal in machine_principals(&keytab, host.trim()) {
        let tickets = library.tickets_by_key(&principal, Some(path));
        match begin_with(library, tickets, request) {
            Err(refusal) if may_have_others(&refusal) => last = refusal,
            begun => return begun,
        }
    }
    Err(last)
}
