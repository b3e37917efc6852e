//! Files in lines for people.

/// A file by its path, as far as its names are known.
pub(crate) fn file(path: Option<&String>, fileid: u64) -> String {
    match path {
        Some(path) => format!("{path} (file {fileid})"),
        None => format!("file {fileid} (its name is not known)"),
    }
}

/// The bytes of a longer name that a line shows.
const SHOWN: usize = 64;

/// A name from the server, which may be of any length and have any bytes.
pub(crate) fn name(name: &[u8]) -> String {
    match name.len() {
        0..=255 => name.escape_ascii().to_string(),
        len => format!("{}... ({len} bytes)", name[..SHOWN].escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_directory_can_have_is_shortened() {
        assert_eq!(name(b"a\tb"), "a\\tb");
        assert_eq!(name(&[b'n'; 255]), "n".repeat(255));
        let long = name(&[b'n'; 1 << 20]);
        assert_eq!(long, format!("{}... (1048576 bytes)", "n".repeat(64)));
    }
}
