use super::*;

fn run(line: &str) -> Command {
    parse(line.split(' ').map(OsString::from).collect()).expect(line)
}

fn refused(line: &str) -> String {
    parse(line.split(' ').map(OsString::from).collect())
        .expect_err(line)
        .to_string()
}

fn mount(options: &str, change: impl FnOnce(&mut MountArgs)) -> Command {
    let mut args = MountArgs {
        spec: "srv:/x".into(),
        dir: "/mnt".into(),
        options: options.into(),
        ..MountArgs::default()
    };
    change(&mut args);
    Command::Mount(args)
}

#[test]
fn clap_finds_nothing_wrong() {
    command().debug_assert();
    helper::check_commands();
}

#[test]
fn mounting() {
    assert_eq!(run("nfsrdma mount srv:/x /mnt"), mount("", |_| {}));
    assert_eq!(
        run("/usr/bin/nfsrdma mount srv:/x /mnt -o ro,soft -o nocrc -f -vv"),
        mount("ro,soft,nocrc", |args| {
            args.foreground = true;
            args.verbose = 2;
        })
    );
    assert_eq!(
        run("nfsrdma mount -r -s -n srv:/x /mnt --log /tmp/l"),
        mount("ro,sloppy", |args| args.log = Some("/tmp/l".into()))
    );
    // As mount.fuse(8) calls it.
    assert_eq!(
        run("nfsrdma srv:/x /mnt -o rw,nosuid"),
        mount("rw,nosuid", |_| {})
    );
}

#[test]
fn by_mount_8() {
    assert_eq!(
        run("/sbin/mount.nfsrdma srv:/x /mnt -v -o rw,noatime"),
        mount("rw,noatime", |args| args.verbose = 1)
    );
    assert_eq!(
        run("mount.fuse.nfsrdma srv:/x /mnt -sfn -t fuse.nfsrdma -o ro"),
        mount("ro,sloppy", |args| {
            args.fake = true;
            args.quiet = true;
        })
    );
    assert_eq!(
        run("mount.nfsrdma srv:/x /mnt -F -v"),
        mount("", |args| {
            args.foreground = true;
            args.verbose = 1;
        })
    );
    assert!(refused("mount.nfsrdma srv:/x /mnt -t nfs").contains("'mount -t nfs'"));
}

#[test]
fn unmounting() {
    let args = UnmountArgs {
        dir: "/mnt".into(),
        force: true,
        lazy: true,
        read_only: false,
        verbose: 0,
        namespace: None,
    };
    assert_eq!(
        run("nfsrdma umount /mnt -f -l"),
        Command::Unmount(args.clone())
    );
    assert_eq!(
        run("umount.nfsrdma /mnt -fl -n -t nfsrdma"),
        Command::Unmount(args.clone())
    );
    let namespace = Some("/proc/1/ns/mnt".into());
    assert_eq!(
        run("umount.nfsrdma /mnt -fl -N /proc/1/ns/mnt"),
        Command::Unmount(UnmountArgs {
            namespace,
            ..args.clone()
        })
    );
    assert_eq!(
        run("umount.nfsrdma /mnt -flr"),
        Command::Unmount(UnmountArgs {
            read_only: true,
            ..args
        })
    );
}

#[test]
fn servers() {
    let args = |options: &str| ServerArgs {
        server: "srv".into(),
        options: options.into(),
        verbose: 0,
    };
    assert_eq!(run("nfsrdma exports srv"), Command::Exports(args("")));
    assert_eq!(
        run("nfsrdma ping srv -o port=2"),
        Command::Ping(args("port=2"))
    );
}

#[test]
fn statistics() {
    let stats = |form, watch: Option<u64>| {
        Command::Stats(StatsArgs {
            dir: Some("/mnt".into()),
            form,
            verbose: false,
            watch: watch.map(Duration::from_secs),
        })
    };
    assert_eq!(run("nfsrdma stats /mnt"), stats(StatsForm::Text, None));
    assert_eq!(
        run("nfsrdma stats /mnt --json --watch"),
        stats(StatsForm::Json, Some(2))
    );
    assert_eq!(
        run("nfsrdma stats --mountstats /mnt --watch 5"),
        stats(StatsForm::Mountstats, Some(5))
    );
    assert_eq!(
        run("nfsrdma stats --prometheus /mnt"),
        stats(StatsForm::Prometheus, None)
    );
    assert!(refused("nfsrdma stats /mnt --json --prometheus").contains("cannot be used with"));
    assert!(refused("nfsrdma stats /mnt --watch 0").contains("at least 1"));
}

#[test]
fn all_mounts() {
    let all = StatsArgs::default();
    assert_eq!(run("nfsrdma stats"), Command::Stats(all));
    let top = TopArgs {
        users: false,
        dirs: vec!["/mnt".into()],
        intervals: Intervals {
            delay: 5,
            count: Some(3),
        },
        batch: true,
    };
    assert_eq!(run("nfsrdma top -b -n 3 -d 5 /mnt"), Command::Top(top));
    assert!(refused("nfsrdma top -d 0").contains("at least 1"));
    let metrics = MetricsArgs {
        listen: crate::options::MetricsAt::Tcp("127.0.0.1:9000".parse().unwrap()),
    };
    assert_eq!(
        run("nfsrdma metrics --listen 9000"),
        Command::Metrics(metrics)
    );
    assert!(refused("nfsrdma metrics").contains("--listen"));
    assert!(refused("nfsrdma metrics --listen nowhere").contains("'nowhere'"));
}

