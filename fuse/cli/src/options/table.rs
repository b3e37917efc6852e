//! The table of option names. Each file in it has the options of one subject.

mod caches;
mod generic;
mod own;
mod recovery;
mod security;
mod transport;

use super::entry::Entry;

/// All options that the parser knows.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    [
        transport::TABLE,
        recovery::TABLE,
        caches::TABLE,
        security::TABLE,
        generic::TABLE,
        own::TABLE,
    ]
    .into_iter()
    .flatten()
}
