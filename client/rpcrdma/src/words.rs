//! Numbers in sentences for people.

use std::fmt::Display;

/// `1 call`, `2 calls`. `noun` is one whose plural ends in s.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let plural = if number == N::from(1) { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        let said = [0u64, 1, 2, 21].map(|number| counted(number, "call"));
        assert_eq!(said, ["0 calls", "1 call", "2 calls", "21 calls"]);
        assert_eq!(counted(1usize, "time-out"), "1 time-out");
    }
}
