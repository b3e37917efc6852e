//! How soon TCP goes on after an outage of the path.
//!
//! TCP doubles the time between two retransmissions, up to 120 s (RFC 6298 sections 2 and 5), so after an outage it may
//! wait as long again before it notices. RFC 6298 section 2.5 wants the upper bound of that time to be 60 s at least, for
//! paths of any delay. Linux since 6.15 lets a socket have 1 s and more: a server of files answers within milliseconds.

use socket2::Socket;
use std::os::fd::AsRawFd;

/// `TCP_RTO_MAX_MS` of linux/tcp.h, which the crate libc does not have.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Bounds the time between two retransmissions, in milliseconds. Older kernels refuse; the connection works without it.
pub(super) fn set_longest_pause(socket: &Socket, milliseconds: libc::c_int) {
    let value = &raw const milliseconds;
    // SAFETY: the kernel reads a c_int from `value`, which outlives the call.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            value.cast(),
            size_of_val(&milliseconds) as libc::socklen_t,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};

    #[test]
    fn the_kernel_takes_it_if_it_knows_the_option() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        set_longest_pause(&socket, 2000);
        let (mut found, mut size): (libc::c_int, _) =
            (0, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the kernel writes at most `size` bytes to `found`, and `size` itself; both outlive the call.
        let status = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                TCP_RTO_MAX_MS,
                (&raw mut found).cast(),
                &raw mut size,
            )
        };
        if status != 0 {
            let error = std::io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT));
            return;
        }
        assert_eq!(found, 2000);
    }
}
