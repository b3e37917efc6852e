//! Replaces what a bug report need not tell: hosts, addresses and paths become words with a number,
//! the same one each time, so that it can still be seen what belongs together.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Paths below these are the same on every system.
const COMMON: [&str; 10] = [
    "/dev", "/proc", "/sys", "/usr", "/etc", "/run", "/lib", "/bin", "/sbin", "/boot",
];

/// The words that were given out.
#[derive(Debug, Default)]
pub(super) struct Veil {
    words: HashMap<String, String>,
    counts: HashMap<&'static str, u32>,
    /// What is replaced wherever it occurs as a word, the longest first.
    known: Vec<String>,
}

impl Veil {
    /// The word for `text`, of this kind.
    fn word(&mut self, kind: &'static str, text: &str) -> String {
        if let Some(word) = self.words.get(text) {
            return word.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let word = format!("{kind}-{count}");
        self.words.insert(text.to_owned(), word.clone());
        word
    }

    /// From now on, hides this host or path wherever it occurs.
    pub(super) fn hide(&mut self, kind: &'static str, text: &str) {
        let is_address = address(text).is_some();
        if text.is_empty() || text == "/" || text == "localhost" || is_address {
            return;
        }
        self.word(kind, text);
        if !self.known.iter().any(|known| known == text) {
            self.known.push(text.to_owned());
            self.known
                .sort_by_key(|known| std::cmp::Reverse(known.len()));
        }
    }

    /// A text with words in place of what is hidden.
    pub(super) fn text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for known in self.known.clone() {
            if let Some(word) = self.words.get(&known) {
                text = replace_words(&text, &known, word);
            }
        }
        let mut veiled = String::with_capacity(text.len());
        let mut token = String::new();
        for c in text.chars() {
            match is_separator(c) {
                true => {
                    veiled.push_str(&self.token(&token));
                    token.clear();
                    veiled.push(c);
                }
                false => token.push(c),
            }
        }
        veiled.push_str(&self.token(&token));
        veiled
    }

    fn token(&mut self, token: &str) -> String {
        // SERVER:/EXPORT
        if let Some((host, path)) = token.split_once(":/") {
            let host = match host {
                "" => String::new(),
                host => self.token(host),
            };
            return format!("{host}:{}", self.token(&format!("/{path}")));
        }
        let end = token.trim_end_matches(['.', ':']).len();
        let (bare, rest) = token.split_at(end);
        if let Some(ip) = address(bare) {
            return match ip.is_loopback() || ip.is_unspecified() {
                true => token.to_owned(),
                false => self.word("address", &ip.to_string()) + rest,
            };
        }
        let is_common = |path: &str| {
            COMMON.iter().any(|common| {
                let below = path.strip_prefix(common);
                below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        match bare.starts_with('/') && bare.len() > 1 && !is_common(bare) {
            true => self.word("path", bare) + rest,
            false => token.to_owned(),
        }
    }
}

fn is_separator(c: char) -> bool {
    c.is_whitespace() || "'\",;()=<>{}|".contains(c)
}

/// An address, with or without brackets, an interface, or a port.
fn address(token: &str) -> Option<IpAddr> {
    if let Ok(socket) = token.parse::<SocketAddr>() {
        return Some(socket.ip());
    }
    let bare = token.trim_start_matches('[').trim_end_matches(']');
    bare.split('%').next()?.parse().ok()
}

/// Replaces `known` where it is not a part of a longer word.
fn replace_words(text: &str, known: &str, word: &str) -> String {
    let is_inner = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_');
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(known) {
        let (before, found) = rest.split_at(at);
        let behind = &found[known.len()..];
        replaced.push_str(before);
        let is_part = is_inner(replaced.chars().next_back()) || is_inner(behind.chars().next());
        replaced.push_str(if is_part { known } else { word });
        rest = behind;
    }
    replaced + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_together_keeps_one_word() {
        let mut veil = Veil::default();
        veil.hide("host", "nas");
        veil.hide("path", "/srv/my data");
        assert_eq!(
            veil.text("nas:/srv/my data at 192.0.2.7:20049 (192.0.2.7), nasty"),
            "host-1:path-1 at address-1 (address-1), nasty"
        );
        assert_eq!(
            veil.text("\"dir\": \"/home/alice\", [2001:db8::1]:20049: /home/alice; other:/a"),
            "\"dir\": \"path-2\", address-2: path-2; other:path-3"
        );
    }

    #[test]
    fn what_is_the_same_everywhere_stays() {
        let mut veil = Veil::default();
        let plain = "/dev/fuse 127.0.0.1:20049 [::1]:111 ms 1.5 /usr/bin/nfsrdma Linux 6.1.0";
        assert_eq!(veil.text(plain), plain);
        assert_eq!(veil.text("/development"), "path-1");
    }
}
