//! What a mount needs of this machine: FUSE, descriptors, and RDMA devices with what they need.

use super::report::{Finding, Verdict};
use crate::mount::daemon::{FEWEST_DESCRIPTORS, FEWEST_KEPT};
use crate::mount::fuse_mount::{DEVICE, open_device};
use crate::options::{Options, Restart, Transport};
use nfsrdma_rpcrdma::words::counted;
use rustix::process::{Resource, geteuid, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs;
use std::path::Path;

/// Where the kernel shows RDMA devices, and where their files are.
const DEVICES: &str = "/sys/class/infiniband";
const FILES: &str = "/dev/infiniband";
/// Locked memory of a connection in addition to the cache, in bytes.
const MESSAGES: u64 = 64 << 20;

/// Whether FUSE can be used.
pub(super) fn fuse() -> Finding {
    const CHECK: &str = "fuse";
    if let Err(failure) = open_device(Path::new(DEVICE)) {
        return Finding::told(CHECK, Verdict::Fail, &failure.message);
    }
    let kernel = word(Path::new("/proc/sys/kernel/osrelease"));
    if version(&kernel).is_some_and(|version| version < (5, 10)) {
        return Finding::fail(
            CHECK,
            format!("this is Linux {kernel}"),
            "use Linux 5.10 or newer",
        );
    }
    if !geteuid().is_root() && !is_in_path("fusermount3") {
        return Finding::fail(
            CHECK,
            "fusermount3 is missing, which users mount by",
            "install the package fuse3, or mount as root",
        );
    }
    Finding::ok(CHECK, format!("{DEVICE} opens, Linux {kernel}"))
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Whether a mount may have the descriptors that it needs.
pub(super) fn descriptors(options: &Options) -> Finding {
    const CHECK: &str = "descriptors";
    let fewest = match options.restart {
        None | Some(Restart::No) => FEWEST_DESCRIPTORS,
        Some(Restart::Files | Restart::Data) => FEWEST_KEPT,
    };
    match getrlimit(Resource::Nofile).maximum {
        Some(most) if most < fewest => Finding::fail(
            CHECK,
            format!("{most} descriptors are allowed here, and a mount needs {fewest}"),
            "'ulimit -n 256', or LimitNOFILE= of the unit",
        ),
        Some(most) => Finding::ok(CHECK, format!("{most} are allowed")),
        None => Finding::ok(CHECK, "as many as wanted"),
    }
}

/// A port of an RDMA device.
#[derive(Debug, PartialEq, Eq)]
struct Port {
    /// `mlx5_0 port 1`
    name: String,
    /// `ACTIVE`, `DOWN`, ...
    state: String,
    /// `InfiniBand` or `Ethernet`.
    link: String,
    has_gid: bool,
    /// The smallest MTU of the network interfaces that belong to its GIDs, in bytes.
    mtu: Option<u32>,
}

fn entries(dir: &Path) -> Vec<std::path::PathBuf> {
    let found = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> = found.map(|entry| entry.path()).collect();
    found.sort();
    found
}

fn word(path: &Path) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn last_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The ports of all devices below `devices`, as the kernel shows them.
fn ports(devices: &Path) -> Vec<Port> {
    let mut found = Vec::new();
    for device in entries(devices) {
        for port in entries(&device.join("ports")) {
            let is_zero = |gid: &str| gid.chars().all(|c| matches!(c, '0' | ':'));
            let interfaces = entries(&port.join("gid_attrs/ndevs")).into_iter();
            let mtu = interfaces
                .map(|file| Path::new("/sys/class/net").join(word(&file)).join("mtu"))
                .filter_map(|file| word(&file).parse().ok())
                .min();
            found.push(Port {
                name: format!("{} port {}", last_name(&device), last_name(&port)),
                // "4: ACTIVE"
                state: word(&port.join("state"))
                    .rsplit(' ')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
                link: word(&port.join("link_layer")),
                has_gid: entries(&port.join("gids"))
                    .iter()
                    .any(|gid| !is_zero(&word(gid))),
                mtu,
            });
        }
    }
    found
}

/// Whether there are RDMA devices, their files, and a port that can be used.
pub(super) fn devices(options: &Options) -> Vec<Finding> {
    devices_at(options, Path::new(DEVICES), Path::new(FILES))
}

fn devices_at(options: &Options, devices: &Path, files: &Path) -> Vec<Finding> {
    const CHECK: &str = "devices";
    let names: Vec<String> = entries(devices)
        .iter()
        .map(|path| last_name(path))
        .collect();
    if options.transport == Transport::Iwarp {
        let why = "transport=iwarp is asked for, which needs no RDMA device";
        return vec![Finding::skip(CHECK, why)];
    }
    if names.is_empty() {
        return vec![match options.transport {
            Transport::Verbs => Finding::fail(
                CHECK,
                "there is no RDMA device on this machine",
                "load its driver, 'rdma link add rxe0 type rxe netdev eth0', or transport=iwarp",
            ),
            _ => Finding::ok(CHECK, "no RDMA device: iWARP in software over TCP is used"),
        }];
    }
    let shown = names.join(", ");
    let missing = |file: &str| !files.join(file).exists();
    let files_missing = missing("rdma_cm")
        || !entries(files)
            .iter()
            .any(|path| last_name(path).starts_with("uverbs"));
    if files_missing {
        return vec![Finding::warn(
            CHECK,
            format!("{shown} cannot be used: /dev/infiniband lacks rdma_cm or uverbs*"),
            "'modprobe -a rdma_ucm ib_uverbs'; in a container --device for each",
        )];
    }
    if !cfg!(feature = "verbs") {
        return vec![Finding::warn(
            CHECK,
            format!("{shown} cannot be used: this build has no verbs provider"),
            "use a build with the feature 'verbs'",
        )];
    }
    vec![Finding::ok(CHECK, shown)]
}

/// Whether ports are active, and have addresses and frames that NFS over RDMA can use.
pub(super) fn device_ports(options: &Options) -> Vec<Finding> {
    match options.transport {
        Transport::Iwarp => Vec::new(),
        _ => ports(Path::new(DEVICES)).iter().map(judged).collect(),
    }
}

fn judged(port: &Port) -> Finding {
    const CHECK: &str = "port";
    let name = &port.name;
    if port.state != "ACTIVE" {
        return Finding::warn(
            CHECK,
            format!("{name} is {}", port.state),
            "check the cable and its network interface with 'rdma link'; InfiniBand needs a subnet manager",
        );
    }
    if !port.has_gid {
        return Finding::warn(
            CHECK,
            format!("{name} has no GID, by which others address it"),
            "give its network interface an address, with 'ip address add'",
        );
    }
    let link = &port.link;
    match port.mtu {
        // A frame of RoCE carries a power of two of payload: at least 1,024 bytes fit into 1,500.
        Some(mtu) if mtu < 1500 => Finding::warn(
            CHECK,
            format!("{name} has frames of at most {mtu} bytes"),
            "'ip link set DEVICE mtu 4200', at both ends and between",
        ),
        Some(mtu) => Finding::ok(CHECK, format!("{name} ({link}) is active, MTU {mtu}")),
        None => Finding::ok(CHECK, format!("{name} ({link}) is active")),
    }
}

/// Whether an RDMA device may lock the memory that a mount needs.
pub(super) fn locked_memory(options: &Options) -> Finding {
    const CHECK: &str = "memlock";
    if options.transport == Transport::Iwarp || entries(Path::new(DEVICES)).is_empty() {
        return Finding::skip(CHECK, "iWARP in software locks no memory");
    }
    let may =
        |sets: rustix::thread::CapabilitySets| sets.effective.contains(CapabilitySet::IPC_LOCK);
    let needed = (options.cache + MESSAGES) * u64::from(options.connections());
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    match getrlimit(Resource::Memlock).maximum {
        _ if capabilities(None).is_ok_and(may) => Finding::ok(CHECK, "no limit for this user"),
        Some(most) if most < needed => Finding::warn(
            CHECK,
            format!(
                "{} may be locked, and {} take {}",
                mib(most),
                counted(options.connections(), "connection"),
                mib(needed)
            ),
            "'ulimit -l unlimited', LimitMEMLOCK=infinity, a smaller cache= or nconnect=",
        ),
        Some(most) => Finding::ok(CHECK, format!("{} may be locked", mib(most))),
        None => Finding::ok(CHECK, "no limit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_the_kernel() {
        assert_eq!(version("5.10.0-8-amd64"), Some((5, 10)));
        assert_eq!(version("6.1"), Some((6, 1)));
        assert_eq!(version("next"), None);
    }

    fn port(state: &str, has_gid: bool, mtu: Option<u32>) -> Port {
        Port {
            name: "rxe0 port 1".into(),
            state: state.into(),
            link: "Ethernet".into(),
            has_gid,
            mtu,
        }
    }

    #[test]
    fn ports_are_judged() {
        let verdict = |port: &Port| judged(port).verdict;
        assert_eq!(verdict(&port("ACTIVE", true, Some(1500))), Verdict::Ok);
        assert_eq!(verdict(&port("ACTIVE", true, None)), Verdict::Ok);
        for bad in [
            port("DOWN", true, None),
            port("ACTIVE", false, None),
            port("ACTIVE", true, Some(1000)),
        ] {
            assert_eq!(verdict(&bad), Verdict::Warn, "{bad:?}");
        }
    }
}
