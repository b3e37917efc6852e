//! The table of inodes, also after the death of the process that has made them.

use super::*;
use crate::fs::attribute_cache::model::attributes;
use nfsrdma_record as record;
use std::collections::HashSet;

fn handle(number: u8) -> FileHandle {
    FileHandle::new(&[number; 8]).unwrap()
}

fn table() -> Table {
    let table = Table::new(record::Table::anonymous().nodes(), &HashSet::new());
    table.insert_root(handle(255));
    table
}

fn resolve(table: &Table, handle: &FileHandle, attributes: &Attributes) -> Arc<Inode> {
    table.resolve(handle, attributes)
}

#[test]
fn a_node_id_stands_for_one_handle_and_is_not_used_again() {
    let table = table();
    let of = attributes(1, 1);
    let mut seen = HashSet::new();
    for round in 0..100u8 {
        // All have the same fileid.
        let inode = table.adopt(&resolve(&table, &handle(round), &of));
        assert!(seen.insert(inode.nodeid));
        assert!(inode.nodeid > ROOT);
        let again = table.adopt(&resolve(&table, &handle(round), &of));
        assert!(Arc::ptr_eq(&inode, &again));
        assert!(table.get(inode.nodeid).is_some());
        if round % 2 == 0 {
            table.forget(inode.nodeid, 1);
            assert!(table.get(inode.nodeid).is_some());
            table.forget(inode.nodeid, 1);
            assert!(table.get(inode.nodeid).is_none());
        }
    }
    assert_eq!(table.len(), 1 + 50);
    let back = table.adopt(&resolve(&table, &handle(0), &of));
    assert!(seen.insert(back.nodeid));
}

#[test]
fn a_handle_has_one_inode_while_anything_leads_to_it() {
    let table = table();
    let of = attributes(1, 1);
    // Two look-ups at the same time.
    let (a, b) = (
        resolve(&table, &handle(1), &of),
        resolve(&table, &handle(1), &of),
    );
    assert!(Arc::ptr_eq(&a, &b));
    assert!(Arc::ptr_eq(&table.adopt(&a), &a));
    assert!(Arc::ptr_eq(&table.adopt(&b), &a));
    assert_eq!(a.lookups.load(Ordering::Relaxed), 2);
    // The kernel forgets it, but a name or an open file refers to it.
    table.forget(a.nodeid, 2);
    assert!(table.get(a.nodeid).is_none() && table.find(&handle(1)).is_none());
    assert!(Arc::ptr_eq(&resolve(&table, &handle(1), &of), &a));
    table.tidy();
    assert!(Arc::ptr_eq(&resolve(&table, &handle(1), &of), &a));
    assert!(Arc::ptr_eq(&table.adopt(&a), &a));
    assert!(table.get(a.nodeid).is_some());
    // Nothing refers to it.
    let node = a.nodeid;
    table.forget(node, 1);
    drop((a, b));
    assert_ne!(resolve(&table, &handle(1), &of).nodeid, node);
}

#[test]
fn inodes_that_nothing_leads_to_take_no_memory() {
    let table = table();
    let of = attributes(1, 1);
    let named: Vec<_> = (0..2000u64)
        .map(|number| {
            let handle = FileHandle::new(&number.to_ne_bytes()).unwrap();
            let inode = table.adopt(&resolve(&table, &handle, &of));
            table.forget(inode.nodeid, 1);
            // This one is only looked up.
            resolve(
                &table,
                &FileHandle::new(&(!number).to_ne_bytes()).unwrap(),
                &of,
            );
            inode
        })
        .collect();
    let kept = || -> usize {
        let shards = table.handles.iter();
        shards.map(|shard| shard.lock().entries.len()).sum()
    };
    assert!(kept() <= 2 * named.len() + SHARDS * FEW, "{}", kept());
    table.tidy();
    assert_eq!(kept(), 1 + named.len());
    drop(named);
    table.tidy();
    assert_eq!(kept(), 1);
    assert_eq!(table.len(), 1);
}

#[test]
fn a_handle_that_changes_its_type_is_another_object() {
    let table = table();
    let of = attributes(1, 1);
    let file = table.adopt(&resolve(&table, &handle(1), &of));
    let kind = FileType::Directory;
    let dir = table.adopt(&resolve(&table, &handle(1), &Attributes { kind, ..of }));
    assert_ne!(file.nodeid, dir.nodeid);
    assert!(Arc::ptr_eq(&table.get(file.nodeid).unwrap(), &file));
    table.forget(file.nodeid, 1);
    let again = resolve(&table, &handle(1), &Attributes { kind, ..of });
    assert!(Arc::ptr_eq(&again, &dir), "not lost with the other");
}

