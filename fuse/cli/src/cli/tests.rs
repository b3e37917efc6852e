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
        mount("rw,noatime", |args| {
            args.verbose = 1;
            args.helper = true;
        })
    );
    assert_eq!(
        run("mount.fuse.nfsrdma srv:/x /mnt -sfn -t fuse.nfsrdma -o ro"),
        mount("ro,sloppy", |args| {
            args.fake = true;
            args.helper = true;
        })
    );
    assert_eq!(
        run("mount.nfsrdma srv:/x /mnt -F -v"),
        mount("", |args| {
            args.foreground = true;
            args.verbose = 1;
            args.helper = true;
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
