//! Written data whose user has no valid ticket.

use super::support::{Mount, RW, cred, errno, small, with_mode, with_size};
use nfsrdma_fs::fs::{FsConfig, FsResult};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_rpcrdma::exec::block_on;

const EXPIRED: i32 = libc::EKEYEXPIRED;
const USER: u32 = 1000;

impl Mount {
    /// A file that root has opened and the user as well, whose ticket expires when this has written to it.
    fn with_kept_data(&self, name: &str, len: usize) -> (u64, u64, u64) {
        let (node, by_root) = self.create(name);
        self.server.change_file(name, 0, &[], Some(0o666));
        let by_user = self.open_by_user(node);
        self.server.set_expired(&[]);
        self.write(by_user, 0, &vec![b'u'; len]).unwrap();
        self.server.set_expired(&[USER]);
        assert_eq!(errno(self.fsync(by_user)), EXPIRED);
        (node, by_root, by_user)
    }

    fn open_by_user(&self, node: u64) -> u64 {
        block_on(self.fs.open(&cred(USER), node, RW))
            .unwrap()
            .handle
    }
}

/// As with a server that is silent, but nobody waits for it: a ticket is got by the user.
#[test]
fn what_was_written_is_kept_until_there_is_a_ticket() {
    for (without, len) in [(Op::Write, 4), (Op::Write, 1 << 20), (Op::Commit, 1 << 20)] {
        let m = Mount::new();
        let (node, f) = m.create("f");
        let (_, other) = m.create("other");
        let data = vec![7; len];
        m.write(f, 0, &data[..len / 2]).unwrap();
        m.server
            .set_hook(move |op, _| match op == without || op == Op::Getattr {
                true => Fate::NoTicket,
                false => Fate::Done,
            });
        m.write(f, (len / 2) as u64, &data[len / 2..]).unwrap();
        let expired = libc::EKEYEXPIRED;
        assert_eq!(
            [m.fsync(f), m.fsync(f), m.flush(f)].map(errno),
            [expired; 3]
        );
        assert_eq!(errno(m.write(f, 0, b"more")), expired, "no more is taken");
        let cut = block_on(m.fs.setattr(&m.cred, node, &with_size(1), false));
        assert_eq!(cut.unwrap_err().errno(), expired);
        m.fs.tick();
        assert!(m.read(f, 0, len as u32).unwrap() == data);
        // A writer that finds no room in the file does not wait for a ticket.
        assert_eq!(errno(m.write(f, 0, &vec![8; 3 << 20])), expired);
        assert!(m.fs.lost().is_empty());
        m.server.clear_hook();
        m.write(other, 0, b"another user's").unwrap();
        m.write(f, 0, b"more").unwrap();
        assert_eq!([m.fsync(f), m.flush(f)].map(errno), [0, 0]);
        let contents = m.server.durable("f").unwrap();
        assert!(contents[..4] == *b"more" && contents[4..] == data[4..]);
        m.close(f).unwrap();
        m.close(other).unwrap();
    }
}

#[test]
fn what_lacks_a_ticket_at_the_end_of_the_mount_is_lost() {
    let m = Mount::new();
    let (_, f) = m.create("f");
    m.fate(Op::Write, Fate::NoTicket);
    m.write(f, 0, b"lost").unwrap();
    assert_eq!(errno(m.fsync(f)), libc::EKEYEXPIRED);
    let lost = block_on(m.fs.shutdown());
    assert_eq!(lost.len(), 1, "{lost:?}");
}

/// What is kept is what was written before the ticket expired, and no more.
#[test]
fn who_has_no_ticket_cannot_write_to_other_files_either() {
    for options in [
        small(),
        FsConfig {
            sync: true,
            ..small()
        },
    ] {
        let m = Mount::of(&MemoryServer::new(), options);
        let (other, _) = m.create("other");
        m.server.change_file("other", 0, &[], Some(0o666));
        let by_user = m.open_by_user(other);
        m.server.set_expired(&[USER]);
        let (node, _) = m.create("f");
        m.server.change_file("f", 0, &[], Some(0o666));
        let kept = m.open_by_user(node);
        let _ = m.write(kept, 0, b"kept");
        assert_eq!(errno(m.fsync(kept)), EXPIRED);
        assert_eq!(errno(m.write(by_user, 0, b"none")), EXPIRED);
        assert!(m.read(by_user, 0, 4).unwrap().is_empty());
        m.server.set_expired(&[]);
        m.write(by_user, 0, b"some").unwrap();
        for file in [by_user, kept] {
            assert_eq!(errno(m.fsync(file)), 0);
        }
        assert_eq!(m.server.durable("other").unwrap(), b"some");
        assert_eq!(m.server.durable("f").unwrap(), b"kept");
    }
}

