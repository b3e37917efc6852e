//! Strategies for values of NLM, NSM and NFS_ACL.

use super::strategies::{attributes, file_handle, reply, text};
use crate::{nfs_acl, nlm4, nsm};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn nlm_status() -> impl Strategy<Value = nlm4::Status> {
    select(nlm4::Status::ALL)
}

fn nlm_lock() -> impl Strategy<Value = nlm4::Lock<'static>> {
    let owner = (text(), any::<u32>());
    let range = (any::<u64>(), any::<u64>());
    (text(), file_handle(), owner, range).prop_map(
        |(caller_name, file, (owner, svid), (offset, length))| nlm4::Lock {
            caller_name,
            file,
            owner,
            svid,
            offset,
            length,
        },
    )
}

pub fn nlm_lock_args() -> impl Strategy<Value = nlm4::LockArgs<'static>> {
    let flags = any::<[bool; 3]>();
    (text(), flags, nlm_lock(), any::<u32>()).prop_map(
        |(cookie, [block, exclusive, reclaim], lock, state)| nlm4::LockArgs {
            cookie,
            block,
            exclusive,
            lock,
            reclaim,
            state,
        },
    )
}

pub fn nlm_test_args() -> impl Strategy<Value = nlm4::TestArgs<'static>> {
    (text(), any::<bool>(), nlm_lock()).prop_map(|(cookie, exclusive, lock)| nlm4::TestArgs {
        cookie,
        exclusive,
        lock,
    })
}

pub fn nlm_cancel_args() -> impl Strategy<Value = nlm4::CancelArgs<'static>> {
    (text(), any::<[bool; 2]>(), nlm_lock()).prop_map(|(cookie, [block, exclusive], lock)| {
        nlm4::CancelArgs {
            cookie,
            block,
            exclusive,
            lock,
        }
    })
}

pub fn nlm_unlock_args() -> impl Strategy<Value = nlm4::UnlockArgs<'static>> {
    (text(), nlm_lock()).prop_map(|(cookie, lock)| nlm4::UnlockArgs { cookie, lock })
}

pub fn nlm_res() -> impl Strategy<Value = nlm4::Res<'static>> {
    (text(), nlm_status()).prop_map(|(cookie, status)| nlm4::Res { cookie, status })
}

pub fn nlm_test_res() -> impl Strategy<Value = nlm4::TestRes<'static>> {
    let range = (any::<u64>(), any::<u64>());
    let holder = (any::<bool>(), any::<u32>(), text(), range).prop_map(
        |(exclusive, svid, owner, (offset, length))| {
            nlm4::TestReply::Denied(nlm4::Holder {
                exclusive,
                svid,
                owner,
                offset,
                length,
            })
        },
    );
    let other = nlm_status()
        .prop_filter("DENIED names the holder", |&status| {
            status != nlm4::Status::Denied
        })
        .prop_map(nlm4::TestReply::Other);
    (text(), prop_oneof![holder, other]).prop_map(|(cookie, reply)| nlm4::TestRes { cookie, reply })
}

pub fn nlm_notify() -> impl Strategy<Value = nlm4::Notify<'static>> {
    (text(), any::<u32>()).prop_map(|(name, state)| nlm4::Notify { name, state })
}

fn nsm_private() -> impl Strategy<Value = nsm::Private> {
    any::<[u8; nsm::PRIVATE_LEN]>().prop_map(nsm::Private)
}

pub fn nsm_monitor() -> impl Strategy<Value = nsm::Monitor<'static>> {
    let callback = (text(), any::<[u32; 3]>()).prop_map(|(name, [program, version, procedure])| {
        nsm::Callback {
            name,
            program,
            version,
            procedure,
        }
    });
    (text(), callback, nsm_private()).prop_map(|(name, callback, private)| nsm::Monitor {
        id: nsm::MonitorId { name, callback },
        private,
    })
}

pub fn nsm_stat_res() -> impl Strategy<Value = nsm::StatRes> {
    (select(nsm::Outcome::ALL), any::<u32>())
        .prop_map(|(outcome, state)| nsm::StatRes { outcome, state })
}

pub fn nsm_state_change() -> impl Strategy<Value = nsm::StateChange<'static>> {
    (text(), any::<u32>()).prop_map(|(name, state)| nsm::StateChange { name, state })
}

pub fn nsm_host_status() -> impl Strategy<Value = nsm::HostStatus<'static>> {
    (text(), any::<u32>(), nsm_private()).prop_map(|(name, state, private)| nsm::HostStatus {
        name,
        state,
        private,
    })
}

fn acl() -> impl Strategy<Value = Vec<nfs_acl::AclEntry>> {
    let entry = any::<[u32; 3]>().prop_map(|[tag, id, permissions]| nfs_acl::AclEntry {
        tag,
        id,
        permissions,
    });
    vec(entry, 0..8)
}

fn acl_lists() -> impl Strategy<Value = nfs_acl::AclLists> {
    (any::<[u32; 3]>(), acl(), acl()).prop_map(
        |([mask, acl_count, default_count], acl, default_acl)| nfs_acl::AclLists {
            mask,
            acl_count,
            acl,
            default_count,
            default_acl,
        },
    )
}

pub fn getacl_args() -> impl Strategy<Value = nfs_acl::GetaclArgs> {
    (file_handle(), any::<u32>()).prop_map(|(object, mask)| nfs_acl::GetaclArgs { object, mask })
}

pub fn getacl_res() -> impl Strategy<Value = nfs_acl::GetaclRes> {
    let ok = (option::of(attributes()), acl_lists())
        .prop_map(|(attributes, lists)| nfs_acl::GetaclOk { attributes, lists });
    reply(ok, option::of(attributes()))
}

pub fn setacl_args() -> impl Strategy<Value = nfs_acl::SetaclArgs> {
    (file_handle(), acl_lists()).prop_map(|(object, lists)| nfs_acl::SetaclArgs { object, lists })
}

pub fn setacl_res() -> impl Strategy<Value = nfs_acl::SetaclRes> {
    reply(option::of(attributes()), option::of(attributes()))
}
