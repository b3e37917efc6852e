//! Formats the effective options, in the order in which the kernel's NFS mounts show them.

use super::Options;
use super::table::entries;
use super::words::Words;

/// The order of the kernel, by the first names of entries. Others follow in the order of the table.
const ORDER: &str = "ro suid symfollow sync atime context vers rsize acregmin acdirmin ac hard intr \
                     cto acl lookupcache rdirplus bg proto port nconnect remoteports localports timeo retrans retry sec gssport \
                     mounthost mountport mountproto resvport lock local_lock lockport callbackport \
                     allow_other permissions";

/// The values that the server and the connection negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Largest READ in force, in bytes.
    pub rsize: u32,
    /// Largest WRITE in force, in bytes.
    pub wsize: u32,
}

impl Options {
    /// These options as text for `-o`, with the sizes in force. Parsing the text results in the
    /// same settings.
    pub fn effective(&self, negotiated: Negotiated) -> String {
        let mut options = self.clone();
        options.client.rsize = Some(negotiated.rsize);
        options.client.wsize = Some(negotiated.wsize);
        let mut shown: Vec<_> = entries()
            .filter_map(|entry| Some((entry.names().next()?, entry)))
            .collect();
        // Each answer to `nfsrdma stats` shows them.
        shown.sort_by_cached_key(|(name, _)| {
            let place = ORDER.split(' ').position(|known| known == *name);
            place.unwrap_or(usize::MAX)
        });
        let mut words = Words::default();
        for (name, entry) in shown {
            (entry.show)(&options, name, &mut words);
        }
        words.into_text()
    }
}
