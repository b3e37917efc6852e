//! `nfsrdma-bench` times workloads on several mounts of the same data, in turns within one
//! run, and prints a table or JSON. What was not measured is left blank.

mod bound;
mod data;
mod requester;
mod scale;
mod target;
mod wire;
mod workload;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use target::Target;
use workload::Workload;

#[derive(Parser, Debug)]
#[command(about = "Time mounts of one export against each other and against their ceilings")]
struct Arguments {
    /// The exported data, filled with what the workloads need.
    #[arg(long)]
    data: PathBuf,
    /// Where to mount the targets, one at a time.
    #[arg(long)]
    mounts: PathBuf,
    /// NAME=COMMAND: a command that mounts at `{dir}` and stays in the foreground.
    #[arg(long = "peer")]
    peers: Vec<String>,
    /// Which of the targets is the FUSE ceiling.
    #[arg(long, default_value = "ceiling")]
    ceiling: String,
    /// The target beside which the others' shares are shown, by rate and by CPU time.
    #[arg(long)]
    beside: Option<String>,
    /// SERVER:/EXPORT,PORT,MOUNTPORT: also time the requester without FUSE on this server.
    #[arg(long, value_parser = server)]
    requester: Option<requester::Server>,
    /// The server's process, whose CPU time is shown.
    #[arg(long)]
    server_pid: Option<u32>,
    /// Also time the exported data themselves.
    #[arg(long)]
    local: bool,
    /// Workloads to run, separated by commas (may be given several times; all otherwise).
    #[arg(
        long = "only",
        visible_alias = "workload",
        value_name = "ROW,ROW",
        value_delimiter = ','
    )]
    workloads: Vec<String>,
    /// Small sizes: a picture in minutes.
    #[arg(long)]
    quick: bool,
    /// Run the rows of users' programs in three sizes, a hundredth, a tenth and all of it.
    #[arg(long)]
    growth: bool,
    /// Rounds; the median is shown.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Only fill the exported data and end.
    #[arg(long)]
    prepare: bool,
}

fn server(text: &str) -> Result<requester::Server, String> {
    let wrong = || format!("SERVER:/EXPORT,PORT,MOUNTPORT is wanted, not `{text}`");
    let mut parts = text.rsplitn(3, ',');
    let mut port = || parts.next().and_then(|p| p.parse().ok()).ok_or_else(wrong);
    let (mountport, port) = (port()?, port()?);
    Ok(requester::Server {
        target: parts.next().ok_or_else(wrong)?.into(),
        port,
        mountport,
    })
}

/// One measured cell.
#[derive(Debug, Clone, Serialize)]
struct Cell {
    /// In the row's unit; the median of the rounds.
    value: f64,
    lowest: f64,
    highest: f64,
    /// CPU time the mounting process took, in seconds, in the median round.
    cpu_seconds: f64,
    /// Peak resident memory of the mounting process, in MiB.
    peak_mib: f64,
    /// CPU time for one operation or megabyte, the median of the rounds, in microseconds: of the
    /// mounting process, of the server (if its process is known), and of the program.
    client_us: f64,
    server_us: Option<f64>,
    program_us: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    workload: String,
    unit: &'static str,
    cells: BTreeMap<String, Cell>,
    /// What the ceilings of this run allow, in the row's unit, and the share to reach.
    bound: Option<f64>,
    target: Option<f64>,
    errors: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    quick: bool,
    rounds: usize,
    tcp_stream_mb_s: f64,
    tcp_ping_pong_4k_per_s: f64,
    tcp_ping_pong_small_per_s: f64,
    requester: Option<requester::Figures>,
    mount_ms: BTreeMap<String, f64>,
    rows: Vec<Row>,
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median of each figure.
fn middle(wires: &[bound::Wire]) -> bound::Wire {
    let of = |get: &dyn Fn(&bound::Wire) -> f64| {
        let mut values: Vec<f64> = wires.iter().map(get).collect();
        median(&mut values)
    };
    let requester = wires.iter().all(|w| w.requester.is_some()) && !wires.is_empty();
    let from = |get: &dyn Fn(&requester::Figures) -> f64| {
        of(&|w| w.requester.as_ref().map_or(f64::NAN, get))
    };
    bound::Wire {
        stream: of(&|w| w.stream),
        page_trips: of(&|w| w.page_trips),
        small_trips: of(&|w| w.small_trips),
        requester: requester.then(|| requester::Figures {
            read_1m_mb_s: from(&|f| f.read_1m_mb_s),
            write_1m_mb_s: from(&|f| f.write_1m_mb_s),
            read_4k_d1_per_s: from(&|f| f.read_4k_d1_per_s),
            read_4k_d32_per_s: from(&|f| f.read_4k_d32_per_s),
            getattr_per_s: from(&|f| f.getattr_per_s),
        }),
    }
}

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .map_or("unknown CPU", |l| l.trim_start_matches(['\t', ' ', ':']));
    let count = std::thread::available_parallelism().map_or(0, |n| n.get());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{count} x {model}, Linux {}", kernel.trim())
}

