//! The code of the fuzz targets: each function takes any bytes, and panics only if this project has
//! made a mistake. [`seeds`] makes inputs from the interoperability captures. A replay test runs
//! them and variations of them, and long runs start from them.

mod handshake;
mod helper;
mod mount;
mod secured;

pub mod seeds;
mod stream;
mod tokens;

pub use handshake::mpa_handshake;
pub use helper::helper;
pub use mount::mount;
pub use secured::secured;
pub use stream::stream;
pub use tokens::tokens;

use nfsrdma_xdr::support::decoders::decode_with_all;

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("xdr", xdr),
    ("handshake", mpa_handshake),
    ("stream", stream),
    ("mount", mount),
    ("fuse", fuse),
    ("tokens", tokens),
    ("secured", secured),
    ("helper", helper),
];

/// Every decoder of the wire formats. A decoded value can be encoded and decoded again.
pub fn xdr(bytes: &[u8]) {
    decode_with_all(bytes);
}

/// A request of the kernel: the bytes as they are, and again after a header with their length,
/// whose operation code comes from the first byte.
pub fn fuse(bytes: &[u8]) {
    nfsrdma_channel::support::decode(bytes);
    let Some((&code, arguments)) = bytes.split_first() else {
        return;
    };
    let mut message = Vec::with_capacity(40 + arguments.len());
    message.extend((40 + arguments.len() as u32).to_ne_bytes());
    message.extend(u32::from(code).to_ne_bytes());
    // Request number, node, user, group, thread; no extensions.
    message.resize(40, 0);
    message.extend(arguments);
    nfsrdma_channel::support::decode(&message);
}
