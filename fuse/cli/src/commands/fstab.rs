//! The command `fstab`: translates lines of fstab(5) or /proc/mounts of the kernel's NFS client.
//! Notes name the options that are left out; options that demand security are errors instead.

use crate::cli::FstabArgs;
use crate::failure::{Exit, Failure};
use crate::mount::fstab_line::{self, Line, arguments, unescaped};
use crate::mounts::escape_obeyed;
use crate::options::mount_source::MountSource;
use crate::options::{Options, protects, split};
use crate::output::{self, Reader, without_number};
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;

/// The translated line, and notes for the user about what was left out.
#[derive(Debug, PartialEq, Eq)]
struct Translated {
    line: Vec<u8>,
    notes: Vec<String>,
}

/// Options that appear only in /proc/mounts, where the kernel adds values of the mount in progress.
const SHOWN: [&str; 8] = [
    "addr",
    "mountaddr",
    "namlen",
    "bsize",
    "seclabel",
    "user_id",
    "group_id",
    "max_read",
];

fn name_of(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

/// Whether the line asks for RDMA. The last option about that counts.
fn is_over_rdma(words: &[String]) -> bool {
    let says = |word: &String| match (name_of(word), word.split_once('=')) {
        ("rdma", _) => Some(true),
        ("tcp" | "udp", _) => Some(false),
        ("proto", Some((_, proto))) => Some(proto.starts_with("rdma")),
        _ => None,
    };
    words.iter().rev().find_map(says) == Some(true)
}

/// The options of a line.
fn options_of(line: &Line<'_>) -> Result<Vec<String>, Failure> {
    match std::str::from_utf8(&line.options) {
        Ok(options) => Ok(split(options)),
        Err(_) => Err(Failure::usage(format!(
            "the options '{}' are not in UTF-8: write them in ASCII",
            String::from_utf8_lossy(&line.options)
        ))),
    }
}

fn no_line(text: &[u8]) -> Failure {
    let shown = String::from_utf8_lossy(text);
    Failure::usage(match arguments(&fstab_line::words(text)) {
        Some(_) => format!(
            "'{shown}' cannot be translated: write mount -t nfs -o OPTIONS SERVER:/EXPORT DIR"
        ),
        None => format!(
            "'{shown}' is not a line of fstab: write its fields, SERVER:/EXPORT DIR nfs OPTIONS"
        ),
    })
}

/// Replaces `bg`, with which mount(8) returns before there is a mount, so that systemd's unit fails. For the type nfs
/// systemd replaces it itself, by the same options (systemd.mount(5)).
fn in_background(kept: &mut Vec<String>, notes: &mut Vec<String>) {
    if !kept.iter().any(|word| word == "bg") {
        return;
    }
    kept.retain(|word| word != "bg");
    for option in ["nofail", "retry=10000", "x-systemd.mount-timeout=infinity"] {
        add_if_missing(kept, option);
    }
    notes.push("'bg' became what systemd needs: nofail, retry, x-systemd.mount-timeout".to_owned());
}

/// Adds the option, unless the line has one of this name.
fn add_if_missing(kept: &mut Vec<String>, option: &str) {
    if !kept.iter().any(|word| name_of(word) == name_of(option)) {
        kept.push(option.to_owned());
    }
}

/// Translates the line, or keeps it as the `text` that it is.
fn translate_line(line: &Line<'_>, text: &[u8]) -> Result<Translated, Failure> {
    if !matches!(line.kind, b"nfs" | b"nfs4" | b"nfsrdma" | b"fuse.nfsrdma") {
        return Err(Failure::usage(format!(
            "the type {} is not one of NFS: give a line of the type nfs",
            String::from_utf8_lossy(line.kind)
        )));
    }
    let words = options_of(line)?;
    // It works over TCP, and is no business of this program.
    if matches!(line.kind, b"nfs" | b"nfs4") && !is_over_rdma(&words) {
        return Ok(Translated {
            line: text.to_owned(),
            notes: vec![
                "kept as it is, since it does not ask for RDMA: to translate it, add the option rdma".to_owned(),
            ],
        });
    }
    MountSource::parse(&unescaped(&line.source))?;
    let mut notes = Vec::new();
    if line.kind == b"nfs4" {
        notes.push("nfs4 is left out: NFS version 3 is spoken".to_owned());
    }
    let value = |name: &str| {
        words
            .iter()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    // With the kernel's `addr` of /proc/mounts, `mountport` is a value that it found, too.
    let of_kernel = value("addr").is_some();
    let mut kept: Vec<String> = Vec::new();
    let mut wrong: Vec<String> = Vec::new();
    for word in &words {
        let name = name_of(word);
        let shown = SHOWN.contains(&name) || (of_kernel && name == "mountport");
        if name == "defaults" || (shown && value("mountaddr") == value("addr")) {
            continue;
        }
        match Options::parse(word) {
            // Put back the quotes around a value that contains a comma.
            Ok(_) if word.contains(',') => kept.push(match word.split_once('=') {
                Some((name, value)) => format!("{name}=\"{value}\""),
                None => word.clone(),
            }),
            Ok(_) => kept.push(word.clone()),
            Err(error) if error.is_of_others() && !protects(name) => {
                notes.push(format!("'{word}' is left out: {error}"));
            }
            Err(error) => wrong.push(error.to_string()),
        }
    }
    if !wrong.is_empty() {
        return Err(Failure::usage(wrong.join("; and ")));
    }
    in_background(&mut kept, &mut notes);
    // systemd recognises network file systems by a list of types, which does not have this one.
    add_if_missing(&mut kept, "_netdev");
    let options = kept.join(",");
    Options::parse(&options)?;
    let fields = [&*line.source, &line.dir, b"nfsrdma", options.as_bytes()];
    let mut line = fields.map(escape_obeyed).join(&b"  "[..]);
    line.extend_from_slice(b"  0  0");
    Ok(Translated { line, notes })
}

/// Translates a line of a table. It is an error if a line that asks for RDMA cannot be translated.
fn translate_in_table(text: &[u8]) -> Result<Translated, Failure> {
    let Some(line) = Line::parse(text).filter(|line| matches!(line.kind, b"nfs" | b"nfs4")) else {
        return Ok(Translated {
            line: text.to_owned(),
            notes: Vec::new(),
        });
    };
    translate_line(&line, text)
}

pub(crate) fn run(args: &FstabArgs) -> Result<(), Failure> {
    let words: Vec<&[u8]> = args.line.iter().map(|word| word.as_bytes()).collect();
    if words == [b"-"] {
        return table(&mut std::io::stdin().lock());
    }
    let text = words.join(&b" "[..]);
    let line = match arguments(&words) {
        // These are the words into which the shell has split the command.
        Some(words) => Line::of_command(words, true),
        None => Line::parse(&text),
    };
    let line = line.ok_or_else(|| no_line(&text))?;
    // A line that is kept has the fields of the argument, without what a terminal would obey.
    let fields: Vec<_> = fstab_line::words(&text)
        .into_iter()
        .map(escape_obeyed)
        .collect();
    show(&translate_line(&line, &fields.join(&b' '))?, "").map(|_| ())
}

/// Translates the lines of a table that ask for RDMA, and prints all others unchanged.
fn table(input: &mut dyn BufRead) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    let mut text = Vec::new();
    for number in 1u64.. {
        text.clear();
        let read = input.read_until(b'\n', &mut text).map_err(|error| {
            let why = without_number(&error);
            Failure::new(
                Exit::System,
                format!("cannot read standard input: {why}; give the line as an argument"),
            )
        })?;
        if read == 0 {
            break;
        }
        if text.last() == Some(&b'\n') {
            text.pop();
        }
        let translated = translate_in_table(&text).unwrap_or_else(|failure| {
            wrong.push(number.to_string());
            Translated {
                line: text.clone(),
                notes: vec![format!("kept as it is: {failure}")],
            }
        });
        if show(&translated, &format!("line {number}: "))? == Reader::Gone {
            return Ok(());
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let (lines, are) = match wrong.len() {
        1 => ("line", "is"),
        _ => ("lines", "are"),
    };
    Err(Failure::usage(format!(
        "{lines} {} {are} not translated, but kept: leave them to mount -t nfs, or change what the notes name",
        wrong.join(", ")
    )))
}

/// Prints the line and its notes. `of` says which line the notes are about.
fn show(translated: &Translated, of: &str) -> Result<Reader, Failure> {
    for note in &translated.notes {
        output::message(format_args!("# {of}{note}"));
    }
    output::exact(&[&translated.line[..], b"\n"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn translate(text: &[u8]) -> Result<Translated, Failure> {
        let line = Line::parse(text).ok_or_else(|| no_line(text))?;
        translate_line(&line, text)
    }

    proptest! {
        #[test]
        fn any_line_is_answered(text: Vec<u8>) {
            let _ = translate(&text);
            let _ = translate_in_table(&text);
        }

        #[test]
        fn a_translation_is_stable(options in "(ro|bg|rdma|proto=rdma|addr=1.2.3.4|namlen=255|_netdev|soft|vers=3)(,(nosuid|noatime|nolock|timeo=7)){0,4}") {
            if let Ok(first) = translate(format!("srv:/x /mnt nfs {options} 0 0").as_bytes()) {
                prop_assert_eq!(translate(&first.line).unwrap().line, first.line);
            }
        }
    }
}