/// What a row did in a round.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// In the row's unit.
    rate: f64,
    /// Operations or megabytes.
    amount: f64,
    used: target::Usage,
}

type Samples = BTreeMap<(usize, usize), Vec<Sample>>;

/// What is mounted, in turns.
fn targets(arguments: &Arguments) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for peer in &arguments.peers {
        let (name, command) = peer
            .split_once('=')
            .with_context(|| format!("--peer takes NAME=COMMAND, not `{peer}`"))?;
        targets.push(Target {
            name: name.into(),
            command: Some(command.into()),
        });
    }
    if arguments.local {
        targets.push(Target {
            name: "local".into(),
            command: None,
        });
    }
    Ok(targets)
}

/// The wanted rows, by their numbers. A warm row belongs to the cold one before it, on the same
/// mount.
fn groups(all: &[Workload], names: &[String]) -> Result<Vec<Vec<usize>>> {
    if let Some(name) = names.iter().find(|name| !all.iter().any(|w| w.is(name))) {
        let known: Vec<_> = all.iter().map(|w| w.name.as_str()).collect();
        bail!(
            "no workload is called `{name}`; there are {}",
            known.join(", ")
        );
    }
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (n, workload) in all.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if !workload.cold => group.push(n),
            _ => groups.push(vec![n]),
        }
    }
    let wanted = |w: &Workload| names.is_empty() || names.iter().any(|n| w.is(n));
    groups.retain(|group| group.iter().any(|&n| wanted(&all[n])));
    Ok(groups)
}

/// A run: what is measured, and what was.
struct Bench {
    arguments: Arguments,
    scale: scale::Scale,
    all: Vec<Workload>,
    targets: Vec<Target>,
    samples: Samples,
    errors: BTreeMap<(usize, usize), String>,
    mounting: BTreeMap<String, Vec<f64>>,
}

impl Bench {
    /// What the network between two sockets of this machine gives, and the requester alone.
    fn wire(&self) -> Result<bound::Wire> {
        let scale = &self.scale;
        let requester = match &self.arguments.requester {
            Some(server) => {
                let figures = requester::measure(server, scale.large, scale.reads);
                Some(figures.context("the requester without FUSE")?)
            }
            None => None,
        };
        Ok(bound::Wire {
            stream: wire::stream(scale.large)?,
            page_trips: wire::ping_pong(200, 4300, scale.reads as u64)?,
            small_trips: wire::ping_pong(200, 200, scale.reads as u64)?,
            requester,
        })
    }

    /// Runs the rows of a group on a fresh mount of the target `t`.
    fn measure(&mut self, round: usize, group: &[usize], t: usize) {
        let target = &self.targets[t];
        let point = self
            .arguments
            .mounts
            .join(format!("{}-{round}-{}", target.name, group[0]));
        let mounted = match target.mount(&point, &self.arguments.data) {
            Ok(mounted) => mounted,
            Err(error) => {
                self.errors.insert((group[0], t), format!("{error:#}"));
                return;
            }
        };
        // The ceiling fills its memory first.
        if target.command.is_some() && target.name != self.arguments.ceiling {
            let times = self.mounting.entry(target.name.clone()).or_default();
            times.push(mounted.mount_time.as_secs_f64() * 1e3);
        }
        for &n in group {
            match self.sample(n, &mounted) {
                Ok(sample) => self.samples.entry((n, t)).or_default().push(sample),
                Err(error) => {
                    self.errors.insert((n, t), format!("{error:#}"));
                    break;
                }
            }
        }
        drop(mounted);
        let _ = std::fs::remove_dir(&point);
        let _ = std::fs::remove_file(point.with_extension("log"));
    }

