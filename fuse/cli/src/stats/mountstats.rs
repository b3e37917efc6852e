//! Formats the counters like /proc/self/mountstats (statvers 1.1, as Linux 6.12 prints it).
//! mountstats(8) of nfs-common reads this format from a file (`-f`). nfsiostat(8) reads only the
//! kernel's table.
//!
//! Fields that this program has no counterpart of are zero.

use super::document::{Connection, Document};
use crate::mounts;
use nfsrdma_nfs3::options::Flavor;
use nfsrdma_xdr::rpc::flavor;
use std::fmt::Write;

/// Escapes names as the kernel does in its tables.
fn escape(text: &str) -> String {
    String::from_utf8_lossy(&mounts::escape(text.as_bytes())).into_owned()
}

fn join(numbers: &[u64]) -> String {
    let words: Vec<_> = numbers.iter().map(u64::to_string).collect();
    words.join(" ")
}

/// The numbers of a flavor and its pseudoflavor (RFC 2623 section 2.3).
fn security(sec: &str) -> (u32, u32) {
    match Flavor::of_name(sec) {
        Some(Flavor::Kerberos(service)) => (flavor::RPCSEC_GSS, service.pseudo_flavor()),
        Some(Flavor::Sys) | None => (flavor::SYS, flavor::SYS),
    }
}

/// A complete `device` entry.
pub(super) fn render(document: &Document) -> String {
    let mut out = String::new();
    // Writing into a string does not fail.
    let _ = write(document, &mut out);
    out
}

fn write(document: &Document, out: &mut String) -> std::fmt::Result {
    // The tools ignore all types but nfs and nfs4.
    writeln!(
        out,
        "device {} mounted on {} with fstype nfs statvers=1.1",
        escape(&document.source),
        escape(&document.directory)
    )?;
    writeln!(out, "\topts:\t{}", escape(&document.options))?;
    writeln!(out, "\tage:\t{}", document.age_ns / 1_000_000_000)?;
    writeln!(
        out,
        "\tcaps:\tcaps=0x0,wtmult={},dtsize={},bsize=0,namlen={}",
        document.server.wtmult, document.server.dtpref, document.server.name_max
    )?;
    let (flavor, pseudoflavor) = security(document.sec());
    writeln!(out, "\tsec:\tflavor={flavor},pseudoflavor={pseudoflavor}")?;
    writeln!(out, "\tevents:\t{} ", join(&events(document)))?;
    writeln!(out, "\tbytes:\t{} ", join(&bytes(document)))?;
    writeln!(out, "\tRPC iostats version: 1.1  p/v: 100003/3 (nfs)")?;
    for connection in &document.connections {
        writeln!(out, "\txprt:\trdma {}", join(&transport(connection)))?;
    }
    writeln!(out, "\tper-op statistics")?;
    for procedure in &document.procedures {
        writeln!(
            out,
            "\t{:>12}: {}",
            procedure.name,
            join(&[
                procedure.calls,
                procedure.calls.saturating_add(procedure.retransmits),
                procedure.timeouts,
                procedure.bytes_sent,
                procedure.bytes_received,
                procedure.queue_ns / 1_000_000,
                procedure.round_trip_ns / 1_000_000,
                procedure.total_ns / 1_000_000,
                procedure.errors,
            ])
        )?;
    }
    writeln!(out)
}

/// The 27 events.
fn events(document: &Document) -> [u64; 27] {
    let count = |name| document.cache_counter(name);
    let calls = |name: &str| {
        let found = document.procedures.iter().find(|p| p.name == name);
        found.map_or(0, |procedure| procedure.calls)
    };
    let mut events = [0; 27];
    // inoderevalidates, dentryrevalidates, datainvalidates
    events[0] = count("attribute_misses");
    events[1] = count("name_hits").saturating_add(count("name_negative_hits"));
    events[2] = count("foreign_changes");
    // vfslookup, vfsaccess
    events[5] = events[1].saturating_add(count("name_misses"));
    events[6] = count("access_hits").saturating_add(count("access_misses"));
    // vfsreadpage(s) and vfswritepage(s): the pages that became READs and WRITEs.
    events[9] = count("reads_sent");
    events[11] = count("writes_sent");
    // vfssetattr
    events[13] = calls("SETATTR");
    // congestionwait
    events[18] = count("write_waits");
    // sillyrename
    events[21] = count("silly_renames");
    events
}

