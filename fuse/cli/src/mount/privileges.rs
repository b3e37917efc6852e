//! Gives up what the serving process does not need: all capabilities but five, also in the
//! bounding set; core dumps and tracing by the same user; and, where it can unmount without
//! fusermount3, new privileges of programs that it starts.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// What root's process keeps:
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN // to mount and unmount,
    .union(CapabilitySet::DAC_READ_SEARCH) // also below directories closed to root,
    .union(CapabilitySet::NET_BIND_SERVICE) // for reserved ports, also of UMNT at the end,
    .union(CapabilitySet::IPC_LOCK) // for an RDMA device's memory, also after reconnecting,
    .union(CapabilitySet::SYS_PTRACE); // to see which waiting callers are being killed.

/// Gives up what is not needed. Concerns the calling thread and those it starts later: to be
/// called before there are others. What is refused, a sandbox has taken already.
pub(crate) fn give_up() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("core dumps may hold file data: {error}");
    }
    let Ok(held) = capabilities(None) else { return };
    if held.permitted.is_empty() {
        return;
    }
    for capability in CapabilitySet::all().difference(NEEDED) {
        // Fails without CAP_SETPCAP, and for numbers this kernel does not have.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let kept = held.permitted & NEEDED;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    if let Err(error) = set_capabilities(None, sets) {
        tracing::warn!("capabilities are kept: {error}");
    }
    // Only who cannot unmount needs fusermount3, which is set-user-id.
    if kept.contains(CapabilitySet::SYS_ADMIN)
        && let Err(error) = set_no_new_privs(true)
    {
        tracing::warn!("programs it starts may gain privileges: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_what_is_needed_and_nothing_else() {
        let before = capabilities(None).unwrap();
        // Capabilities are each thread's own, and threads begun by this one's.
        let kept = std::thread::spawn(|| {
            give_up();
            capabilities(None).unwrap()
        });
        let kept = kept.join().unwrap();
        let dumpable = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(dumpable, DumpableBehavior::NotDumpable);
        assert_eq!(kept.permitted, before.permitted & NEEDED);
        assert_eq!(kept.effective, before.permitted & NEEDED);
        assert!(kept.inheritable.is_empty());
    }
}
