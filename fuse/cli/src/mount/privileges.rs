//! Drops the privileges that a process does not need: all capabilities but those of a list, also in
//! the bounding set; core dumps and tracing by the same user; and the gain of privileges by programs
//! that it starts, unless it may need fusermount3.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// The capabilities that the serving process of root keeps:
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN // to mount and unmount,
    .union(CapabilitySet::DAC_READ_SEARCH) // also below directories closed to root,
    .union(CapabilitySet::NET_BIND_SERVICE) // for reserved ports, also of UMNT at the end,
    .union(CapabilitySet::IPC_LOCK) // for an RDMA device's memory, also after reconnecting,
    .union(CapabilitySet::SYS_PTRACE); // to see which waiting callers are being killed.

/// And for Kerberos:
const NEEDED_FOR_USERS: CapabilitySet = CapabilitySet::SETUID // to start processes that have the rights
    .union(CapabilitySet::SETGID) // of users,
    .union(CapabilitySet::KILL); // and to end them.

/// Those that `nfsrdma metrics` keeps, to connect to the processes of other users: their sockets are
/// for them alone (mode 0600).
const NEEDED_TO_ASK: CapabilitySet = CapabilitySet::DAC_OVERRIDE;

/// Drops the privileges that a serving process does not need. As [`give_up_for_metrics`], it affects
/// the calling thread and the threads that it starts later, so call it before there are others. What
/// a sandbox has already taken away is no error.
pub(crate) fn give_up(kerberos: bool) {
    let needed = match kerberos {
        true => NEEDED.union(NEEDED_FOR_USERS),
        false => NEEDED,
    };
    // A process that cannot unmount by itself needs fusermount3, which is set-user-id.
    if keep(needed).contains(CapabilitySet::SYS_ADMIN) {
        gain_none();
    }
}

/// Drops the privileges that `nfsrdma metrics` does not need.
pub(crate) fn give_up_for_metrics() {
    keep(NEEDED_TO_ASK);
    gain_none();
}

fn gain_none() {
    if let Err(error) = set_no_new_privs(true) {
        tracing::warn!("programs it starts may gain privileges: {error}");
    }
}

/// Nothing of this process gets into a core dump, and no process of the same user can look into it.
pub(crate) fn leave_no_core() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("core dumps may hold file data: {error}");
    }
}

/// Drops all capabilities but `needed`. Returns what is left.
fn keep(needed: CapabilitySet) -> CapabilitySet {
    leave_no_core();
    let Ok(held) = capabilities(None) else {
        return CapabilitySet::empty();
    };
    if held.permitted.is_empty() {
        return CapabilitySet::empty();
    }
    for capability in CapabilitySet::all().difference(needed) {
        // This fails without CAP_SETPCAP, and for capabilities that this kernel does not have.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let kept = held.permitted & needed;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    if let Err(error) = set_capabilities(None, sets) {
        tracing::warn!("capabilities are kept: {error}");
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_what_is_needed_and_nothing_else() {
        let before = capabilities(None).unwrap();
        for (kerberos, needed) in [(false, NEEDED), (true, NEEDED | NEEDED_FOR_USERS)] {
            // Capabilities belong to a thread, and a new thread inherits them.
            let kept = std::thread::spawn(move || {
                give_up(kerberos);
                capabilities(None).unwrap()
            });
            let kept = kept.join().unwrap();
            let dumpable = rustix::process::dumpable_behavior().unwrap();
            assert_eq!(dumpable, DumpableBehavior::NotDumpable);
            assert_eq!(kept.permitted, before.permitted & needed);
            assert_eq!(kept.effective, before.permitted & needed);
            assert!(kept.inheritable.is_empty());
        }
    }
}
