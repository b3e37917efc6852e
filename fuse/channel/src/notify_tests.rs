use super::*;
use crate::reply::tests::peer;

fn le(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

#[test]
fn notifications_in_bytes() {
    let (device, other) = peer();
    let notifier = Notifier::new(device.clone(), true);
    notifier.inval_inode(7, -1, 0).unwrap();
    let header = |len: u64, code: u64| le(&[len | code << 32, 0]);
    assert_eq!(
        other(),
        [header(40, 2), le(&[7, u64::MAX, 0])].concat(),
        "fuse_notify_inval_inode_out"
    );
    notifier.changed(7, None).unwrap();
    assert_eq!(other(), [header(40, 2), le(&[7, 0, 0])].concat());
    notifier.changed(7, Some((4096, 9))).unwrap();
    assert_eq!(other(), [header(40, 2), le(&[7, 0, 0])].concat());
    assert_eq!(
        other(),
        [header(41, 4), le(&[7, 4096, 1]), vec![9]].concat(),
        "fuse_notify_store_out, whose end is the end of the file"
    );
    assert_eq!(other(), [header(40, 2), le(&[7, 4096, 1])].concat());
    let entry = |parent: u64, flags: u64| {
        [
            header(35, 3),
            le(&[parent, 2 | flags << 32]),
            b"ab\0".to_vec(),
        ]
        .concat()
    };
    notifier.expire_entry(9, b"ab").unwrap();
    assert_eq!(other(), entry(9, 1), "fuse_notify_inval_entry_out");
    Notifier::new(device.clone(), false)
        .expire_entry(9, b"ab")
        .unwrap();
    assert_eq!(other(), entry(9, 0), "an older kernel is told to drop it");
    // The root directory is told of by both of its numbers, and its names by the one that the kernel knows.
    let inode = |node: u64| [header(40, 2), le(&[node, u64::MAX, 0])].concat();
    notifier.expire_entry(1, b"ab").unwrap();
    assert_eq!([other(), other()], [inode(u64::MAX), entry(u64::MAX, 1)]);
    notifier.inval_inode(1, -1, 0).unwrap();
    assert_eq!([other(), other()], [inode(u64::MAX), inode(1)]);
}

#[test]
fn the_same_bytes_from_a_thread_of_its_own() {
    let (device, other) = peer();
    let notifier = Notifier::new(device, true);
    notifier.apart(|notifier| notifier.inval_inode(7, 4096, 100).unwrap());
    let header = le(&[40 | 2 << 32, 0]);
    assert_eq!(other(), [header, le(&[7, 4096, 100])].concat());
}

#[test]
fn a_thread_of_its_own_has_the_device_alone_and_closes_nobody_s() {
    let (device, _other) = peer();
    let bystander = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let listed = || {
        let entries = std::fs::read_dir("/proc/thread-self/fd").unwrap();
        entries.count()
    };
    let own = std::sync::Mutex::new(None);
    let notifier = Notifier::new(device.clone(), true);
    notifier.apart(|_| *own.lock().unwrap() = Some(listed()));
    // Standard input, output and error, the device, and the directory that is listed.
    let own = own.into_inner().unwrap().unwrap();
    assert!(own <= 5, "{own} descriptors");
    rustix::io::write(&bystander, &1_u64.to_ne_bytes()).unwrap();
    rustix::io::write(&*device, b"x").unwrap();
}
