//! Directory listings.

use super::support::*;
use nfsrdma_fs::fs::{FsConfig, ROOT};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::Status;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

fn plant(server: &MemoryServer, count: usize) -> Vec<String> {
    let names: Vec<_> = (0..count).map(|i| format!("entry-{i:06}")).collect();
    names.iter().for_each(|name| server.plant(name, b""));
    names
}

#[test]
fn what_stays_is_listed_once_while_the_rest_is_removed() {
    let m = Mount::new();
    let names = plant(&m.server, 3000);
    let gone: Vec<_> = names.iter().step_by(2).cloned().collect();
    let mut left = gone.iter();
    let listed = m.list(ROOT, 50, |_| {
        for name in left.by_ref().take(60) {
            m.unlink(name).unwrap();
        }
    });
    let unique: BTreeSet<_> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len());
    assert!(
        names
            .iter()
            .skip(1)
            .step_by(2)
            .all(|name| unique.contains(name))
    );
    assert_eq!(m.server.names("").len(), 1500);
}

/// Some servers change the verifier with the directory's times, though their cookies stay valid.
#[test]
fn a_listing_survives_a_new_cookie_verifier() {
    let m = Mount::new();
    let expected = plant(&m.server, 2000);
    let mut next = 300;
    let names = m.list(ROOT, 70, |so_far| {
        if so_far > next {
            m.server.renew_cookie_verifier();
            next += 500;
        }
    });
    assert_eq!(names, expected);
}

/// Nobody knows then what was listed already. What Linux's client shows as the end is an error here.
#[test]
fn a_listing_whose_cookies_have_gone_is_an_error() {
    let m = Mount::new();
    plant(&m.server, 2000);
    let mut good = true;
    let listed = m.try_list(ROOT, 70, |so_far| {
        if so_far > 300 && std::mem::take(&mut good) {
            m.server.renumber_cookies();
        }
    });
    assert_eq!(errno(listed), libc::EINVAL);
}

#[test]
fn a_directory_whose_cookies_are_never_good_is_an_error() {
    let m = Mount::new();
    plant(&m.server, 2000);
    let server = Arc::downgrade(&m.server);
    m.server.set_hook(move |op, before| {
        if op == Op::Readdirplus {
            assert!(before < 1000, "the listing starts over for ever");
            server.upgrade().unwrap().renumber_cookies();
        }
        Fate::Done
    });
    let listed = m.try_list(ROOT, usize::MAX, |_| {});
    assert_eq!(errno(listed), libc::EINVAL);
    m.server.clear_hook();
    assert_eq!(m.list(ROOT, 1000, |_| {}).len(), 2000);
}

#[test]
fn servers_without_readdirplus_or_with_bare_entries_do() {
    for how in 0..3 {
        let config = FsConfig {
            readdirplus: how != 2,
            ..small()
        };
        let m = Mount::of(&MemoryServer::new(), config);
        let expected = plant(&m.server, 300);
        match how {
            0 => m.server.bare_entries(),
            1 => m.fate(Op::Readdirplus, Fate::Refused(Status::NotSupp)),
            _ => {}
        }
        assert_eq!(m.list(ROOT, 100, |_| {}), expected);
    }
}

#[test]
fn entries_given_to_the_kernel_are_counted() {
    let m = Mount::new();
    plant(&m.server, 10);
    let opened = block_on(m.fs.opendir(&m.cred, ROOT)).unwrap();
    let listing = block_on(m.fs.readdir(opened.handle, 0)).unwrap();
    let told: Vec<_> = listing
        .entries()
        .iter()
        .filter_map(|entry| m.fs.listed_entry(&listing, entry))
        .collect();
    assert_eq!(told.len(), 10);
    assert_eq!(m.count("inodes"), 11);
    for entry in &told {
        m.fs.forget(entry.nodeid, 1);
    }
    assert_eq!(m.count("inodes"), 1);
}

