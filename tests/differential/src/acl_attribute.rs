//! Access control lists as extended attributes.

use std::ffi::CStr;

/// The extended attribute of an access ACL or a default ACL.
pub(crate) fn attribute(default: bool) -> &'static CStr {
    match default {
        true => c"system.posix_acl_default",
        false => c"system.posix_acl_access",
    }
}

/// The value of this attribute (linux/posix_acl_xattr.h).
pub(crate) fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entries = entries.iter().flat_map(|&(tag, permissions, id)| {
        let words = [tag.to_le_bytes(), permissions.to_le_bytes()].concat();
        [&words[..], &id.to_le_bytes()].concat()
    });
    2u32.to_le_bytes().into_iter().chain(entries).collect()
}
