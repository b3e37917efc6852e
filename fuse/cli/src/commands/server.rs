//! The commands `exports` and `ping`, which ask a server without mounting.

use crate::cli::ServerArgs;
use crate::failure::{Exit, Failure};
use crate::mount::log::Log;
use crate::mount::{privileges, provider, settings};
use crate::options::mount_source::MountSource;
use crate::options::{LocalLock, Options};
use crate::output::{self, Reader};
use nfsrdma_nfs3::mount::{self, Exported, PingEvent, PingTarget, Step, Taken};
use nfsrdma_rdma::Pool;
use std::ffi::OsString;
use tokio::runtime::Runtime;

/// Size of the buffer pool, for the messages of one connection.
pub(crate) const POOL: usize = 32 << 20;

/// Parses a server with or without an export.
pub(crate) fn target(server: &OsString) -> Result<MountSource, Failure> {
    let error = match MountSource::parse(server) {
        Ok(spec) => return Ok(spec),
        Err(error) => error,
    };
    // There is no export: add one for the parser, and remove it again.
    let bare = server.to_string_lossy();
    let bare = bare.strip_suffix('/').unwrap_or(&bare);
    let bare = bare.strip_suffix(':').unwrap_or(bare);
    let host = match bare.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => host,
        _ => bare,
    };
    let address = bare.split('%').next().unwrap_or_default();
    let text = match (address.parse::<std::net::Ipv6Addr>(), bare.contains("://")) {
        (Ok(_), _) => format!("[{bare}]:/"),
        (_, true) => format!("{bare}/"),
        // What has more than a host was meant to name an export: its fault is what is to be told.
        _ if host.is_empty() || (host.contains([':', '/']) && !host.ends_with(']')) => {
            return Err(error.into());
        }
        _ => format!("{bare}:/"),
    };
    let mut spec = MountSource::parse(text.as_ref())?;
    spec.export.clear();
    Ok(spec)
}

pub(crate) fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::System, format!("cannot start threads: {error}")))
}

fn prepare(args: &ServerArgs) -> Result<(MountSource, Options), Failure> {
    Log::install(
        args.verbose > 0,
        args.verbose,
        None,
        &args.server.to_string_lossy(),
    )?;
    let spec = target(&args.server)?;
    let options = Options::parse_with_port(&args.options, spec.port)?;
    Ok((spec, options))
}

/// Prints a line for each export: the path, and who may mount it.
pub(crate) fn exports(args: &ServerArgs) -> Result<(), Failure> {
    let (spec, options) = prepare(args)?;
    let client = settings::client(&options);
    let host = settings::target(&spec).host;
    let exports = runtime()?.block_on(mount::exports(&host, &client))?;
    for line in lines(&exports) {
        if output::result(&line)? == Reader::Gone {
            break;
        }
    }
    Ok(())
}

/// Each export with who may mount it. The texts are the server's, and a terminal obeys none.
fn lines(exports: &[Exported]) -> Vec<String> {
    let text = |bytes: &[u8]| output::plain(&String::from_utf8_lossy(bytes));
    let line = |export: &Exported| {
        let groups: Vec<_> = export.groups.iter().map(|group| text(group)).collect();
        let who = match groups.is_empty() {
            true => "everybody".to_owned(),
            false => groups.join(","),
        };
        (text(&export.path), who)
    };
    let all: Vec<(String, String)> = exports.iter().map(line).collect();
    let width = all.iter().map(|(path, _)| path.chars().count()).max();
    let width = width.unwrap_or(0);
    all.iter()
        .map(|(path, who)| format!("{path:<width$}  {who}\n"))
        .collect()
}

pub(crate) fn name(step: Step) -> &'static str {
    match step {
        Step::Options => "options",
        Step::Resolve | Step::Name => "resolve",
        Step::Rpcbind => "rpcbind",
        Step::Mount => "mountd",
        Step::Export => "export",
        Step::Connect => "connect",
        Step::PrivateData => "private data",
        Step::Null => "null",
        Step::Context => "kerberos",
        Step::Fsinfo => "fsinfo",
        Step::Acl => "acl",
        Step::Locks => "locks",
    }
}