#[test]
fn kept_data_of_many_files_does_not_keep_that_of_others_from_being_written() {
    let m = Mount::new();
    for n in 0..20 {
        m.with_kept_data(&format!("kept{n}"), 4096);
    }
    // There is room for the last one when these are written.
    for n in 0..20 {
        let (_, file) = m.create(&format!("other{n}"));
        m.write(file, 0, &[b'o'; 64 << 10]).unwrap();
    }
    let (_, last) = m.create("last");
    m.write(last, 0, &vec![b'l'; 3 << 20]).unwrap();
    assert_eq!(errno(m.fsync(last)), 0);
    assert!(m.fs.lost().is_empty(), "no more was needed");
}

/// As Linux's client, which keeps none of it.
#[test]
fn kept_data_takes_at_most_half_of_the_room_when_others_need_it() {
    let m = Mount::new();
    m.fate(Op::Write, Fate::NoTicket);
    let sizes = [("small", 4096), ("large", 2 << 20), ("middle", 1 << 20)];
    let files = sizes.map(|(name, len)| m.with_kept_data(name, len).2);
    m.server.clear_hook();
    let (_, g) = m.create("g");
    for at in 0..8 {
        m.write(g, at << 20, &vec![b'g'; 1 << 20]).unwrap();
    }
    assert_eq!(errno(m.fsync(g)), 0);
    let lost = m.fs.lost();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(
        (lost[0].bytes, lost[0].name.as_deref()),
        (2 << 20, Some("/large"))
    );
    m.server.set_expired(&[]);
    assert_eq!(files.map(|f| errno(m.fsync(f))), [0, EXPIRED, 0]);
    assert!(m.fs.lost().is_empty(), "it was told");
    for (name, len) in [sizes[0], sizes[2]] {
        assert_eq!(m.server.durable(name).unwrap().len(), len);
    }
}

#[test]
fn kept_data_is_given_up_for_what_others_do_with_the_file() {
    type Does = fn(&Mount, u64, u64) -> FsResult<()>;
    let write: Does = |m, _, file| m.write(file, 4, b"root");
    let direct: Does = |m, _, file| {
        let flags = RW | libc::O_DIRECT;
        block_on(m.fs.write(file, 4, b"root", flags, || true)).map(drop)
    };
    let read: Does = |m, _, file| block_on(m.fs.read(file, 0, 4096, RW | libc::O_DIRECT)).map(drop);
    let chmod: Does =
        |m, node, _| block_on(m.fs.setattr(&m.cred, node, &with_mode(0o600), false)).map(drop);
    let truncate: Does = |m, node, _| m.truncate(node, 2);
    for (n, does) in [write, direct, read, chmod, truncate]
        .into_iter()
        .enumerate()
    {
        let m = Mount::new();
        let (node, by_root, by_user) = m.with_kept_data("f", 8);
        assert_eq!(errno(does(&m, node, by_root)), 0, "{n}");
        assert_eq!(m.fs.lost().len(), 1, "{n}");
        m.server.set_expired(&[]);
        assert_eq!(
            [m.fsync(by_user), m.fsync(by_user)].map(errno),
            [EXPIRED, 0],
            "{n}"
        );
        assert!(m.fs.lost().is_empty(), "{n}");
        assert!(!m.server.durable("f").unwrap().contains(&b'u'), "{n}");
        if n == 0 {
            assert_eq!(m.server.durable("f").unwrap()[4..], *b"root");
        }
    }
}

#[test]
fn who_has_written_nothing_closes_and_syncs_a_file_with_kept_data() {
    for len in [8, 1 << 20] {
        let m = Mount::new();
        let (_, by_root, by_user) = m.with_kept_data("f", len);
        assert_eq!(
            [m.flush(by_root), m.flush(by_user)].map(errno),
            [0, EXPIRED]
        );
        assert!(m.fs.lost().is_empty(), "it is kept");
        // As with any other error, who syncs is told what others have lost, once.
        assert_eq!(
            [m.fsync(by_root), m.fsync(by_root)].map(errno),
            [EXPIRED, 0]
        );
        assert_eq!(errno(m.close(by_root)), 0);
        assert_eq!(errno(m.close(by_user)), EXPIRED);
        let m = m.killed();
        assert_eq!(m.count("dirty_bytes"), 0);
    }
}

#[test]
fn who_may_not_write_a_file_takes_nothing_away_that_is_kept_in_it() {
    let m = Mount::new();
    let (node, _, by_user) = m.with_kept_data("f", 8);
    let reader = block_on(m.fs.open(&m.cred, node, libc::O_RDONLY));
    let reader = reader.unwrap().handle;
    assert_eq!(errno(m.fsync(reader)), 0);
    let read = m.fs.read(reader, 0, 4096, libc::O_RDONLY | libc::O_DIRECT);
    assert_eq!(errno(block_on(read).map(drop)), 0);
    m.server.change_file("f", 0, &[], Some(0o644));
    let stranger = cred(USER + 1);
    let mode = with_mode(0o666);
    let changed = m.fs.setattr(&stranger, node, &mode, false);
    assert!(block_on(changed).is_err());
    assert!(m.fs.lost().is_empty());
    m.server.change_file("f", 0, &[], Some(0o666));
    m.server.set_expired(&[]);
    assert_eq!(errno(m.fsync(by_user)), 0);
    assert_eq!(m.server.durable("f").unwrap(), [b'u'; 8]);
}