    /// Runs a row.
    fn sample(&self, n: usize, mounted: &target::Mounted) -> Result<Sample> {
        let cpu = || {
            let server = self.arguments.server_pid.map_or(0.0, target::cpu_seconds);
            (server, target::own_cpu_seconds())
        };
        let (before, cpu_before) = (mounted.usage(), cpu());
        let done = (self.all[n].run)(&mounted.dir, &self.scale)?;
        let amount = match self.all[n].unit {
            workload::Unit::MegabytesPerSecond => done.amount as f64 / 1e6,
            workload::Unit::PerSecond => done.amount as f64,
        };
        let mut used = mounted.usage();
        used.cpu_seconds -= before.cpu_seconds;
        let cpu_after = cpu();
        used.server_seconds = cpu_after.0 - cpu_before.0;
        used.program_seconds = cpu_after.1 - cpu_before.1;
        Ok(Sample {
            rate: amount / done.seconds,
            amount,
            used,
        })
    }

    /// The samples of a row on one target, in a cell.
    fn cell(&self, list: &[Sample]) -> Cell {
        let mut values: Vec<f64> = list.iter().map(|s| s.rate).collect();
        let value = median(&mut values);
        let used = list
            .iter()
            .find(|s| s.rate == value)
            .map_or(target::Usage::default(), |s| s.used);
        let each = |of: fn(&target::Usage) -> f64| {
            let mut values: Vec<f64> = list.iter().map(|s| of(&s.used) * 1e6 / s.amount).collect();
            median(&mut values)
        };
        Cell {
            value,
            lowest: values[0],
            highest: values[values.len() - 1],
            cpu_seconds: used.cpu_seconds,
            peak_mib: used.peak_bytes as f64 / f64::from(1 << 20),
            client_us: each(|used| used.cpu_seconds),
            server_us: (self.arguments.server_pid).map(|_| each(|used| used.server_seconds)),
            program_us: each(|used| used.program_seconds),
        }
    }

