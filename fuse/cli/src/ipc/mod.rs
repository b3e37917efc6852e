//! How commands talk to the processes that serve mounts: by Unix sockets in private directories,
//! named after the mount's device number, so that no file system has to be asked.

pub(crate) mod client;
pub(crate) mod control;
pub(crate) mod exit_watch;
pub(crate) mod flush_request;
pub(crate) mod keeper;
pub(crate) mod pending;
pub(crate) mod sleep_request;
pub(crate) mod sockets;
pub(crate) mod upgrade_request;

/// The longest text that is believed of another user's process, in bytes: a user may have many
/// processes that say much.
pub(crate) const LONGEST: usize = 4096;

/// Cuts a text to [`LONGEST`] bytes, at the end of a character.
pub(crate) fn shorten(text: &mut String) {
    text.truncate(text.floor_char_boundary(LONGEST));
    text.shrink_to_fit();
}
