//! AUTH_SYS call headers (RFC 5531 section 8.2 and appendix A), encoded once for each credential.
//!
//! All calls of a user begin with the same bytes but for XID and procedure, so they are kept as a
//! template. Each thread remembers the last few, which needs no lock and suits a mount with few
//! users. AUTH_SYS carries at most 16 supplementary groups; the others are left out.

use crate::options::Program;
use nfsrdma_xdr::rpc::{Auth, AuthSys, CallTemplate, MAX_GROUPS};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who asks: AUTH_SYS identity (RFC 5531 appendix A).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Credential {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups. AUTH_SYS carries 16; the rest is left out on the wire.
    pub groups: Vec<u32>,
}

/// A credential many calls share.
pub type Cred = Arc<Credential>;

/// Encoded headers a thread remembers.
const REMEMBERED: usize = 8;

/// `cred` in AUTH_SYS, which leaves out the groups it has no room for.
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
    /// Of this thread, so that no lock is needed; of all clients, told apart by `owner`.
    static CACHE: RefCell<Vec<Remembered>> = const { RefCell::new(Vec::new()) };
}

/// Makes call headers for a program.
#[derive(Debug)]
pub struct Credentials {
    machine: Vec<u8>,
    program: Program,
    owner: u64,
}

impl Credentials {
    /// `machine`: the name in every credential.
    pub fn new(machine: &[u8], program: Program) -> Self {
        static OWNERS: AtomicU64 = AtomicU64::new(0);
        Credentials {
            machine: machine.to_vec(),
            program,
            owner: OWNERS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The header of calls of another program under `cred`, which is not remembered.
    pub fn template_of(&self, program: u32, version: u32, cred: &Cred) -> CallTemplate {
        CallTemplate::new(program, version, auth(&self.machine, cred))
    }

    /// The header of calls under `cred`.
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
                auth(&self.machine, cred),
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
    fn many_users_and_clients_do_not_mix() {
        let (a, b) = (
            Credentials::new(b"a", PROGRAM),
            Credentials::new(b"b", PROGRAM),
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
