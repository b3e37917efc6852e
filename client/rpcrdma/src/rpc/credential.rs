//! AUTH_SYS call headers (RFC 5531 section 8.2 and appendix A), encoded once for each credential.
//!
//! All calls of a user begin with the same bytes except for XID and procedure, so these bytes are
//! kept as a template. Each thread caches the templates of the last few credentials: that needs no
//! lock, and few suffice because most mounts have few users. AUTH_SYS carries at most 16
//! supplementary groups; the others are left out.

use crate::options::Program;
use nfsrdma_xdr::rpc::{Auth, AuthSys, CallTemplate, MAX_GROUPS};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The identity of a caller (AUTH_SYS, RFC 5531 appendix A).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Credential {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups. The first 16 are sent, all that AUTH_SYS has room for.
    pub groups: Vec<u32>,
}

/// A credential shared by many calls.
pub type Cred = Arc<Credential>;

/// Templates that a thread caches.
const REMEMBERED: usize = 8;

/// Encodes `cred` as AUTH_SYS, without the groups that it has no room for.
pub fn auth<'a>(machine: &'a [u8], cred: &Cred) -> Auth<'a> {
    Auth::Sys(AuthSys {
        stamp: 0,
        machine,
        uid: cred.uid,
        gid: cred.gid,
        groups: cred.groups.iter().copied().take(MAX_GROUPS).collect(),
    })
}

struct Remembered {
    owner: u64,
    cred: Cred,
    template: Arc<CallTemplate>,
}

thread_local! {
    /// The templates this thread has used, of all clients; `owner` tells the clients apart.
    static CACHE: RefCell<Vec<Remembered>> = const { RefCell::new(Vec::new()) };
}

/// Makes call headers for a program.
#[derive(Debug)]
pub struct Credentials {
    machine: Vec<u8>,
    program: Program,
    owner: u64,
    /// Whether calls are made under RPCSEC_GSS.
    secured: bool,
}

impl Credentials {
    /// `machine` is the machine name in every credential. With `secured`, headers have AUTH_NONE, which
    /// [`Engine::call_secured`](crate::transport::Engine::call_secured) replaces.
    pub fn new(machine: &[u8], program: Program, secured: bool) -> Self {
        static OWNERS: AtomicU64 = AtomicU64::new(0);
        Credentials {
            machine: machine.to_vec(),
            program,
            owner: OWNERS.fetch_add(1, Ordering::Relaxed),
            secured,
        }
    }

    /// The credential in the headers of calls under `cred`.
    fn auth(&self, cred: &Cred) -> Auth<'_> {
        match self.secured {
            false => auth(&self.machine, cred),
            true => Auth::None,
        }
    }

    /// The header for calls of another program under `cred`; it is not cached.
    pub fn template_of(&self, program: u32, version: u32, cred: &Cred) -> CallTemplate {
        CallTemplate::new(program, version, self.auth(cred))
    }

    /// The header for calls under `cred`, cached by the calling thread.
    pub fn template(&self, cred: &Cred) -> Arc<CallTemplate> {
        CACHE.with_borrow_mut(|cache| {
            let hit = cache.iter().position(|r| {
                r.owner == self.owner && (Arc::ptr_eq(&r.cred, cred) || r.cred == *cred)
            });
            if let Some(at) = hit {
                return cache[at].template.clone();
            }
            let template = Arc::new(CallTemplate::new(
                self.program.number,
                self.program.version,
                self.auth(cred),
            ));
            if cache.len() >= REMEMBERED {
                cache.pop();
            }
            cache.insert(
                0,
                Remembered {
                    owner: self.owner,
                    cred: cred.clone(),
                    template: template.clone(),
                },
            );
            template
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_xdr::codec::Encoder;

    const PROGRAM: Program = Program {
        number: 100_003,
        version: 3,
        procedures: &[],
        side_procedures: &[],
    };

    fn cred(uid: u32) -> Cred {
        Arc::new(Credential {
            uid,
            gid: 2,
            groups: (0..40).collect(),
        })
    }

    fn header(credentials: &Credentials, cred: &Cred) -> Vec<u8> {
        let mut to = Encoder::default();
        credentials.template(cred).encode(7, 1, &mut to);
        to.into_vec()
    }

    #[test]
    fn the_body_has_user_group_and_the_first_sixteen_groups() {
        let of = |groups: Vec<u32>| {
            let cred = Arc::new(Credential {
                uid: 1,
                gid: 2,
                groups,
            });
            let bytes = header(&Credentials::new(b"host", PROGRAM, false), &cred);
            // XID, CALL, RPC version, program, version, procedure: six words before the credential.
            let words = bytes.chunks(4).skip(6);
            words
                .map(|word| u32::from_be_bytes(word.try_into().unwrap()))
                .collect::<Vec<_>>()
        };
        let machine = u32::from_be_bytes(*b"host");
        // AUTH_SYS: length, stamp, machine, uid, gid, number of groups; AUTH_NONE at the end.
        let few = [1, 36, 0, 4, machine, 1, 2, 3, 7, 8, 9, 0, 0];
        assert_eq!(of(vec![7, 8, 9]), few);
        let many = of((100..140).collect());
        assert_eq!(many[7], 16);
        assert!(many[8..24].iter().copied().eq(100..116));
        assert_eq!(many[24..], [0, 0]);
    }

    #[test]
    fn many_users_and_clients_do_not_mix() {
        let (a, b) = (
            Credentials::new(b"a", PROGRAM, false),
            Credentials::new(b"b", PROGRAM, false),
        );
        let fresh: Vec<_> = (0..20).map(|uid| header(&a, &cred(uid))).collect();
        for uid in (0..20).rev() {
            assert_eq!(header(&a, &cred(uid)), fresh[uid as usize]);
            assert_ne!(header(&b, &cred(uid)), fresh[uid as usize]);
        }
        // 24 fixed bytes, flavor and length, stamp, "a", uid, gid, 16 groups, AUTH_NONE.
        assert_eq!(fresh[0].len(), 24 + 8 + 4 + 8 + 8 + 4 + 64 + 8);
    }
}
