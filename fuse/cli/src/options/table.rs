//! The table of options. Each file in it has the options of one section of docs/CONFIGURATION.md.

mod acl;
mod caches;
mod finding;
mod fuse;
mod generic;
mod kernel;
mod locks;
mod recovery;
mod refused;
mod transport;

pub use super::entry::{Entry, Section};

/// All sections, in the order of docs/CONFIGURATION.md.
pub static SECTIONS: [&Section; 10] = [
    &transport::SECTION,
    &finding::SECTION,
    &recovery::SECTION,
    &caches::SECTION,
    &acl::SECTION,
    &locks::SECTION,
    &fuse::SECTION,
    &generic::SECTION,
    &kernel::SECTION,
    &refused::SECTION,
];

pub(super) fn entries() -> impl Iterator<Item = &'static Entry> {
    SECTIONS.iter().flat_map(|section| section.entries)
}

/// The entry that handles `name`, and the name as it stands there. Some values of an option are in
/// the last section as well.
pub(super) fn find(name: &str) -> Option<(&'static Entry, &'static str)> {
    entries().find_map(|entry| {
        let name = entry.names().find(|&known| known == name)?;
        Some((entry, name))
    })
}

/// The names of all options that the parser knows, each with its kind.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut names: Vec<_> = entries()
        .flat_map(Entry::names)
        .filter(|name| !name.contains('*'))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().filter_map(|name| {
        let (entry, name) = find(name)?;
        Some((name, entry.kind(name)))
    })
}
