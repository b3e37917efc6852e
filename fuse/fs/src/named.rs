//! Files in lines for people.

/// A file by its path, as far as its names are known.
pub(crate) fn file(path: Option<&String>, fileid: u64) -> String {
    match path {
        Some(path) => format!("{path} (file {fileid})"),
        None => format!("file {fileid} (its name is not known)"),
    }
}
