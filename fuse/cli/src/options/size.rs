//! Parses and formats sizes: `1048576`, `1024K`, `1M`, `1MiB`.

use std::fmt::Write;

/// Parses a number of bytes. K, M, G and T are powers of 1024, in either case and optionally
/// followed by `iB` or `B`. `None` if it is not a number, or does not fit in `u64`.
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit = unit.to_ascii_lowercase();
    let prefix = unit
        .strip_suffix("ib")
        .or_else(|| unit.strip_suffix('b'))
        .unwrap_or(&unit);
    let shift = match (prefix, unit.len() > prefix.len()) {
        ("", _) if unit.is_empty() || unit == "b" => 0,
        ("k", _) => 10,
        ("m", _) => 20,
        ("g", _) => 30,
        ("t", _) => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// The shortest exact form: `4K` for 4096, but `1048577` for itself.
pub fn show_size(bytes: u64) -> String {
    let mut text = String::new();
    let (unit, letter) = [(40, "T"), (30, "G"), (20, "M"), (10, "K")]
        .into_iter()
        .find(|&(shift, _)| bytes != 0 && bytes.trailing_zeros() >= shift)
        .unwrap_or((0, ""));
    write!(text, "{}{letter}", bytes >> unit).expect("writing to a String does not fail");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4k", Some(4096)),
            ("64K", Some(65536)),
            ("64KiB", Some(65536)),
            ("1M", Some(1 << 20)),
            ("2G", Some(2 << 30)),
            ("3tb", Some(3 << 40)),
            ("12b", Some(12)),
            ("", None),
            ("K", None),
            ("-1", None),
            ("1.5M", None),
            ("1X", None),
            ("1ib", None),
            ("1 M", None),
            ("99999999999999999999", None),
            ("99999999999999T", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_parsed(bytes: u64) {
            prop_assert_eq!(parse_size(&show_size(bytes)), Some(bytes));
        }
    }
}
