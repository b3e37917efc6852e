//! Formats text as man(7) source.

/// Escapes text without markup, for any position in a line.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            // A plain '-' is a hyphen, and a plain '\'' a quotation mark (groff_char(7)).
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            c => out.push(c),
        }
    }
    out
}

/// A sentence from a text that begins in lower case and has no full stop.
pub(crate) fn sentence(text: &str) -> String {
    let mut chars = text.trim_end_matches('.').chars();
    match chars.next() {
        None => String::new(),
        Some(first) => format!("{}{}.", first.to_uppercase(), chars.as_str()),
    }
}

/// A separate line. A dot at its beginning must not be taken for a request.
fn line(text: String) -> String {
    match text.chars().next() {
        Some('.') => format!("\\&{text}\n"),
        _ => format!("{text}\n"),
    }
}

/// Prose with code in backquotes, as one input line. Of a link the file is named, and references to
/// manual pages are set in bold.
pub(crate) fn prose(text: &str) -> String {
    let mut out = String::new();
    for (index, part) in text.split('`').enumerate() {
        match index % 2 {
            // A hyphen in prose stays a hyphen.
            0 => out.push_str(&references(&escape(&links(part)).replace("\\-", "-"))),
            _ => out.push_str(&format!("\\fB{}\\fR", escape(part))),
        }
    }
    line(out)
}

/// Replaces `[text](FILE#part)` by FILE.
fn links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((target, after)) = link
            .split_once("](")
            .and_then(|(_, target)| target.split_once(')'))
        else {
            break;
        };
        let file = target.split('#').next().unwrap_or(target);
        out.push_str(before);
        out.push_str(file);
        rest = after;
    }
    out + rest
}

/// Sets the names in `name(5)` in bold.
fn references(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.split_once('(') {
        Some((name, section)) if !name.is_empty() && is_section(section) => {
            format!("\\fB{name}\\fR({section}")
        }
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a text begins with the number of a section and a parenthesis.
fn is_section(text: &str) -> bool {
    let digit = text
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_digit());
    digit && text[1..].starts_with(')')
}

/// An entry of a list: its tag, which already has markup, and its text.
pub(crate) fn entry(tag: &str, text: &str) -> String {
    format!(".TP\n{}{text}", line(tag.into()))
}

/// A section within a section.
pub(crate) fn subsection(title: &str) -> String {
    format!(".SS \"{}\"\n", escape(title).replace('"', "\\(dq"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_for_a_request() {
        assert_eq!(prose(".so /etc/passwd"), "\\&.so /etc/passwd\n");
        assert_eq!(prose("'x"), "\\(aqx\n");
        assert_eq!(prose("a-b `c-d\\e`"), "a-b \\fBc\\-d\\ee\\fR\n");
        assert_eq!(entry(".x", "y\n"), ".TP\n\\&.x\ny\n");
    }

    #[test]
    fn links_and_manual_pages() {
        assert_eq!(
            prose("see [that](A.md#b), or fsync(2) (`x`)"),
            "see A.md, or \\fBfsync\\fR(2) (\\fBx\\fR)\n"
        );
    }
}