#[test]
fn a_directory_that_goes_round_in_a_loop_is_an_error() {
    // Pages that are smaller than the period of the cookies, and larger ones.
    for (dtpref, period) in [(1000, 64), (1000, 11), (64 << 10, 100), (64 << 10, 1)] {
        for step in [1, 7, 1000] {
            let m = Mount::of(&server_of(4096, dtpref, 0), small());
            plant(&m.server, 500);
            m.server.repeat_cookies(period);
            assert_eq!(errno(m.try_list(ROOT, step, |_| {})), libc::EIO);
        }
    }
}

/// As with a hard link at the end of a directory whose cookies are fileids.
#[test]
fn a_listing_ends_though_its_last_cookie_was_there_before() {
    // Of one page of the server, and of many. The cookies are 10, 13, 16 and so on.
    for files in [10, 3000] {
        for step in [7, 5000] {
            let m = Mount::new();
            let names = plant(&m.server, files);
            m.server.change_cookie(10 + 3 * (files as u64 - 1), 13);
            assert_eq!(m.list(ROOT, step, |_| {}), names, "{files} {step}");
        }
    }
}

/// The position after one entry is said to be the beginning of the directory.
#[test]
fn a_cookie_of_zero_spoils_no_listing() {
    // The cookies of the names are 10, 13 and so on to 157.
    for zero in [10, 70, 157] {
        for step in [1, 7, 1000] {
            let m = Mount::of(&MemoryServer::new(), small());
            let names = plant(&m.server, 50);
            m.server.change_cookie(zero, 0);
            assert_eq!(m.list(ROOT, step, |_| {}), names, "{zero} {step}");
        }
    }
    // But nothing can be read after a page that ends with it.
    let m = Mount::of(&server_of(4096, 1000, 0), small());
    plant(&m.server, 500);
    let opened = block_on(m.fs.opendir(&m.cred, ROOT)).unwrap();
    let first = block_on(m.fs.readdir(opened.handle, 0)).unwrap();
    let last = first.entries().last().unwrap().cookie;
    m.fs.releasedir(opened.handle).unwrap();
    m.server.change_cookie(last, 0);
    assert_eq!(errno(m.try_list(ROOT, 7, |_| {})), libc::EIO);
}

/// The kernel takes a page of the server in small steps, between which programs may rename. It puts
/// what it is given in the place of what it knows of the name.
#[test]
fn the_rest_of_a_page_binds_no_name_to_what_it_led_to_before() {
    let m = Mount::new();
    plant(&m.server, 30);
    let opened = block_on(m.fs.opendir(&m.cred, ROOT)).unwrap();
    let listing = block_on(m.fs.readdir(opened.handle, 0)).unwrap();
    assert!(listing.entries().len() >= 30, "one page");
    let at = listing.entries()[4].cookie;
    m.rename("entry-000010", "moved").unwrap();
    let (node, handle) = m.create("entry-000010");
    m.close(handle).unwrap();
    m.unlink("entry-000011").unwrap();
    m.rename("entry-000012", "entry-000013").unwrap();
    let rest = || m.fs.readdir_cached(opened.handle, at).unwrap().unwrap();
    let told = |name: &str| {
        let rest = rest();
        let mut entries = rest.entries().iter();
        let entry = entries.find(|entry| *entry.name == *name.as_bytes());
        let told = m.fs.listed_entry(&rest, entry.expect("it was listed"));
        told.inspect(|told| m.fs.forget(told.nodeid, 1))
            .map(|told| told.nodeid)
    };
    assert!(told("entry-000010").is_none_or(|told| told == node));
    assert_eq!(told("entry-000011"), None);
    assert_eq!(told("entry-000012"), None);
    assert!(told("entry-000013").is_none_or(|told| told == m.node("entry-000013")));
    // The others are looked up in memory, if the kernel wants them.
    for name in ["entry-000009", "entry-000014", "entry-000029"] {
        let calls = m.server.all_calls();
        let node = m.node(name);
        assert!(told(name).is_none_or(|told| told == node));
        assert_eq!(m.server.all_calls(), calls, "{name} was looked up");
    }
    // Another client's change may concern any of them.
    let other = Mount::of(&m.server, small());
    other.rename("entry-000020", "entry-000021").unwrap();
    m.clock.advance(Duration::from_secs(3600));
    m.stat(ROOT).unwrap();
    for name in ["entry-000014", "entry-000020", "entry-000021"] {
        assert_eq!(told(name), None, "{name}");
    }
    m.fs.releasedir(opened.handle).unwrap();
}

