//! The results of getdents64(2), as text that can be compared.

use crate::observe;
use crate::sys::{self, Sys};

/// The entries from the descriptor's position on, with their cookies but without hidden names.
pub(crate) fn entries(fd: i32, buffer: usize) -> Sys<Vec<(Vec<u8>, i64)>> {
    let mut out = Vec::new();
    let mut bytes = vec![0; buffer];
    loop {
        let n = sys::getdents(fd, &mut bytes)? as usize;
        if n == 0 {
            return Ok(out);
        }
        let mut rest = &bytes[..n];
        // struct linux_dirent64: inode, cookie, length, type, name.
        while let Some((head, name)) = rest.split_at_checked(19) {
            let cookie = i64::from_ne_bytes(head[8..16].try_into().map_err(|_| libc::EIO)?);
            let len = usize::from(u16::from_ne_bytes([head[16], head[17]]));
            let end = name
                .iter()
                .position(|&byte| byte == 0)
                .unwrap_or(name.len());
            if !observe::is_hidden(&name[..end]) {
                let mut entry = name[..end].to_vec();
                entry.extend_from_slice(format!(":{}", head[18]).as_bytes());
                out.push((entry, cookie));
            }
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

/// Names and types, sorted.
pub(crate) fn shown(mut entries: Vec<(Vec<u8>, i64)>) -> String {
    entries.sort();
    let names: Vec<_> = entries
        .iter()
        .map(|e| e.0.escape_ascii().to_string())
        .collect();
    names.join(" ")
}