    fn row(&self, n: usize, wire: &bound::Wire) -> Row {
        let workload = &self.all[n];
        let mut row = Row {
            workload: workload.name.clone(),
            unit: workload.unit.name(),
            cells: BTreeMap::new(),
            bound: None,
            target: None,
            errors: BTreeMap::new(),
        };
        for (t, target) in self.targets.iter().enumerate() {
            if let Some(error) = self.errors.get(&(n, t)) {
                row.errors.insert(target.name.clone(), error.clone());
            }
            if let Some(list) = self.samples.get(&(n, t)) {
                row.cells.insert(target.name.clone(), self.cell(list));
            }
        }
        let fuse = row
            .cells
            .get(&self.arguments.ceiling)
            .map(|cell| cell.value);
        if let Some((bound, target)) = workload.bound.value(fuse, wire) {
            (row.bound, row.target) = (Some(bound), Some(target));
        }
        row
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let scale = match arguments.quick {
        true => scale::Scale::QUICK,
        false => scale::Scale::FULL,
    };
    data::prepare(&arguments.data, &scale).context("preparing the data")?;
    if arguments.prepare {
        return Ok(());
    }
    let all = workload::all(arguments.growth);
    let groups = groups(&all, &arguments.workloads)?;
    let targets = targets(&arguments)?;
    let (rounds, json) = (arguments.rounds, arguments.json);
    let mut bench = Bench {
        arguments,
        scale,
        all,
        targets,
        samples: Samples::new(),
        errors: BTreeMap::new(),
        mounting: BTreeMap::new(),
    };
    let mut wires: Vec<bound::Wire> = Vec::new();
    for round in 0..rounds {
        wires.push(bench.wire()?);
        for group in &groups {
            for t in 0..bench.targets.len() {
                bench.measure(round, group, t);
            }
        }
        if !json {
            eprintln!("round {} of {rounds} done", round + 1);
        }
    }
    let wire = middle(&wires);
    let mounting = std::mem::take(&mut bench.mounting).into_iter();
    let report = Report {
        machine: machine(),
        quick: bench.arguments.quick,
        rounds,
        tcp_stream_mb_s: wire.stream,
        tcp_ping_pong_4k_per_s: wire.page_trips,
        tcp_ping_pong_small_per_s: wire.small_trips,
        rows: groups
            .iter()
            .flatten()
            .map(|&n| bench.row(n, &wire))
            .collect(),
        requester: wire.requester,
        mount_ms: mounting.map(|(k, mut v)| (k, median(&mut v))).collect(),
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print_table(&report, &bench.targets);
        if let Some(name) = &bench.arguments.beside {
            print_shares(&report, &bench.targets, name);
        }
    }
    Ok(())
}

/// What the targets reach of the rate of the target `name`, and of its work for the CPU time of mounting process and
/// server.
fn print_shares(report: &Report, targets: &[Target], name: &str) {
    let others = || targets.iter().filter(|target| target.name != name);
    print!("\n| {:<18} |", format!("beside {name}"));
    others().for_each(|target| print!(" {:>16} |", target.name));
    print!("\n| {:-<18} |", "");
    others().for_each(|_| print!(" {:->15}: |", ""));
    println!();
    for row in &report.rows {
        let Some(base) = row.cells.get(name) else {
            continue;
        };
        let cpu = |cell: &Cell| cell.client_us + cell.server_us.unwrap_or(0.0);
        print!("| {:<18} |", row.workload);
        for target in others() {
            let shares = row.cells.get(&target.name).map_or(String::new(), |cell| {
                let (rate, work) = (cell.value / base.value, cpu(base) / cpu(cell));
                format!("{rate:.2}, CPU {work:.2}")
            });
            print!(" {shares:>16} |");
        }
        println!();
    }
}

fn print_table(report: &Report, targets: &[Target]) {
    println!(
        "{}{}",
        report.machine,
        if report.quick { ", quick" } else { "" }
    );
    println!(
        "TCP over loopback: {:.0} MB/s; {:.0} round trips/s with 4 KiB back, {:.0} with 200 bytes back",
        report.tcp_stream_mb_s, report.tcp_ping_pong_4k_per_s, report.tcp_ping_pong_small_per_s
    );
    if let Some(f) = &report.requester {
        println!(
            "Requester without FUSE: READ 1 MiB {:.0} MB/s, WRITE 1 MiB {:.0} MB/s, READ 4 KiB {:.0}/s at depth 1 and {:.0}/s at depth 32, GETATTR {:.0}/s",
            f.read_1m_mb_s,
            f.write_1m_mb_s,
            f.read_4k_d1_per_s,
            f.read_4k_d32_per_s,
            f.getattr_per_s
        );
    }
    for (name, ms) in &report.mount_ms {
        println!("mounting {name}: {ms:.0} ms");
    }
    print!("\n| {:<18} | {:<4} |", "workload", "");
    for target in targets {
        print!(" {:>24} |", target.name);
    }
    print!(" {:>8} | {:>19} |", "bound", "share of it (target)");
    print!("\n| {:-<18} | {:-<4} |", "", "");
    for _ in targets {
        print!(" {:->24} |", "");
    }
    println!(" {:->8} | {:->19} |", "", "");
    for row in &report.rows {
        print!("| {:<18} | {:<4} |", row.workload, row.unit);
        for target in targets {
            let cell = match row.cells.get(&target.name) {
                Some(c) if target.command.is_some() => {
                    let server = c.server_us.map_or("-".into(), |us| format!("{us:.0}"));
                    format!(
                        "{:.0} {:.0}+{server}+{:.0} {:.0}M",
                        c.value, c.client_us, c.program_us, c.peak_mib
                    )
                }
                Some(c) => format!("{:.0}", c.value),
                None => String::new(),
            };
            print!(" {cell:>24} |");
        }
        let own = targets.first().and_then(|t| row.cells.get(&t.name));
        match (row.bound, row.target, own) {
            (Some(bound), Some(target), Some(own)) => {
                let share = format!("{:.2} ({target:.2})", own.value / bound);
                println!(" {bound:>8.0} | {share:>19} |");
            }
            _ => println!(" {:>8} | {:>19} |", "", ""),
        }
    }
    for row in &report.rows {
        for (name, error) in &row.errors {
            println!("{} on {name}: {error}", row.workload);
        }
    }
    println!(
        "\nEach cell: figure; microseconds of CPU for one operation or MB, of the mounting process, the\nserver and the program; peak MiB of the mounting process. The bound is what\nthis run's ceilings allow the first target; the share of it that is the target stands in brackets."
    );
}
