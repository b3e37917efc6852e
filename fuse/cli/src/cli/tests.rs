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

/// The messages are in tests/system/program/golden/wrong-inputs.txt.
#[test]
fn what_is_asked_for_and_what_is_no_text() {
    assert!(refused("nfsrdma --version").contains(env!("CARGO_PKG_VERSION")));
    assert!(refused("nfsrdma umount --help").contains("Usage: nfsrdma umount"));
    let bytes = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]);
    let words = ["nfsrdma", "mount", "srv:/x", "/m", "-o"].map(OsString::from);
    let error = parse(words.into_iter().chain([bytes]).collect()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("write options and their values in UTF-8"));
}