/// Prints a line for each step: its name, its time, and what was found.
pub(crate) fn ping(args: &ServerArgs) -> Result<(), Failure> {
    let (spec, options) = prepare(args)?;
    if options.has_kerberos() {
        // It has the keys of a context of root's.
        privileges::leave_no_core();
    }
    let runtime = runtime()?;
    let host = settings::target(&spec).host;
    let client = settings::client_with(&options, &host, runtime.handle());
    let pool = Pool::new(POOL).map_err(|e| Failure::new(Exit::System, e.to_string()))?;
    // A closed pipe (`| head`) does not end the ping, because its exit status is a result, too.
    let mut unwritten = None;
    let report = |event: PingEvent| {
        let line = match event {
            PingEvent::Taken(Taken { step, time, found }) => {
                let ms = time.as_secs_f64() * 1e3;
                format!("{:<12} {ms:>8.2} ms  {found}\n", name(step))
            }
            PingEvent::Failed { address, error } => {
                format!(
                    "{:<12}   failed     {address}: {error}; trying the next address\n",
                    name(error.step)
                )
            }
        };
        if let Err(failure) = output::result(&line) {
            unwritten.get_or_insert(failure);
        }
    };
    let target = PingTarget {
        host: &host,
        locks: (options.wanted_local_lock() != LocalLock::All).then_some(options.lock_port),
        export: (!spec.export.is_empty()).then_some(spec.export.as_slice()),
    };
    let chosen = provider::choose(&options, &host)?;
    let provider = chosen.provider.clone();
    runtime
        .block_on(mount::ping(target, &client, provider, pool, report))
        .map_err(|error| {
            let step = name(error.step);
            let mut failure = chosen.failed(error);
            failure.message = format!("{step}: {}", failure.message);
            failure
        })?;
    unwritten.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_with_and_without_a_path() {
        let parse = |text: &str| {
            let spec = target(&OsString::from(text)).unwrap();
            (
                spec.host,
                String::from_utf8(spec.export).unwrap(),
                spec.port,
            )
        };
        let wanted = |host: &str, export: &str, port| (host.into(), export.into(), port);
        assert_eq!(parse("srv"), wanted("srv", "", None));
        assert_eq!(parse("srv:"), wanted("srv", "", None));
        assert_eq!(parse("10.0.0.1"), wanted("10.0.0.1", "", None));
        assert_eq!(parse("srv:/x"), wanted("srv", "/x", None));
        assert_eq!(parse("::1"), wanted("::1", "", None));
        assert_eq!(parse("[::1]"), wanted("::1", "", None));
        assert_eq!(parse("fe80::1%lo"), wanted("fe80::1%lo", "", None));
        assert_eq!(parse("nfs://srv:77"), wanted("srv", "", Some(77)));
        assert_eq!(parse("nfs://srv/"), wanted("srv", "/", None));
        assert!(target(&OsString::from("a b")).is_err());
    }

    fn exported(path: &[u8], groups: &[&[u8]]) -> Exported {
        Exported {
            path: path.to_vec(),
            groups: groups.iter().map(|group| group.to_vec()).collect(),
        }
    }

    #[test]
    fn exports_are_shown_in_columns() {
        let exports = [
            exported(b"/srv/a", &[]),
            exported("/b\u{fc}cher".as_bytes(), &[b"10.0.0.0/8", b"*.example"]),
        ];
        assert_eq!(
            lines(&exports),
            [
                "/srv/a   everybody\n",
                "/b\u{fc}cher  10.0.0.0/8,*.example\n"
            ]
        );
    }

    #[test]
    fn what_a_server_exports_commands_no_terminal() {
        let exports = [exported(
            b"/a\n/b\x1b[2J\xff",
            &[b"host\r\n/forged  everybody", b"\x1b]0;title\x07"],
        )];
        let shown = lines(&exports).concat();
        assert_eq!(shown.matches(char::is_control).collect::<Vec<_>>(), ["\n"]);
        assert!(
            shown.starts_with("/a?/b?[2J\u{fffd}  host??/forged"),
            "{shown}"
        );
    }
}