#[test]
fn levels() {
    assert_eq!(
        run("nfsrdma log /mnt debug"),
        Command::Log(LogArgs {
            dir: "/mnt".into(),
            level: Some("debug".into())
        })
    );
    assert_eq!(
        run("nfsrdma log /mnt"),
        Command::Log(LogArgs {
            dir: "/mnt".into(),
            level: None
        })
    );
    assert!(refused("nfsrdma log /mnt loud").contains("debug"));
}

#[test]
fn listening() {
    let trace = TraceArgs {
        dir: "/mnt".into(),
        json: false,
        procedure: vec![],
        errors: false,
        slow: 0,
        sent: false,
    };
    assert_eq!(run("nfsrdma trace /mnt"), Command::Trace(trace.clone()));
    assert_eq!(
        run("nfsrdma trace --json --procedure READ,write,OTHER --errors --slow 5 /mnt"),
        Command::Trace(TraceArgs {
            json: true,
            procedure: vec![6, 7, 22],
            errors: true,
            slow: 5,
            ..trace
        })
    );
    assert!(refused("nfsrdma trace /mnt --procedure REED").contains("'REED'"));
    let capture = CaptureArgs {
        dir: "/mnt".into(),
        file: "f".into(),
        snaplen: Some(128),
        seconds: Some(3),
        packets: Some(7),
        size: Some(2 << 20),
    };
    assert_eq!(
        run("nfsrdma capture /mnt f --snaplen 128 --seconds 3 --packets 7 --size 2M"),
        Command::Capture(capture)
    );
    assert!(refused("nfsrdma capture /mnt f --snaplen 3").contains("at least 64"));
}

#[test]
fn wrong_usage() {
    assert!(refused("nfsrdma mount srv:/x").contains("<DIR>"));
    assert!(refused("nfsrdma mount srv:/x /m -t nfs4").contains("'mount -t nfs4'"));
    assert!(refused("nfsrdma mount srv:/x /m -t ext4").contains("leave -t out"));
    assert!(refused("nfsrdma mount -o ro, soft srv:/x /m").contains("write -o ro,soft"));
    run("nfsrdma mount -t nfsrdma -o ro, -v srv:/x /m");
    assert!(refused("nfsrdma mont srv:/x /mnt").contains("'mount'"));
    assert!(refused("nfsrdma mount srv:/x /mnt -r -w").contains("cannot be used with"));
    assert!(refused("nfsrdma --version").contains(env!("CARGO_PKG_VERSION")));
}

/// Each error is one sentence that names the remedy.
#[test]
fn remedies() {
    let of_procedures = "invalid value 'REED' for '--procedure <NAMES>': \
                         no procedure of NFS version 3, NFS_ACL or NLM; did you mean 'READ'?";
    for (line, sentence) in [
        (
            "mont srv:/x /m",
            "unknown command 'mont'; did you mean 'mount'?",
        ),
        (
            "zork",
            "unknown command 'zork': use one of mount, umount, exports, ping, doctor, bench, stats, top, metrics, \
             log, trace, profile, capture, upgrade, fstab",
        ),
        (
            "umount /m /n",
            "one argument too many, '/n': write nfsrdma umount [OPTIONS] <DIR>",
        ),
        (
            "mount srv:/x",
            "<DIR> is missing: write nfsrdma mount <SERVER:/EXPORT> <DIR>",
        ),
        (
            "mount",
            "<SERVER:/EXPORT> and <DIR> are missing: write nfsrdma mount <SERVER:/EXPORT> <DIR>",
        ),
        (
            "umount --zork /m",
            "unknown option '--zork': leave it out; 'nfsrdma umount --help' lists what there is",
        ),
        (
            "--zork",
            "unknown option '--zork': leave it out; 'nfsrdma --help' lists what there is",
        ),
        (
            "stats --jsno",
            "unknown option '--jsno'; did you mean '--json'?",
        ),
        (
            "stats --json --prometheus",
            "'--json' cannot be used with '--prometheus': leave one of them out",
        ),
        (
            "stats --json --json",
            "'--json' was given twice: give it once",
        ),
        ("stats --json=1", "'--json' takes no value: leave out '=1'"),
        (
            "mount srv:/x /m --log",
            "'--log' needs a value: write --log <FILE>",
        ),
        ("umount ", "<DIR> is empty: write a path there"),
        (
            "log /m debgu",
            "invalid value 'debgu' for '[LEVEL]'; did you mean 'debug'?",
        ),
        (
            "log /m loud",
            "invalid value 'loud' for '[LEVEL]': use one of error, warn, info, debug, trace, default",
        ),
        (
            "trace /m --slow -1",
            "invalid value '-1' for '--slow <MS>': it takes a number of milliseconds, for example \
             --slow 100",
        ),
        ("trace /m --procedure REED", of_procedures),
        (
            "trace /m --slow x",
            "invalid value 'x' for '--slow <MS>': it takes a number of milliseconds, for example \
             --slow 100",
        ),
        (
            "capture /m f --seconds 0",
            "invalid value '0' for '--seconds <N>': it takes a number of seconds, at least 1, for \
             example --seconds 10",
        ),
        (
            "top -d 3601",
            "invalid value '3601' for '--delay <SECONDS>': it takes a number of seconds, at most \
             3600, for example --delay 5",
        ),
    ] {
        let said = refused(&format!("nfsrdma {line}"));
        assert_eq!(said, sentence, "{line}");
    }
    assert!(refused("nfsrdma umount --help").contains("Usage: nfsrdma umount"));
    assert!(refused("nfsrdma").contains("Commands:"));
    let bytes = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]);
    let words = ["nfsrdma", "mount", "srv:/x", "/m", "-o"].map(OsString::from);
    let error = parse(words.into_iter().chain([bytes]).collect()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("write options and their values in UTF-8")
    );
}