/// The bytes counters: of applications, cached and direct; from and to the server; in pages.
fn bytes(document: &Document) -> [u64; 8] {
    let count = |name| document.cache_counter(name);
    let procedure = |name: &str| document.procedures.iter().find(|p| p.name == name);
    let from_server = procedure("READ").map_or(0, |p| p.bytes_received);
    let to_server = procedure("WRITE").map_or(0, |p| p.bytes_sent);
    [
        count("read_bytes"),
        count("write_bytes"),
        0,
        0,
        from_server,
        to_server,
        from_server / 4096,
        to_server / 4096,
    ]
}

/// The numbers of an `xprt: rdma` line: ten that every transport has, and then those of RDMA.
fn transport(connection: &Connection) -> [u64; 27] {
    let counters = &connection.counters;
    let bad = counters.violations.saturating_add(counters.rdma_errors);
    [
        0, // local port
        0, // bind count
        counters.connects,
        0, // connect time
        0, // idle time
        counters.sends,
        counters.receives,
        counters.discards, // bad XIDs
        0,                 // req_u
        0,                 // bklog_u
        counters.read_chunks,
        counters.write_chunks,
        counters.reply_chunks,
        counters.rdma_read_bytes,
        counters.rdma_write_bytes,
        0, // pullup copies
        0, // fixup copies
        0, // hardway registrations
        0, // failed marshals
        bad,
        counters.position_zero_chunks,
        0, // MRs recycled
        0, // MRs orphaned
        counters.registrations,
        counters
            .local_invalidations
            .saturating_sub(counters.remote_invalidations),
        0, // empty sendctx queue
        0, // reply waits for send
    ]
}

#[cfg(test)]
mod tests {
    use super::super::document::{ConnectionCounters, Procedure, ServerLimits};
    use super::*;

    #[test]
    fn an_entry_as_linux_prints_it() {
        let document = Document {
            source: "srv:/a b".into(),
            directory: "/mnt".into(),
            options: "rw,vers=3".into(),
            age_ns: 61_999_999_999,
            server: ServerLimits {
                wtmult: 4096,
                dtpref: 8192,
                name_max: 255,
            },
            cache: [("read_bytes".to_owned(), 5), ("write_bytes".to_owned(), 6)].into(),
            procedures: vec![Procedure {
                name: "GETATTR".into(),
                calls: 3,
                errors: 1,
                retransmits: 2,
                bytes_sent: 300,
                bytes_received: 336,
                total_ns: 9_000_000,
                queue_ns: 2_000_000,
                round_trip_ns: 7_000_000,
                ..Procedure::default()
            }],
            connections: vec![Connection {
                counters: ConnectionCounters {
                    connects: 1,
                    sends: 3,
                    receives: 4,
                    local_invalidations: 9,
                    remote_invalidations: 2,
                    registrations: 8,
                    rdma_read_bytes: 10,
                    rdma_write_bytes: 11,
                    ..ConnectionCounters::default()
                },
                ..Connection::default()
            }],
            ..Document::default()
        };
        assert_eq!(
            render(&document),
            "device srv:/a\\040b mounted on /mnt with fstype nfs statvers=1.1\n\
             \topts:\trw,vers=3\n\
             \tage:\t61\n\
             \tcaps:\tcaps=0x0,wtmult=4096,dtsize=8192,bsize=0,namlen=255\n\
             \tsec:\tflavor=1,pseudoflavor=1\n\
             \tevents:\t0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 \n\
             \tbytes:\t5 6 0 0 0 0 0 0 \n\
             \tRPC iostats version: 1.1  p/v: 100003/3 (nfs)\n\
             \txprt:\trdma 0 0 1 0 0 3 4 0 0 0 0 0 0 10 11 0 0 0 0 0 0 0 0 8 7 0 0\n\
             \tper-op statistics\n\
             \t     GETATTR: 3 5 0 300 336 2 7 9 1\n\n"
        );
    }
}
