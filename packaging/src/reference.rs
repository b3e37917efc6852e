//! The mount options, from the program's table of them: the entries of nfsrdma(5), and the words for
//! completion.

use crate::roff::{entry, escape, prose, sentence};
use nfsrdma::options::table::{Entry, SECTIONS};

/// The section of this title as entries of a manual page.
pub(crate) fn manual(title: &str) -> Result<String, String> {
    let section = SECTIONS.iter().find(|section| section.title == title);
    let section = section.ok_or_else(|| format!("no section of options has the title {title}"))?;
    Ok(section.entries.iter().map(manual_entry).collect())
}

fn manual_entry(option: &Entry) -> String {
    let tags: Vec<String> = option.forms().flat_map(tags).collect();
    let mut paragraphs = option.help.split("\n\n").map(|text| prose(&sentence(text)));
    let mut text = paragraphs.next().unwrap_or_default();
    if !option.default.is_empty() {
        text += &prose(&format!("Default: {}.", option.default));
    }
    for paragraph in paragraphs {
        text += &format!(".IP\n{paragraph}");
    }
    entry(&tags.join(", "), &text)
}

/// A form with markup; a choice becomes one for each value.
fn tags(form: &str) -> Vec<String> {
    let bold = |text: &str| format!("\\fB{}\\fR", escape(text));
    match form.split_once('=') {
        None => match form.strip_suffix('*') {
            Some(begin) => vec![format!("\\fB{}\\fI*\\fR", escape(begin))],
            None => vec![bold(form)],
        },
        Some((name, value)) if is_free(value) => {
            vec![format!("\\fB{}=\\fI{}\\fR", escape(name), escape(value))]
        }
        Some((name, value)) => {
            let words = value.split('|');
            words.map(|word| bold(&format!("{name}={word}"))).collect()
        }
    }
}

/// The values of `-o` for completion: `name`, `name=` before a free value, and `name=word` for each
/// word of a choice.
pub(crate) fn words() -> Vec<String> {
    let mut words = Vec::new();
    let entries = SECTIONS.iter().flat_map(|section| section.entries);
    let honoured = entries.filter(|entry| !entry.is_refused());
    for option in honoured.flat_map(Entry::forms) {
        match option.split_once('=') {
            _ if option.contains('*') => {}
            None => words.push(option.to_string()),
            Some((name, value)) if is_free(value) => words.push(format!("{name}=")),
            Some((name, value)) => {
                words.extend(value.split('|').map(|word| format!("{name}={word}")));
            }
        }
    }
    // An option with two forms of value results in one word.
    words.dedup();
    words
}

/// Whether a value is a placeholder, which is written in capitals.
fn is_free(value: &str) -> bool {
    value.chars().all(|c| c.is_ascii_uppercase() || c == ':')
}
