//! Formats tables to a given width. Columns for which there is no room are left out, and no column is
//! wider than what it shows.

#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// The usual width; a column with a longer value is wider, so that no figure is cut.
    pub(super) width: usize,
    /// A narrow terminal shows the columns with the lowest ranks.
    pub(super) rank: u8,
    /// A text, which is left-aligned and may be cut to [`TEXT_MAX`].
    pub(super) text: bool,
}

impl Column {
    pub(super) const fn figure(title: &'static str, width: usize, rank: u8) -> Self {
        Column {
            title,
            width,
            rank,
            text: false,
        }
    }

    pub(super) const fn text(title: &'static str, rank: u8) -> Self {
        Column {
            title,
            width: title.len(),
            rank,
            text: true,
        }
    }
}

/// The columns of the name, which is the first one, are as many as the longest one has, but at least
/// the first number; a table with too little room for all columns makes it no narrower than the
/// second.
const NAME: (usize, usize) = (12, 20);
/// The greatest width of a column of text.
const TEXT_MAX: usize = 24;

/// The cells of a line after the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rest {
    Values(Vec<String>),
    /// A text in place of values.
    Remark(String),
}

/// Formats a table in `width` columns: the titles, and the lines. `columns` does not include the
/// name.
pub(super) fn table(
    name: &str,
    columns: &[Column],
    lines: &[(String, Rest)],
    width: usize,
) -> (String, Vec<String>) {
    let longest = |texts: &mut dyn Iterator<Item = &str>| texts.map(cells).max().unwrap_or(0);
    let widest = |at: usize| {
        let column: &Column = &columns[at];
        let mut values = lines.iter().filter_map(|(_, rest)| match rest {
            Rest::Values(values) => values.get(at).map(String::as_str),
            Rest::Remark(_) => None,
        });
        let most = longest(&mut values).max(column.width);
        if column.text {
            most.min(TEXT_MAX)
        } else {
            most
        }
    };
    let widths: Vec<usize> = (0..columns.len()).map(widest).collect();
    let wanted = longest(&mut lines.iter().map(|(name, _)| name.as_str())).max(NAME.0);
    let least = wanted.min(NAME.1);
    let mut order: Vec<usize> = (0..columns.len()).collect();
    order.sort_by_key(|&at| columns[at].rank);
    // The first ones are shown even if the name becomes short.
    let (mut used, mut shown) = (0, Vec::new());
    for at in order {
        let needed = used + widths[at] + 1;
        let name = if shown.len() < 3 { NAME.0 } else { least };
        if needed + name > width {
            break;
        }
        used = needed;
        shown.push(at);
    }
    shown.sort_unstable();
    let name_width = wanted.min(width.saturating_sub(used));
    let line = |name: &str, values: &[String]| {
        let mut line = left(name, name_width);
        for &at in &shown {
            let (value, width) = (values.get(at).map_or("", String::as_str), widths[at]);
            match columns[at].text {
                true => line.push_str(&format!(" {}", left(value, width))),
                false => line.push_str(&format!(" {value:>width$}")),
            }
        }
        line
    };
    let titles: Vec<String> = columns.iter().map(|c| c.title.to_owned()).collect();
    let lines = lines.iter().map(|(name, rest)| match rest {
        Rest::Values(values) => line(name, values),
        Rest::Remark(text) => remark(&left(name, name_width), text, width),
    });
    (line(name, &titles), lines.collect())
}

/// The number of terminal cells of `text`, which must not contain control characters.
fn cells(text: &str) -> usize {
    ratatui::text::Span::raw(text).width()
}

/// Formats `text` in exactly `width` cells. A longer one keeps its end, which distinguishes paths.
fn left(text: &str, width: usize) -> String {
    let mut rest = text;
    let mut cut = String::new();
    while cells(&cut) + cells(rest) > width && !rest.is_empty() {
        let mut chars = rest.chars();
        chars.next();
        rest = chars.as_str();
        "~".clone_into(&mut cut);
    }
    let mut out = format!("{cut}{rest}");
    if cells(&out) > width {
        out.clear();
    }
    let pad = width.saturating_sub(cells(&out));
    out + &" ".repeat(pad)
}

/// A line with a name, and a text in place of values.
fn remark(name: &str, remark: &str, width: usize) -> String {
    let mut line = format!("{name} ");
    let mut used = cells(&line);
    for character in remark.chars() {
        let more = cells(character.encode_utf8(&mut [0; 4]));
        if used + more > width {
            break;
        }
        used += more;
        line.push(character);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COLUMNS: [Column; 4] = [
        Column::text("server", 4),
        Column::figure("one", 5, 1),
        Column::figure("two", 6, 3),
        Column::figure("three", 5, 2),
    ];

    fn values(all: [&str; 4]) -> Rest {
        Rest::Values(all.map(str::to_owned).to_vec())
    }

    fn shown(width: usize) -> [String; 2] {
        let lines = [("/mnt".to_owned(), values(["nas", "1", "22", "333"]))];
        let (titles, lines) = table("MOUNT", &COLUMNS, &lines, width);
        [titles, lines.concat()]
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let all = [
            "MOUNT        server   one    two three",
            "/mnt         nas        1     22   333",
        ];
        assert_eq!(shown(38), all);
        assert_eq!(shown(200), all, "figures stay beside their names");
        assert_eq!(
            shown(37),
            [
                "MOUNT          one    two three",
                "/mnt             1     22   333"
            ]
        );
        assert_eq!(shown(25)[0], "MOUNT          one three");
        assert_eq!(shown(18)[0], "MOUNT          one");
        assert_eq!(shown(7), ["MOUNT  ", "/mnt   "]);
    }

    #[test]
    fn no_figure_is_cut() {
        let lines = [("/mnt".to_owned(), values(["nas", "123456789", "22", "3"]))];
        let (titles, lines) = table("MOUNT", &COLUMNS, &lines, 80);
        assert_eq!(titles, "MOUNT        server       one    two three");
        assert_eq!(lines, ["/mnt         nas    123456789     22     3"]);
    }

    #[test]
    fn the_end_of_a_path_stays() {
        assert_eq!(left("/srv/a/long/path", 9), "~ong/path");
        assert_eq!(left("/a", 4), "/a  ");
        assert_eq!(left("/données/写真", 6), "~/写真");
        assert_eq!(left("/a", 0), "");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_asked(name in "[^\\p{C}]{0,40}", width in 0usize..100) {
            let lines = [
                (name.clone(), values([&name, "123456789", "1", "2"])),
                (name.clone(), Rest::Remark(name.clone())),
            ];
            let (titles, lines) = table("MOUNT", &COLUMNS, &lines, width);
            prop_assert!(cells(&titles) <= width && cells(&lines[0]) <= width);
            prop_assert!(cells(&lines[1]) <= width + 1, "and the blank after a name");
        }
    }
}
