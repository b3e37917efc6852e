use super::*;
use crate::reply::tests::peer;
use std::os::fd::AsFd;

fn le(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

#[test]
fn the_same_bytes_as_without_a_thread() {
    let (device, other) = peer();
    let notifier = WaitingNotifier::new(&device, true);
    for _ in 0..3 {
        notifier.drop_pages(7, 4096, 100).unwrap();
        let header = le(&[40 | 2 << 32, 0]);
        assert_eq!(other(), [header, le(&[7, 4096, 100])].concat());
        notifier.expire_entries(1, vec![b"ab".as_slice().into()]);
        let header = le(&[35 | 3 << 32, 0]);
        let body = le(&[1, 2 | 1 << 32]);
        assert_eq!(other(), [header, body, b"ab\0".to_vec()].concat());
    }
    assert!(notifier.0.idle.lock().is_some());
    assert!(!notifier.0.refused.load(Relaxed));
}

#[test]
fn a_thread_of_its_own_has_the_device_alone_and_closes_nobody_s() {
    let (device, _other) = peer();
    let bystander = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let listed = || {
        let entries = std::fs::read_dir("/proc/thread-self/fd").unwrap();
        entries.count()
    };
    let own = std::thread::scope(|scope| {
        let alone = scope.spawn(|| {
            let own = own_table::with_only(device.as_fd()).unwrap();
            // Standard input, output and error, the device, and the directory that is listed.
            let listed = listed();
            drop(own);
            listed
        });
        alone.join().unwrap()
    });
    assert!(own <= 5, "{own} descriptors");
    rustix::io::write(&bystander, &1_u64.to_ne_bytes()).unwrap();
    rustix::io::write(&*device, b"x").unwrap();
}
