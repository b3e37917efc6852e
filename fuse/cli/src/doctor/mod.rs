//! The command `doctor`: goes through what a mount needs, on this machine, on the way, and at the
//! server, and says what is wrong and what to do.
//!
//! [`machine`] looks at this machine, [`mounted`] at a mount, [`reach`] at the way to a server and
//! [`server`] at what it does with calls. Each check is one [`Finding`](report::Finding). [`bundle`]
//! puts them into an archive for a bug report, in which [`veil`] hides names.

mod bundle;
mod machine;
mod mounted;
mod patience;
mod reach;
mod report;
mod scratch;
mod server;
mod veil;

use crate::cli::DoctorArgs;
use crate::commands::server::{POOL, runtime, target};
use crate::failure::{Exit, Failure};
use crate::mount::{provider, settings};
use crate::mounts;
use crate::options::Options;
use crate::options::mount_source::MountSource;
use nfsrdma_nfs3::mount::Mounted;
use nfsrdma_rdma::Pool;
use report::{Finding, Report, Verdict};
use server::Server;
use std::path::Path;

/// The exit status of wrong usage, which is not that of a problem that was found.
pub(crate) const WRONG_USAGE: Exit = Exit::System;

/// What is examined besides this machine.
#[derive(Debug)]
struct Subject {
    spec: MountSource,
    options: Options,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let wrong = |failure: Failure| Failure {
        exit: WRONG_USAGE,
        ..failure
    };
    let name = |target: &std::ffi::OsString| target.to_string_lossy().into_owned();
    let mut report = Report::new(args.target.as_ref().map(name), args.json);
    let given = args.options.join(",");
    let plain = Options::parse(&given).map_err(|error| wrong(error.into()))?;
    let subject = match &args.target {
        None => None,
        // A path is a mount; what has neither a slash nor a colon is a server's name.
        Some(target) if is_path(target.as_ref()) => {
            let (_, mount) = mounts::find(Path::new(target)).map_err(wrong)?;
            let document = mounted::examine(&mount, &mut report);
            let spec = MountSource::parse(&mount.source).map_err(|error| wrong(error.into()))?;
            // Those of the mount come first: of two, the last one counts.
            let own = document
                .map(|document| document.options)
                .unwrap_or_default();
            let options = match given.is_empty() {
                true => Options::parse(&own).unwrap_or_else(|error| {
                    // As of a program of another version.
                    let why = format!("the mount's are not known here: {error}");
                    report.add(Finding::skip("options", why));
                    Options::default()
                }),
                false => plain.clone(),
            };
            Some(Subject { spec, options })
        }
        Some(server) => {
            let spec = target(server).map_err(wrong)?;
            let options = Options::parse_with_port(&given, spec.port);
            let options = options.map_err(|error| wrong(error.into()))?;
            Some(Subject { spec, options })
        }
    };
    let options = subject.as_ref().map_or(&plain, |subject| &subject.options);
    report.add(machine::fuse());
    report.add(machine::descriptors(options));
    for finding in machine::devices(options) {
        report.add(finding);
    }
    for finding in machine::device_ports(options) {
        report.add(finding);
    }
    report.add(machine::locked_memory(options));
    if args.target.is_none() {
        mounted::all(&mut report);
    }
    if let Some(subject) = &subject {
        runtime()?.block_on(examine(subject, args.write, &mut report))?;
    }
    if let Some(path) = &args.bundle {
        let spec = subject.as_ref().map(|subject| &subject.spec);
        bundle::write(path, &report, spec, args.names).map_err(wrong)?;
    }
    report.end()
}

/// Whether the argument means a mount, and not a server. The mount itself, which may hang, is not
/// touched.
fn is_path(target: &Path) -> bool {
    target.is_absolute()
        || target.starts_with(".")
        || target.starts_with("..")
        || mounts::resolve(target).is_ok()
}

async fn examine(subject: &Subject, write: bool, report: &mut Report) -> Result<(), Failure> {
    let Subject { spec, options } = subject;
    let pool = || Pool::new(POOL).map_err(|e| Failure::new(Exit::System, e.to_string()));
    if !reach::examine(spec, options, pool()?, report).await {
        return Ok(());
    }
    if spec.export.is_empty() {
        report.add(Finding::skip(
            "export",
            "give SERVER:/EXPORT to try what the server does with calls",
        ));
        return Ok(());
    }
    let pool = pool()?;
    match connect(subject, pool.clone()).await {
        Ok(mounted) => {
            Server::new(&mounted, pool).examine(write, report).await;
            mounted.unmount().await;
        }
        Err(failure) => report.add(Finding::told("mount", Verdict::Fail, &failure.message)),
    }
    Ok(())
}

/// Connects as a mount does.
async fn connect(subject: &Subject, pool: Pool) -> Result<Mounted, Failure> {
    let target = settings::target(&subject.spec);
    let chosen = provider::choose(&subject.options, &target.host)?;
    let mut client = settings::client(&subject.options);
    // The pool is for one connection.
    client.transport.nconnect = 1;
    nfsrdma_nfs3::connect(&target, &client, chosen.provider.clone(), pool)
        .await
        .map_err(|error| chosen.failed(error))
}
