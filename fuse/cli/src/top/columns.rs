//! Formats tables to a given width. Columns for which there is no room are left out.

#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) width: usize,
    /// A narrow terminal shows the columns with the lowest ranks.
    pub(super) rank: u8,
}

/// Least width of the first column.
const NAME_MIN: usize = 12;

/// The indices of the columns that fit, and the width of the first column, which has the name and
/// takes the remaining width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fit {
    pub(super) name: usize,
    pub(super) shown: Vec<usize>,
}

/// Chooses the columns that fit. `columns` does not include the name.
pub(super) fn fit(columns: &[Column], width: usize) -> Fit {
    let mut order: Vec<usize> = (0..columns.len()).collect();
    order.sort_by_key(|&at| columns[at].rank);
    let mut left = width.saturating_sub(NAME_MIN);
    let mut shown = Vec::new();
    for at in order {
        let needed = columns[at].width + 1;
        if needed > left {
            break;
        }
        left -= needed;
        shown.push(at);
    }
    shown.sort_unstable();
    let name = (NAME_MIN + left).min(width);
    Fit { name, shown }
}

/// The number of terminal cells of `text`, which must not contain control characters.
fn cells(text: &str) -> usize {
    ratatui::text::Span::raw(text).width()
}

/// Formats `text` in exactly `width` cells. A longer one keeps its end, which distinguishes paths.
pub(super) fn left(text: &str, width: usize) -> String {
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

/// A line with the name and the values of the shown columns, which are right-aligned.
pub(super) fn line(fit: &Fit, columns: &[Column], name: &str, values: &[String]) -> String {
    let mut line = left(name, fit.name);
    for &at in &fit.shown {
        let width = columns[at].width;
        let value = values.get(at).map_or("", String::as_str);
        line.push_str(&format!(" {value:>width$.width$}"));
    }
    line
}

/// The line with the titles.
pub(super) fn titles(fit: &Fit, columns: &[Column], name: &str) -> String {
    let titles: Vec<String> = columns.iter().map(|c| c.title.to_owned()).collect();
    line(fit, columns, name, &titles)
}

/// A line with a name, and a text in place of values.
pub(super) fn remark(fit: &Fit, name: &str, remark: &str, width: usize) -> String {
    let mut line = left(name, fit.name);
    line.push(' ');
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

    const COLUMNS: [Column; 3] = [
        Column {
            title: "one",
            width: 5,
            rank: 1,
        },
        Column {
            title: "two",
            width: 6,
            rank: 3,
        },
        Column {
            title: "three",
            width: 5,
            rank: 2,
        },
    ];

    #[test]
    fn what_has_no_room_is_left_out() {
        let all = fit(&COLUMNS, 40);
        assert_eq!((all.name, all.shown.as_slice()), (21, &[0, 1, 2][..]));
        assert_eq!(fit(&COLUMNS, 25).shown, [0, 2]);
        assert_eq!(fit(&COLUMNS, 18).shown, [0]);
        assert_eq!(
            fit(&COLUMNS, 7),
            Fit {
                name: 7,
                shown: vec![]
            }
        );
        let values = ["1".to_owned(), "22".to_owned(), "333".to_owned()];
        assert_eq!(
            line(&fit(&COLUMNS, 32), &COLUMNS, "/mnt", &values),
            "/mnt              1     22   333"
        );
        assert_eq!(
            titles(&fit(&COLUMNS, 19), &COLUMNS, "MOUNT"),
            "MOUNT           one"
        );
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
            let fit = fit(&COLUMNS, width);
            let values = vec!["123456789".to_owned(); 3];
            prop_assert!(cells(&line(&fit, &COLUMNS, &name, &values)) <= width);
            prop_assert!(cells(&remark(&fit, &name, &name, width)) <= width.max(fit.name + 1));
        }
    }
}
