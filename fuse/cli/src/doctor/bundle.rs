//! The archive for a bug report: a tar.gz of texts, which only its owner can read.

use super::report::Report;
use super::veil::Veil;
use crate::failure::{Exit, Failure};
use crate::mounts::{self, Mount};
use crate::options::mount_source::MountSource;
use crate::output::without_number;
use crate::stats::list;
use crate::stats::mount_list::{self, ListedMount, MountState};
use crate::user_file;
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::OFlags;
use std::fmt::Write as _;
use std::fs::{File, read_dir, read_to_string};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;
use tar::{Builder, Header};

/// The directory in the archive.
const FOLDER: &str = "nfsrdma-doctor";
/// Modules of the kernel that matter for a mount.
const MODULES: [&str; 12] = [
    "fuse", "ib_", "rdma", "iw_", "mlx", "bnxt", "irdma", "qedr", "siw", "sunrpc", "nfs", "lockd",
];
/// Lines of the log.
const LOG_LINES: &str = "2000";

const README: &str = "\
What 'nfsrdma doctor --bundle' found, for a bug report.

checks.txt, checks.json   the checks
stats.json                the statistics of all mounts of this program
system.txt                the system, limits, modules, RDMA devices, mounts of this program
log.txt                   the last lines of the log (only with --names)

It has no keys and no data of files. Without --names, hosts, addresses and paths are replaced by
words with a number, the same one each time. Read it before you send it.
";

/// Writes the archive to `path`, which must not exist. `spec` is what was examined.
pub(super) fn write(
    path: &Path,
    report: &Report,
    spec: Option<&MountSource>,
    with_names: bool,
) -> Result<(), Failure> {
    let broken = |error: io::Error| {
        Failure::new(
            Exit::System,
            format!(
                "cannot write {}: {}; choose another place, or make room there",
                path.display(),
                without_number(&error)
            ),
        )
    };
    let found = mount_list::all().unwrap_or_default();
    let mut veil = veil(&found);
    if let Some(spec) = spec {
        hide(&mut veil, spec);
    }
    let mut texts = vec![
        ("README.txt", README.to_owned()),
        ("checks.txt", report.text()),
        ("checks.json", report.document()?),
        ("stats.json", statistics(&found)),
        ("system.txt", system()),
    ];
    if with_names {
        texts.push(("log.txt", log()));
    } else {
        for (_, text) in texts.iter_mut().skip(1) {
            *text = veil.text(text);
        }
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = user_file::open(path, flags, 0o600.into()).map_err(broken)?;
    archive(file, &texts).map_err(broken)
}

fn archive(file: File, texts: &[(&str, String)]) -> io::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut archive = Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, text) in texts {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now.as_ref().map_or(0, |now| now.as_secs()));
        archive.append_data(&mut header, format!("{FOLDER}/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.sync_all()
}

fn hide(veil: &mut Veil, source: &MountSource) {
    veil.hide("host", &source.host);
    veil.hide("path", &String::from_utf8_lossy(&source.export));
}

/// Hides the hosts and paths of this machine's mounts, and this machine's name.
fn veil(found: &[ListedMount]) -> Veil {
    let mut veil = Veil::default();
    let machine = read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    veil.hide("host", machine.trim());
    for mount in found {
        if let Ok(source) = MountSource::parse(mount.source.as_ref()) {
            hide(&mut veil, &source);
        }
        veil.hide("path", &mount.directory);
        if let MountState::Answers(document) = &mount.state {
            let options = document.options.split(',');
            for host in options.filter_map(|option| option.strip_prefix("mounthost=")) {
                veil.hide("host", host);
            }
        }
    }
    veil
}

fn statistics(found: &[ListedMount]) -> String {
    let entries: Vec<_> = found.iter().map(list::entry).collect();
    let text = serde_json::to_string_pretty(&entries);
    text.unwrap_or_else(|error| error.to_string()) + "\n"
}

/// What this system is, as far as it matters.
fn system() -> String {
    let mut text = String::new();
    let mut section = |title: &str, content: &str| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "== {title}\n{}\n", content.trim_end());
    };
    let read = |path: &str| read_to_string(path).unwrap_or_else(|error| without_number(&error));
    section("program", env!("CARGO_PKG_VERSION"));
    section("kernel", &read("/proc/sys/kernel/osrelease"));
    section("system", &read("/etc/os-release"));
    section("limits", &read("/proc/self/limits"));
    let modules = read("/proc/modules");
    let names = modules.lines().filter_map(|line| line.split(' ').next());
    let ours = names.filter(|name| MODULES.iter().any(|known| name.starts_with(known)));
    section("modules", &ours.collect::<Vec<_>>().join("\n"));
    section("RDMA devices", &devices());
    let lines = mounts::ours().unwrap_or_default();
    let lines: Vec<_> = lines.iter().map(mount_line).collect();
    section("mounts", &lines.join("\n"));
    text
}

fn mount_line(mount: &Mount) -> String {
    let source = mount.source.to_string_lossy();
    format!("{source} {} {}", mount.dir.display(), mount.flags)
}

/// What the kernel shows of RDMA devices; GUIDs and GIDs, which identify machines, are left out.
fn devices() -> String {
    let root = Path::new("/sys/class/infiniband");
    let mut lines = Vec::new();
    let names = |dir: &Path| {
        let entries = read_dir(dir).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.path()).collect();
        names.sort();
        names
    };
    for device in names(root) {
        for port in names(&device.join("ports")) {
            let shown = port.strip_prefix(root).unwrap_or(&port).display();
            for what in ["state", "phys_state", "link_layer", "rate"] {
                let value = read_to_string(port.join(what)).unwrap_or_default();
                lines.push(format!("{shown} {what} {}", value.trim()));
            }
        }
    }
    lines.join("\n")
}

/// The last lines of the log, if journalctl has one.
fn log() -> String {
    let output = Command::new("journalctl")
        .args([
            "-t",
            "nfsrdma",
            "-n",
            LOG_LINES,
            "--no-pager",
            "-o",
            "short-iso",
        ])
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => format!("journalctl: {}\n", without_number(&error)),
    }
}