#[test]
fn the_next_process_knows_what_the_kernel_knows() {
    let records = record::Table::create().unwrap();
    let table = Table::new(records.nodes(), &HashSet::new());
    table.insert_root(handle(255));
    let of = attributes(1, 1);
    let kept = table.adopt(&resolve(&table, &handle(1), &of));
    table.adopt(&kept);
    let forgotten = table.adopt(&resolve(&table, &handle(2), &of));
    table.forget(forgotten.nodeid, 1);
    let unknown = resolve(&table, &handle(3), &of);
    let kind = FileType::Directory;
    let dir = table.adopt(&resolve(&table, &handle(4), &Attributes { kind, ..of }));
    // The process is killed.
    let fd = records.fd().unwrap().try_clone_to_owned().unwrap();
    let gone = [forgotten.nodeid, unknown.nodeid];
    std::mem::forget((forgotten, unknown, table, records));

    let records = record::Table::open(fd).unwrap();
    let table = Table::new(records.nodes(), &HashSet::new());
    table.insert_root(handle(255));
    assert_eq!(table.len(), 3);
    assert_eq!(table.get(ROOT).unwrap().handle, handle(255));
    for old in [&kept, &dir] {
        let inode = table.get(old.nodeid).unwrap();
        assert_eq!((inode.kind, inode.handle), (old.kind, old.handle));
        assert_eq!(inode.fileid, old.fileid);
        assert!(inode.last_known().is_none(), "its attributes are not kept");
        assert_eq!(
            inode.has_old_pages(),
            old.kind == FileType::Regular,
            "the kernel is told to drop its pages of files"
        );
        let again = resolve(
            &table,
            &old.handle,
            &Attributes {
                kind: old.kind,
                ..of
            },
        );
        assert!(Arc::ptr_eq(&inode, &again));
    }
    for (number, old) in (2..).zip(gone) {
        assert!(table.get(old).is_none());
        let anew = table.adopt(&resolve(&table, &handle(number), &of));
        assert!(!gone.contains(&anew.nodeid), "an old number");
    }
    table.forget(kept.nodeid, 1);
    assert!(table.get(kept.nodeid).is_some(), "it was given twice");
    table.forget(kept.nodeid, 1);
    assert!(table.get(kept.nodeid).is_none());
    std::mem::forget((kept, dir));
}

/// What a process has left that was killed: the kernel knows so many files.
fn left(files: u8) -> record::Table {
    let records = record::Table::create().unwrap();
    let table = Table::new(records.nodes(), &HashSet::new());
    table.insert_root(handle(255));
    for number in 0..files {
        let inode = table.adopt(&resolve(&table, &handle(number), &attributes(1, 1)));
        std::mem::forget(inode);
    }
    let fd = records.fd().unwrap().try_clone_to_owned().unwrap();
    std::mem::forget((table, records));
    record::Table::open(fd).unwrap()
}

fn made(table: &Table) -> usize {
    table.nodes.iter().map(|shard| shard.lock().known).sum()
}

#[test]
fn the_inodes_of_an_earlier_process_are_made_when_something_leads_there() {
    let records = left(9);
    let nodeids = records.nodes().peek(|node| node.nodeid);
    let table = Table::new(records.nodes(), &HashSet::new());
    assert_eq!((made(&table), table.len()), (0, 10));
    table.insert_root(handle(255));
    assert_eq!((made(&table), table.len()), (1, 10));
    assert!(table.with_errors().is_empty());
    let of = attributes(1, 1);
    for number in 0..3 {
        let by_node = table.get(nodeids[1 + usize::from(number)]).unwrap();
        assert_eq!(by_node.handle, handle(number));
        let by_handle = table.find(&handle(number));
        assert!(Arc::ptr_eq(&by_node, &by_handle.unwrap()));
    }
    for number in 3..6 {
        let by_handle = table.adopt(&resolve(&table, &handle(number), &of));
        assert_eq!(by_handle.nodeid, nodeids[1 + usize::from(number)]);
        assert!(Arc::ptr_eq(
            &by_handle,
            &table.get(by_handle.nodeid).unwrap()
        ));
        table.forget(by_handle.nodeid, 1);
        assert!(table.find(&handle(number)).is_some(), "it was given twice");
    }
    table.tidy();
    assert_eq!((made(&table), table.len()), (7, 10));
    // The kernel forgets one that nobody has asked for.
    for number in 6..9 {
        let nodeid = nodeids[1 + usize::from(number)];
        assert!(table.get(nodeid + (1 << 32)).is_none(), "another node");
        table.forget(nodeid, 1);
        assert!(table.get(nodeid).is_none() && table.find(&handle(number)).is_none());
    }
    assert_eq!((made(&table), table.len()), (7, 7));
}

#[test]
fn threads_that_are_led_to_the_same_record_get_one_inode() {
    const THREADS: usize = 4;
    let records = left(200);
    let nodeids = records.nodes().peek(|node| node.nodeid);
    let table = Table::new(records.nodes(), &HashSet::new());
    let begin = std::sync::Barrier::new(THREADS);
    let (table, nodeids, begin) = (&table, &nodeids, &begin);
    let run = move |thread: usize| {
        begin.wait();
        let inodes = (0..200u8).map(|number| match thread % 3 {
            0 => table.get(nodeids[1 + usize::from(number)]).unwrap(),
            _ => table.find(&handle(number)).unwrap(),
        });
        inodes.collect::<Vec<_>>()
    };
    let all: Vec<Vec<_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|at| scope.spawn(move || run(at)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for inodes in &all[1..] {
        let mut pairs = inodes.iter().zip(&all[0]);
        assert!(pairs.all(|(a, b)| Arc::ptr_eq(a, b)));
    }
    assert_eq!(table.len(), 201);
}

#[test]
fn fileids_of_other_file_systems_are_told_apart() {
    let table = table();
    let of = attributes(1, 1);
    table.set_fsid(of.fsid);
    assert_eq!(table.visible_fileid(&of), of.fileid);
    let of = |fsid, fileid| table.visible_fileid(&Attributes { fsid, fileid, ..of });
    let numbers: HashSet<_> = (5..9)
        .flat_map(|fsid| (0..50).map(move |fileid| (fsid, fileid)))
        .map(|(fsid, fileid)| of(fsid, fileid))
        .collect();
    assert_eq!(numbers.len(), 200);
    assert!(numbers.iter().all(|&number| number >= OF_OTHER_FSID));
    assert_eq!(of(5, 7), of(5, 7));
}
