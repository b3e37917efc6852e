//! The command `bench`: measures a mount, compares that with what the link and the server allow, and
//! says what limits it.
//!
//! [`through`] measures by system calls, [`wire`] makes the same calls to the server without the kernel and
//! FUSE, and [`verdict`] says what that means.

mod place;
mod report;
mod through;
mod timing;
mod verdict;
mod wire;

use crate::cli::BenchArgs;
use crate::commands::server::runtime;
use crate::failure::{Exit, Failure};
use crate::mounts::{self, Mount};
use crate::options::Options;
use crate::options::mount_source::MountSource;
use crate::path_mtu::path_mtu;
use crate::stats::Document;
use crate::stats::mount_list::{ANSWER_LIMIT, document};
use place::{Place, Stop, broken};
use report::{Report, Row};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;
use through::{Extent, Through};
use verdict::Measured;
use wire::Wire;

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let (dir, mount) = mounts::containing(&args.dir)?;
    let served = document(&mount, ANSWER_LIMIT).map_err(|why| {
        let dir = mount.dir.display();
        Failure::failed(format!("cannot ask the process that serves {dir}: {why}"))
    })?;
    let stop = Stop::on_signals().map_err(Failure::no_threads)?;
    let extent = match args.quick {
        true => Extent::QUICK,
        false => Extent::FULL,
    };
    let begun = Instant::now();
    let place = Place::make(&dir)?;
    let measured = measure(&place, &mount, &served, extent, &stop);
    let removed = place.remove();
    let (through, wire) = measured?;
    removed?;
    if stop.is_asked() {
        let message = "the measurement was interrupted by a signal; what it made is removed";
        return Err(Failure::new(Exit::Interrupted, message));
    }
    report_of(&mount, &served, &through, &wire, begun).print(args.json)
}

fn measure(
    place: &Place,
    mount: &Mount,
    served: &Document,
    extent: Extent,
    stop: &Stop,
) -> Result<(Through, Wire), Failure> {
    let mut through = Through::default();
    through::large(place, extent, stop, &mut through)
        .and_then(|()| through::small(place, extent, stop, &mut through))
        .map_err(|error| broken(&place.dir, &error))?;
    let mut wire = Wire::default();
    if !stop.is_asked() {
        let spec = MountSource::parse(&mount.source)?;
        let options = Options::parse(&served.options)?;
        let below = place.dir.strip_prefix(&mount.dir).unwrap_or(Path::new(""));
        let wired = wire::measure(&spec, &options, below, extent, stop);
        wire = runtime()?.block_on(wired)?;
    }
    Ok((through, wire))
}

/// The address of the server, of a connection that is up.
fn server(served: &Document) -> Option<SocketAddr> {
    let peers = served.connections.iter();
    peers
        .filter_map(|connection| connection.peer.as_ref())
        .find_map(|peer| peer.parse().ok())
}

fn report_of(
    mount: &Mount,
    served: &Document,
    through: &Through,
    wire: &Wire,
    begun: Instant,
) -> Report {
    let rows = rows(through, wire);
    let share = |name: &str| {
        let row = rows.iter().find(|row| row.name == name);
        row.and_then(|row| row.share).unwrap_or(1.0)
    };
    let median = |times: &timing::Times| times.percentiles().map_or(0.0, |of| of.p50_us);
    let measured = Measured {
        credits: wire.credits,
        // The frames of RDMA devices are another matter (`nfsrdma doctor`).
        packet: server(served)
            .filter(|_| wire.provider == "iwarp")
            .and_then(|server| path_mtu(server.ip())),
        null_us: median(&wire.null),
        read_us: median(&wire.read_4k),
        stable_us: median(&wire.sync_4k).max(median(&wire.commit_4k)),
        read_share: share(report::READ),
        write_share: share(report::WRITE),
    };
    Report {
        mount: mount.dir.to_string_lossy().into_owned(),
        source: mount.source.to_string_lossy().into_owned(),
        version: served.version.clone(),
        link: wire.link.clone(),
        credits: wire.credits,
        seconds: begun.elapsed().as_secs_f64(),
        round_trip: wire.null.percentiles(),
        rows,
        causes: verdict::causes(&measured),
    }
}

fn rows(through: &Through, wire: &Wire) -> Vec<Row> {
    let mean = |times: &timing::Times| times.percentiles().map(|of| of.mean_us);
    let rate = |micros: Option<f64>| micros.map(|micros| 1e6 / micros);
    let stable = mean(&wire.sync_4k);
    let create = mean(&wire.create)
        .zip(stable)
        .map(|(create, write)| create + write);
    vec![
        Row::large(report::WRITE, through.write_mb_s, wire.write_mb_s),
        Row::large(report::READ, through.read_mb_s, wire.read_mb_s),
        Row::single("read 4 KiB", &through.read_4k, rate(mean(&wire.read_4k))),
        Row::single("write 4 KiB, fsync", &through.sync_4k, rate(stable)),
        Row::single("create 4 KiB", &through.create, rate(create)),
        Row::single("open, close", &through.open, rate(mean(&wire.getattr))),
        Row::rate("list, stat", through.list_per_s),
        Row::single("remove", &through.remove, rate(mean(&wire.remove))),
    ]
}
