//! Messages for a wrong command line. As all messages of this program, each is one sentence that
//! names the remedy; it replaces the paragraphs that clap would print.

use crate::nearest::nearest;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use std::error::Error as _;
use std::fmt;
use std::ops::RangeInclusive;

/// A command line that is no command.
#[derive(Debug)]
pub enum NoCommand {
    /// It asks for the help or the version, or is empty, which prints the help as well.
    Help(Error),
    /// It is wrong, for the reason that this sentence has.
    Wrong(String),
}

impl fmt::Display for NoCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoCommand::Help(text) => text.fmt(f),
            NoCommand::Wrong(sentence) => f.write_str(sentence),
        }
    }
}

impl NoCommand {
    /// The error of clap for a command line of `command`.
    pub(super) fn of(command: &Command, error: Error) -> Self {
        match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => NoCommand::Help(error),
            _ => NoCommand::Wrong(said(command, &error).unwrap_or_else(|| {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                first.strip_prefix("error: ").unwrap_or(first).to_owned()
            })),
        }
    }
}

/// Commands of other programs, and what does the same here.
const MEANT: [(&str, &str); 14] = [
    ("version", "write nfsrdma --version"),
    ("list", "write nfsrdma stats, which lists all mounts"),
    ("ls", "write nfsrdma stats, which lists all mounts"),
    ("mounts", "write nfsrdma stats, which lists all mounts"),
    ("show", "write nfsrdma stats, which lists all mounts"),
    ("status", "write nfsrdma stats, which lists all mounts"),
    ("info", "write nfsrdma stats, which lists all mounts"),
    (
        "df",
        "write nfsrdma stats, which lists all mounts, or df -t fuse.nfsrdma",
    ),
    ("showmount", "write nfsrdma exports SERVER"),
    ("check", "write nfsrdma ping SERVER"),
    ("test", "write nfsrdma ping SERVER"),
    (
        "remount",
        "write nfsrdma mount SERVER:/EXPORT DIR -o remount,OPTIONS",
    ),
    ("unmount", "write nfsrdma umount DIR"),
    ("tcpdump", "write nfsrdma capture DIR FILE"),
];

/// The sentence for an error of clap, if there is one for its kind.
fn said(command: &Command, error: &Error) -> Option<String> {
    let argument = || words(error, ContextKind::InvalidArg).join(" and ");
    let value = || words(error, ContextKind::InvalidValue).join(" ");
    Some(match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let name = words(error, ContextKind::InvalidSubcommand).join(" ");
            let names = || command.get_subcommands().map(Command::get_name);
            if let Some((_, remedy)) = MEANT.iter().find(|(other, _)| *other == name) {
                return Some(format!("unknown command '{name}': {remedy}"));
            }
            match nearest(&name, names()) {
                Some(meant) => format!("unknown command '{name}'; did you mean '{meant}'?"),
                None => {
                    let all = names().collect::<Vec<_>>().join(", ");
                    format!("unknown command '{name}': use one of {all}")
                }
            }
        }
        ErrorKind::UnknownArgument if !argument().starts_with('-') => format!(
            "one argument too many, '{}': write {}",
            argument(),
            form(error)?
        ),
        ErrorKind::UnknownArgument => {
            let name = argument();
            match (&*name, called(&form(error)?)) {
                ("-a" | "--all", "nfsrdma mount") => {
                    return Some("nfsrdma mounts one export: write mount -a -t nfsrdma for all lines of /etc/fstab".into());
                }
                ("-a" | "--all", "nfsrdma umount") => {
                    return Some("nfsrdma unmounts one mount: write umount -a -t fuse.nfsrdma for all of them".into());
                }
                _ => {}
            }
            match &words(error, ContextKind::SuggestedArg)[..] {
                [meant] => format!("unknown option '{name}'; did you mean '{meant}'?"),
                _ => format!(
                    "unknown option '{name}': leave it out; '{} --help' lists what there is",
                    called(&form(error)?)
                ),
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let verb = match words(error, ContextKind::InvalidArg).len() {
                1 => "is",
                _ => "are",
            };
            format!("{} {verb} missing: write {}", argument(), form(error)?)
        }
        ErrorKind::ArgumentConflict => {
            let (one, others) = (argument(), words(error, ContextKind::PriorArg));
            match &others[..] {
                [] => format!(
                    "'{one}' is used without any other argument: leave out either it or the others"
                ),
                [other] if *other == one => format!("'{one}' was given twice: give it once"),
                [other] => format!("'{one}' cannot be used with '{other}': leave one of them out"),
                others => format!(
                    "'{one}' cannot be used with '{}': leave out either it or those",
                    others.join("' and '")
                ),
            }
        }
        ErrorKind::InvalidValue => {
            let (name, value) = (argument(), value());
            let all = words(error, ContextKind::ValidValue);
            if !all.is_empty() {
                let remedy = match nearest(&value, all.iter().copied()) {
                    Some(meant) => format!("; did you mean '{meant}'?"),
                    None => format!(": use one of {}", all.join(", ")),
                };
                format!("invalid value '{value}' for '{name}'{remedy}")
            } else if !value.is_empty() {
                return None;
            } else if let Some(option) = name.split(' ').next().filter(|o| o.starts_with('-')) {
                format!("'{option}' needs a value: write {name}")
            } else {
                format!("{name} is empty: write a path there")
            }
        }
        // The parser of the value has named the remedy.
        ErrorKind::ValueValidation => format!(
            "invalid value '{}' for '{}': {}",
            value(),
            argument(),
            error.source()?
        ),
        ErrorKind::TooManyValues => {
            format!("'{}' takes no value: leave out '={}'", argument(), value())
        }
        ErrorKind::InvalidUtf8 => {
            "an argument is not UTF-8: write options and their values in UTF-8".to_owned()
        }
        _ => return None,
    })
}

fn words(error: &Error, kind: ContextKind) -> Vec<&str> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => vec![word],
        Some(ContextValue::Strings(words)) => words.iter().map(String::as_str).collect(),
        _ => vec![],
    }
}

/// The usage that clap shows for the command: `nfsrdma umount [OPTIONS] <DIR>`.
fn form(error: &Error) -> Option<String> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return None;
    };
    let usage = usage.to_string();
    Some(usage.strip_prefix("Usage: ")?.trim_end().to_owned())
}

/// The words of a usage before its first argument: `nfsrdma umount`.
fn called(form: &str) -> &str {
    let end = form
        .match_indices(' ')
        .find(|&(at, _)| form[at + 1..].starts_with(['[', '<', '-']));
    end.map_or(form, |(at, _)| &form[..at])
}

/// Parses a number within `range`. `takes` has the unit and an example for the error message.
pub(super) fn number<T: TryFrom<u64>>(
    text: &str,
    range: RangeInclusive<u64>,
    (takes, example): (&str, &str),
) -> Result<T, String> {
    let given = text.parse::<u64>().ok();
    let allowed = given.filter(|given| range.contains(given));
    allowed
        .and_then(|allowed| T::try_from(allowed).ok())
        .ok_or_else(|| {
            let bound = match given {
                Some(given) if given > *range.end() => format!(", at most {}", range.end()),
                _ if *range.start() > 0 => format!(", at least {}", range.start()),
                _ => String::new(),
            };
            format!("it takes a number of {takes}{bound}, for example {example}")
        })
}
