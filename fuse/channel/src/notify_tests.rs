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
    notifier.inval_entry(1, b"ab").unwrap();
    let entry = |flags: u64| [header(35, 3), le(&[1, 2 | flags << 32]), b"ab\0".to_vec()].concat();
    assert_eq!(other(), entry(0), "fuse_notify_inval_entry_out");
    notifier.expire_entry(1, b"ab").unwrap();
    assert_eq!(other(), entry(1));
    Notifier::new(device, false).expire_entry(1, b"ab").unwrap();
    assert_eq!(other(), entry(0), "an older kernel is told to drop it");
    notifier.delete(1, 9, b"abc").unwrap();
    assert_eq!(
        other(),
        [header(44, 6), le(&[1, 9, 3]), b"abc\0".to_vec()].concat(),
        "fuse_notify_delete_out"
    );
}
