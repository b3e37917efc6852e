//! Parses the text of `-o`: splits it into options, looks up each in the table, and applies it.

use super::draft::{Draft, Outcome};
use super::entry::{Action, Entry, name_of};
use super::table::{entries, find};
use super::{OptionError, Options};
use crate::nearest::nearest;

/// Splits at commas outside double quotes, and removes the quotes.
pub(crate) fn split(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => words.push(String::new()),
            _ => words.last_mut().expect("one word from the start").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The supported option whose name is most similar to `name`.
fn meant(name: &str) -> Option<&'static str> {
    let honoured = entries().filter(|entry| !entry.is_refused());
    nearest(name, honoured.flat_map(Entry::names))
}

/// Options that FUSE shows in /proc/mounts, and that mount(8) repeats with `remount`.
const OF_FUSE: [&str; 4] = ["user_id=", "group_id=", "max_read=", "blksize="];

/// Options of other file systems, which no option here resembles.
const OWNERS: [&str; 3] = ["uid", "gid", "idmap"];
const MODES: [&str; 3] = ["umask", "fmask", "dmask"];
const CONNECTION: [&str; 2] = ["reconnect", "ServerAliveInterval"];

/// The error for an option that is in no table.
fn unknown(draft: &Draft, name: &str) -> OptionError {
    let given = draft.given.clone();
    if OWNERS.contains(&name) {
        return OptionError::CannotHonour {
            given,
            reason: "owners of files are the server's; leave it out: exported with \
                all_squash,anonuid=UID,anongid=GID, all users are that one there",
        };
    }
    if MODES.contains(&name) {
        return OptionError::CannotHonour {
            given,
            reason: "modes of files are the server's; leave it out, and change them there",
        };
    }
    if CONNECTION.contains(&name) {
        return OptionError::NotNeeded {
            given,
            reason: "a lost connection is always made again; leave it out",
        };
    }
    OptionError::Unknown {
        name: name.into(),
        nearest: meant(name),
    }
}

fn parse(text: &str, url_port: Option<u16>) -> Result<Options, OptionError> {
    let mut draft = Draft::new();
    if let Some(port) = url_port {
        draft.given = format!("port {port} of the URL");
        draft.claim("port", port)?;
        draft.options.client.port = port;
    }
    let mut words = split(text);
    if words.iter().any(|word| word == "remount") {
        draft.last_counts = true;
        words.retain(|word| !OF_FUSE.iter().any(|name| word.starts_with(name)));
    }
    draft.options.sloppy = words.iter().any(|word| word == "sloppy");
    let mut wrong = Vec::new();
    for word in words {
        draft.given.clone_from(&word);
        if let Err(error) = one(&mut draft, &word) {
            // sloppy ignores unknown options, but not wrong values (nfs(5)).
            match error.is_of_others() && draft.options.sloppy && !protects(&word) {
                true => draft.options.ignored.push(word),
                false => wrong.push(error),
            }
        }
    }
    match wrong.len() {
        0 => draft.finish(),
        1 => Err(wrong.remove(0)),
        _ => Err(OptionError::Several(wrong)),
    }
}

/// Whether an option asks for a security flavor, or for encryption. Such a one is never left out
/// because it cannot be honoured.
pub(crate) fn protects(word: &str) -> bool {
    matches!(name_of(word), "sec" | "xprtsec")
}

fn one(draft: &mut Draft, word: &str) -> Outcome {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    // fstab(5) reserves these names for comments of other programs.
    if name.starts_with("x-") || name.starts_with("X-") {
        return Ok(());
    }
    if word.trim() != word {
        return Err(OptionError::Blank(word.into()));
    }
    let Some((entry, name)) = find(name) else {
        return Err(unknown(draft, name));
    };
    let set = match entry.action {
        Action::Set(set) => set,
        Action::Accept => return Ok(()),
        Action::Refuse => return draft.cannot(entry.help),
    };
    (draft.name, draft.takes) = (name, entry.takes(name));
    match (entry.alone_or_valued(name), value) {
        ((false, _), None) => Err(OptionError::NeedsValue {
            name: name.into(),
            wanted: entry.takes(name),
        }),
        // mount(8) adds the name of the user.
        ((_, false), Some(_)) if name != "user" => Err(OptionError::TakesNone(name.into())),
        ((_, true), Some("")) => draft.bad(),
        (_, value) => set(draft, name, value.unwrap_or_default()),
    }
}

impl Options {
    /// Parses the comma-separated `text` of one `-o`, or of several joined by commas. A value in
    /// double quotes may contain commas.
    pub fn parse(text: &str) -> Result<Options, OptionError> {
        parse(text, None)
    }

    /// The same for a source that is a URL, which may have a port (RFC 2224).
    pub fn parse_with_port(text: &str, port: Option<u16>) -> Result<Options, OptionError> {
        parse(text, port)
    }
}
