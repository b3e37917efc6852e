//! The option tables of docs/CONFIGURATION.md, which list every mount option.

/// A section with its tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) title: String,
    /// The first column of each row, still with its backquotes: options, or forms of mount sources.
    pub(crate) rows: Vec<String>,
}

/// The beginning of the title of the section with refused options.
pub(crate) const REFUSED: &str = "Refused";
/// The section whose first column does not have options.
pub(crate) const FORMS: &str = "What to mount";

/// Reads the sections that have tables. An error names the line that cannot be read.
pub(crate) fn sections(text: &str) -> Result<Vec<Section>, String> {
    let mut sections: Vec<Section> = Vec::new();
    let mut title = None;
    for (number, line) in text.lines().enumerate() {
        if let Some(heading) = line.strip_prefix("## ") {
            title = Some(heading.trim().to_string());
        }
        let Some(inner) = line.strip_prefix('|') else {
            continue;
        };
        let wrong = |why| format!("docs/CONFIGURATION.md:{}: {why}", number + 1);
        let inner = inner
            .trim_end()
            .strip_suffix('|')
            .ok_or_else(|| wrong("the row does not end in '|'"))?;
        let cells = cells(inner);
        let first = cells.first().map_or("", String::as_str);
        if matches!(first, "Option" | "Form") || first.starts_with("---") {
            continue;
        }
        if !(2..=3).contains(&cells.len()) {
            return Err(wrong("a row has two or three columns"));
        }
        let title = title
            .clone()
            .ok_or_else(|| wrong("a table before any section"))?;
        if sections.last().is_none_or(|last| last.title != title) {
            sections.push(Section {
                title,
                rows: Vec::new(),
            });
        }
        let last = sections.last_mut().expect("just pushed");
        last.rows.push(first.to_string());
    }
    Ok(sections)
}

/// Splits at bars that are not escaped by a backslash.
fn cells(row: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut chars = row.chars().peekable();
    while let Some(c) = chars.next() {
        let cell = cells.last_mut().expect("one cell from the start");
        match c {
            '\\' if chars.peek() == Some(&'|') => cell.extend(chars.next()),
            '|' => cells.push(String::new()),
            c => cell.push(c),
        }
    }
    cells.iter().map(|cell| cell.trim().to_string()).collect()
}

/// The texts in backquotes.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The values of `-o` for completion: `name`, `name=` before a free value, and `name=word` for each
/// word of a choice.
pub(crate) fn words(sections: &[Section]) -> Vec<String> {
    let mut words = Vec::new();
    let rows = sections
        .iter()
        .filter(|section| section.title != FORMS && !section.title.starts_with(REFUSED))
        .flat_map(|section| &section.rows);
    for option in rows.flat_map(|row| quoted(row)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
## Forms\ntext\n\n| Form | |\n| --- | --- |\n| `a:/b` | a, `b` |\n
## Two\n| Option | Default | Meaning |\n| --- | --- | --- |
| `x=N`, `y` | `4` | why |\n| `z=a\\|b`, `x-*` | | because |\n";

    #[test]
    fn tables_are_read() {
        let sections = sections(TEXT).unwrap();
        assert_eq!(sections.len(), 2);
        assert_eq!(sections[0].title, "Forms");
        assert_eq!(sections[0].rows, ["`a:/b`"]);
        assert_eq!(sections[1].rows, ["`x=N`, `y`", "`z=a|b`, `x-*`"]);
        assert_eq!(words(&sections[1..]), ["x=", "y", "z=a", "z=b"]);
    }

    #[test]
    fn other_shapes_are_refused() {
        assert_eq!(
            sections("## A\n| a | b | c | d |").unwrap_err(),
            "docs/CONFIGURATION.md:2: a row has two or three columns"
        );
        assert!(sections("| a | b |").unwrap_err().contains("before any"));
        assert!(sections("## A\n| a | b").unwrap_err().contains("end in"));
    }
}
