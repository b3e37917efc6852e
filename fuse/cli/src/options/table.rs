//! The table of option names. Each file below it holds the options of one subject.

mod caches;
mod generic;
mod own;
mod recovery;
mod security;
mod transport;

use super::entry::Entry;

/// Every name that is understood.
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
