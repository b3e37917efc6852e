//! That nothing the program knows is missing from what is made here.

use super::*;
use nfsrdma::cli::command;
use nfsrdma::options::table;

fn file(name: &str) -> String {
    let found = files().unwrap().into_iter().find(|(file, _)| file == name);
    found.expect(name).1
}

/// Whether `text` has `word` with no letter or digit at either end.
fn has_word(text: &str, word: &str) -> bool {
    let plain = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
    text.match_indices(word).any(|(at, _)| {
        let after = text[at + word.len()..].chars().next();
        // The B of a font escape is no letter of the word.
        let before = text[..at].trim_end_matches("\\fB").chars().next_back();
        plain(before) && plain(after)
    })
}

/// The tags of the entries of a page.
fn tags(page: &str) -> Vec<&str> {
    let mut lines = page.lines();
    let mut tags = Vec::new();
    while let Some(line) = lines.next() {
        if line == ".TP" {
            tags.extend(lines.next());
        }
    }
    tags
}

#[test]
fn every_option_is_an_entry_of_the_page() {
    let page = file("mount.nfsrdma.8");
    let tags = tags(&page);
    for entry in table::entries() {
        let name = roff::escape(entry.name);
        assert!(
            tags.iter().any(|tag| has_word(tag, &name)),
            "mount.nfsrdma(8) has no entry for {}",
            entry.name
        );
    }
}

#[test]
fn every_command_and_flag_is_in_the_page() {
    let page = file("nfsrdma.8");
    let command = command();
    let subs: Vec<_> = pages::visible(&command).collect();
    assert!(subs.len() >= 4);
    for sub in subs {
        assert!(page.contains(&format!(".SS \"nfsrdma {}\"", roff::escape(sub.get_name()))));
        for arg in sub.get_arguments().filter(|arg| !arg.is_hide_set()) {
            if let Some(long) = arg.get_long().filter(|&long| long != "help") {
                let flag = format!("\\fB\\-\\-{}\\fR", roff::escape(long));
                assert!(page.contains(&flag), "{flag}");
            }
        }
    }
}

#[test]
fn nothing_is_left_to_fill_in() {
    for (name, text) in files().unwrap() {
        assert!(!text.contains(".\\\" @"), "{name}");
        assert!(!text.contains("@VERSION@"), "{name}");
    }
}

#[test]
fn every_shell_completes_every_command_and_option() {
    for (_, name) in completions::SHELLS {
        let script = file(name);
        for sub in pages::visible(&command()) {
            assert!(
                script.contains(sub.get_name()),
                "{name}: {}",
                sub.get_name()
            );
        }
        for word in ["nconnect=", "lookupcache=positive", "noac", "softerr"] {
            assert!(
                has_word(&script, word) || script.contains(&format!(" {word} ")),
                "{name}: {word}"
            );
        }
        // What is refused is not offered.
        assert!(!script.contains("sec=krb5"), "{name}");
    }
}

#[test]
fn what_is_completed_is_accepted() {
    use nfsrdma::options::Options;
    let sections = reference::sections(CONFIGURATION).unwrap();
    let words = reference::words(&sections);
    assert!(words.len() > 80);
    for word in words.iter().filter(|word| !word.ends_with('=')) {
        Options::parse(word).unwrap_or_else(|error| panic!("{word}: {error}"));
    }
}

/// The packages are how this is handed out: nothing is meant for the registry of crates, where
/// crates without a home page and a repository would be of little use.
#[test]
fn no_crate_is_published() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap();
    let workspace = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let (_, members) = workspace.split_once("\nmembers = [").unwrap();
    let (members, _) = members.split_once(']').unwrap();
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.len() > 15);
    for member in members {
        let manifest = std::fs::read_to_string(root.join(member).join("Cargo.toml")).unwrap();
        assert!(
            manifest.contains("\npublish = false\n"),
            "{member} could be published"
        );
    }
}