#[test]
fn a_page_that_was_asked_for_ahead_and_is_old_is_asked_for_again() {
    let mut shown: Vec<String> = Vec::new();
    for pause in [0, 600] {
        let m = Mount::of(&server_of(4096, 1000, 0), small());
        plant(&m.server, 500);
        let opened = block_on(m.fs.opendir(&m.cred, ROOT)).unwrap();
        let mut at = 0;
        for _ in 0..2 {
            let listing = block_on(m.fs.readdir(opened.handle, at)).unwrap();
            at = listing.entries().last().unwrap().cookie;
        }
        assert_eq!(m.server.calls(Op::Readdirplus), 3, "two, and one ahead");
        let removed = shown.pop();
        if let Some(removed) = &removed {
            // Another client's change, of which nothing is known here.
            let other = Mount::of(&m.server, small());
            other.unlink(removed).unwrap();
        }
        m.clock.advance(Duration::from_secs(pause));
        let listing = block_on(m.fs.readdir(opened.handle, at)).unwrap();
        let entries = listing.entries().iter();
        shown = entries
            .map(|entry| String::from_utf8(entry.name.to_vec()).unwrap())
            .collect();
        assert!(!shown.is_empty());
        assert!(removed.is_none_or(|removed| !shown.contains(&removed)));
        m.fs.releasedir(opened.handle).unwrap();
    }
}

/// What Linux's client sends. A server may keep the mode, and choose one if there is none.
#[test]
fn a_symbolic_link_is_made_with_all_permissions() {
    let m = Mount::new();
    let made = block_on(m.fs.symlink(&m.cred, 1, b"l", b"target")).unwrap();
    assert_eq!(made.attributes.mode & 0o7777, 0o777);
}

/// Each open directory keeps a page until it is closed.
#[test]
fn many_open_directories_keep_small_pages() {
    let m = Mount::new();
    let names = plant(&m.server, 3000);
    let shown = |handle| {
        let listing = block_on(m.fs.readdir(handle, 0)).unwrap();
        listing.entries().len()
    };
    let open = || block_on(m.fs.opendir(&m.cred, ROOT)).unwrap().handle;
    let one = open();
    let alone = shown(one);
    let handles: Vec<_> = (0..3000).map(|_| open()).collect();
    let kept: usize = handles.iter().map(|&handle| shown(handle)).sum();
    assert!(kept < 50 * handles.len(), "{kept} entries are kept");
    assert!(alone > 200, "{alone} entries");
    // All of them can be listed whole.
    assert!(m.list(ROOT, 100, |_| {}) == names);
    for handle in handles {
        m.fs.releasedir(handle).unwrap();
    }
    assert_eq!(shown(one), alone);
    m.fs.releasedir(one).unwrap();
}

#[test]
fn one_name_of_which_the_server_tells_nonsense_spoils_no_listing() {
    let m = Mount::new();
    for name in ["a", "b", "c"] {
        m.server.plant(name, b"x");
    }
    m.server.bare_entries();
    m.server.set_hook(|op, before| match (op, before) {
        (Op::Lookup, 1) => Fate::Nonsense,
        _ => Fate::Done,
    });
    assert_eq!(m.list(ROOT, 10, |_| ()), ["a", "b", "c"]);
    assert_eq!(m.server.calls(Op::Lookup), 3);
}
