//! Foreign text as a part of one line.

/// Whether a terminal would do something other than show this character: controls (C0, DEL and C1),
/// the separators of lines and paragraphs, and those that change the direction of the text, by
/// which a name can look like another one.
pub fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Foreign text, with question marks for what a terminal would obey.
pub fn plain(text: &str) -> String {
    text.replace(is_obeyed, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_replaced() {
        let obeyed = "\0\u{7}\t\n\u{1b}\u{7f}\u{80}\u{9b}\u{61c}\u{200e}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}";
        assert_eq!(plain(obeyed), "?".repeat(obeyed.chars().count()));
        let shown = "a b~\u{a0}\u{e9}\u{5d0}\u{200d}\u{2027}\u{202f}\u{2065}\u{206a}\u{fffd}";
        assert_eq!(plain(shown), shown);
    }
}
