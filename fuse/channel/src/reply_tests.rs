use super::*;
use crate::header::Header;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

/// A device with a socket instead of the kernel, and a function that receives one message from it.
pub(crate) fn peer() -> (Arc<Device>, impl Fn() -> Vec<u8>) {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let device = Arc::new(Device::from(OwnedFd::from(ours)));
    let next = move || {
        let mut message = vec![0; 1 << 17];
        let len = theirs.recv(&mut message).unwrap_or(0);
        message.truncate(len);
        message
    };
    (device, next)
}

/// The header of the request 0x1122 for node 3.
fn header() -> Header {
    let mut bytes = [0; 40];
    bytes[0] = 40;
    bytes[4] = 1;
    bytes[8..16].copy_from_slice(&0x1122u64.to_ne_bytes());
    bytes[16] = 3;
    Header::parse(&bytes).unwrap().0
}

#[test]
fn errors_in_bytes() {
    let expected = |errno: i32| {
        let mut bytes = vec![16, 0, 0, 0];
        bytes.extend((-errno).to_le_bytes());
        bytes.extend([0x22, 0x11, 0, 0, 0, 0, 0, 0]);
        bytes
    };
    // An errno that the kernel would refuse becomes EIO, and so does a dropped reply.
    for (errno, told) in [(2, 2), (0, 5), (-3, 5), (512, 5), (i32::MIN, 5), (511, 511)] {
        let (device, next) = peer();
        Reply::new(&device, &header()).error(errno);
        assert_eq!(next(), expected(told));
        assert!(next().is_empty());
    }
    let (device, next) = peer();
    drop(Reply::new(&device, &header()));
    assert_eq!(next(), expected(5));
    assert!(next().is_empty());
}

#[test]
fn data_of_any_number_of_slices() {
    for count in [0, 1, 2, 1023, 1024, 3000] {
        let (device, next) = peer();
        let data: Vec<[u8; 3]> = (0..count as u32)
            .map(|n| [n as u8, (n >> 8) as u8, 7])
            .collect();
        let slices: Vec<&[u8]> = data.iter().map(|part| &part[..]).collect();
        Reply::new(&device, &header()).slices(&slices);
        let message = next();
        assert_eq!(message[..4], (16 + 3 * count as u32).to_ne_bytes());
        assert_eq!(message[16..], data.concat());
        assert!(next().is_empty());
    }
}

#[test]
fn a_reply_that_nobody_waits_for_is_given_up() {
    // A pipe without a reader stands for a mount that is gone.
    let (mut end, pipe) = std::io::pipe().unwrap();
    let device = Arc::new(Device::from(OwnedFd::from(pipe)));
    Reply::new(&device, &header()).ok();
    let mut message = [0; 16];
    end.read_exact(&mut message).unwrap();
    drop(end);
    Reply::new(&device, &header()).ok();
}
