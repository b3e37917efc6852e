//! The manual pages: texts in `man/`, into which the program's own definitions are inserted.

use crate::reference;
use crate::roff::{entry, escape, prose, sentence, subsection};
use clap::{Arg, Command};

/// Completes a page. Lines of the form `.\" @NAME` are replaced; an unknown name is an error.
pub(crate) fn fill(page: &str, command: &Command) -> Result<String, String> {
    let mut out = String::new();
    for line in page.lines() {
        match line.strip_prefix(".\\\" @") {
            Some("commands") => out.push_str(&commands(command)),
            Some(other) => match other.strip_prefix("options ") {
                Some(title) => out.push_str(&reference::manual(title)?),
                None => return Err(format!("unknown directive @{other}")),
            },
            None => {
                out.push_str(&line.replace("@VERSION@", env!("CARGO_PKG_VERSION")));
                out.push('\n');
            }
        }
    }
    Ok(out)
}

/// Each command with its usage and options.
fn commands(command: &Command) -> String {
    let mut out = String::new();
    for sub in visible(command) {
        out.push_str(&subsection(&format!(
            "{} {}",
            command.get_name(),
            sub.get_name()
        )));
        out.push_str(&usage(command.get_name(), sub));
        if let Some(about) = sub.get_long_about().or(sub.get_about()) {
            out.push_str(".PP\n");
            out.push_str(&prose(&sentence(&about.to_string())));
        }
        for arg in arguments(sub) {
            let help = arg.get_long_help().or(arg.get_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            out.push_str(&entry(&tag(arg), &prose(&sentence(&help))));
        }
    }
    out
}

/// The commands that the help shows.
pub(crate) fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && arg.get_id() != "help")
}

fn usage(program: &str, command: &Command) -> String {
    let mut words = vec![format!(
        "\\fB{} {}\\fR",
        escape(program),
        escape(command.get_name())
    )];
    if arguments(command).any(|arg| !arg.is_positional()) {
        words.push("[\\fIOPTIONS\\fR]".into());
    }
    for arg in arguments(command).filter(|arg| arg.is_positional()) {
        let value = value(arg);
        words.push(if arg.is_required_set() {
            value
        } else {
            format!("[{value}]")
        });
    }
    words.join(" ") + "\n"
}

fn value(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let names: Vec<String> = names
        .iter()
        .map(|name| format!("\\fI{}\\fR", escape(name)))
        .collect();
    names.join(" ")
}

fn tag(arg: &Arg) -> String {
    let mut names = Vec::new();
    if let Some(short) = arg.get_short() {
        names.push(format!("\\fB\\-{short}\\fR"));
    }
    if let Some(long) = arg.get_long() {
        names.push(format!("\\fB\\-\\-{}\\fR", escape(long)));
    }
    let mut tag = names.join(", ");
    if arg.is_positional() || arg.get_action().takes_values() {
        if !tag.is_empty() {
            tag.push(' ');
        }
        tag.push_str(&value(arg));
    }
    tag
}
