//! What a remount changes of the options that a mount has.
//!
//! The options in force and the new ones become one text, in which the last word counts. It has `remount`, with
//! which the parser reads it so, and each name once.

use super::entry::{Entry, name_of};
use super::parse::split;
use super::table::{SECTIONS, find};

/// Options joined by commas, with those of `wanted` in the place of others of the same name.
pub(crate) fn merged(current: &str, wanted: &str) -> String {
    let mut words = vec!["remount".to_owned()];
    for word in split(current).into_iter().chain(split(wanted)) {
        if name_of(&word) != "remount" {
            words.retain(|known| name_of(known) != name_of(&word));
            words.push(word);
        }
    }
    joined(words)
}

/// Whether the option can change while it is mounted.
fn can_change(word: &str) -> bool {
    find(name_of(word)).is_some_and(|(entry, _)| entry.changes)
}

/// The options of `wanted` that can change while it is mounted, and the others.
pub(crate) fn changing(wanted: &str) -> (Vec<String>, Vec<String>) {
    split(wanted).into_iter().partition(|word| can_change(word))
}

/// Why the option of this word lasts as long as the mount.
pub(crate) fn why_it_lasts(word: &str) -> &'static str {
    let has = |entry: &Entry| entry.names().any(|known| known == name_of(word));
    let section = SECTIONS
        .iter()
        .find(|section| section.entries.iter().any(has));
    section.map_or("it is not known", |section| section.lasts)
}

/// Joins options by commas; [`split`] takes them apart again.
pub(crate) fn joined(words: Vec<String>) -> String {
    let quoted = |word: String| match word.contains(',') {
        true => format!("\"{word}\""),
        false => word,
    };
    words.into_iter().map(quoted).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::table::entries;
    use super::super::{Options, Recovery};
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_last_word_counts() {
        let text = merged(
            "soft,acregmin=3,timeo=7,context=\"a,b\"",
            "remount,hard,timeo=600,actimeo=9",
        );
        assert_eq!(
            text,
            "remount,soft,acregmin=3,\"context=a,b\",hard,timeo=600,actimeo=9"
        );
        let options = Options::parse(&text).unwrap();
        assert_eq!(options.client.transport.recovery, Recovery::Hard);
        assert_eq!(options.client.transport.timeo, Duration::from_secs(60));
        assert_eq!(options.fs.times.acregmin, Duration::from_secs(9));
        assert_eq!(options.security_contexts, ["context=\"a,b\""]);
        let again = merged(&text, "soft");
        assert!(again.ends_with("hard,timeo=600,actimeo=9,soft"), "{again}");
    }

    #[test]
    fn what_can_change_is_told_apart() {
        let (changing, others) = changing("remount,ro,acregmin=5,port=7,soft,zork");
        assert_eq!(changing, ["acregmin=5", "soft"]);
        assert_eq!(others, ["remount", "ro", "port=7", "zork"]);
        assert_eq!(
            why_it_lasts("port=7"),
            "it was settled with the server when the mount was made"
        );
    }

    #[test]
    fn the_help_names_all_that_can_change() {
        let help = find("remount").unwrap().0.help;
        for entry in entries().filter(|entry| entry.changes) {
            for name in Entry::names(entry) {
                assert!(help.contains(&format!("`{name}`")), "{name}");
            }
        }
    }
}
