use super::draft::MAX_SECONDS;
use super::show::Negotiated;
use super::*;
use nfsrdma_nfs3::options::{Remotes, Service};
use proptest::prelude::*;

fn ok(text: &str) -> Options {
    Options::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn times(text: &str) -> [u64; 4] {
    let fs = ok(text).fs.times;
    [fs.acregmin, fs.acregmax, fs.acdirmin, fs.acdirmax].map(|time| time.as_secs())
}

//= RFC 5044, Section 1.2
//= type=test
//# It is possible to disable this CRC check; however, [...]
//= RFC 5044, Section 4.4
//= type=test
//# An MPA implementation MUST implement CRC support and MUST either:
//# The default configuration for a connection MUST be to use CRCs.
#[test]
fn crcs_are_left_out_only_by_request() {
    assert!(ok("").crc);
    assert!(ok("crc").crc);
    assert!(!ok("nocrc").crc);
}

#[test]
fn nothing_and_defaults_are_the_defaults() {
    let words = "defaults rdma,proto=rdma,vers=3,nfsvers=3,mountvers=3,v3 hard fg ac cto acl rdirplus \
         lookupcache=all nointr rw async resvport sec=sys _netdev noauto auto nouser \
         x-systemd.automount,x-systemd.requires=a.service comment=hello nofsc crc \
         transport=auto write_chunk=pz relatime suid,dev,exec xprtsec=none port=20049 \
         timeo=600 retrans=2 cache=256M";
    for text in ["", ",,"].into_iter().chain(words.split_whitespace()) {
        assert_eq!(ok(text), Options::default(), "{text}");
    }
}

/// Sizes are rounded down, to at least one unit and at most the largest size (nfs(5)). What each option does is tried
/// through a mount: tests/system/program/test_options.py.
#[test]
fn sizes_and_addresses_are_understood() {
    let io = |text: &str| ok(text).client.rsize.or(ok(text).client.wsize);
    for (text, size) in [
        ("rsize=65536", 65536),
        ("rsize=64K", 65536),
        ("wsize=1M", 1 << 20),
        ("rsize=10000", 8192),
        ("rsize=1", 4096),
        ("wsize=8M", 1 << 20),
    ] {
        assert_eq!(io(text), Some(size), "{text}");
    }
    assert_eq!(
        ok("sec=krb5p:none:sys:krb5p").client.flavors,
        [Flavor::Kerberos(Service::Privacy), Flavor::Sys]
    );
    assert_eq!(
        ok("remoteports=10.0.0.1-10.0.0.2").client.remotes,
        Remotes::These(vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()])
    );
    for (text, at) in [("9100", "127.0.0.1:9100"), ("[::1]:9100", "[::1]:9100")] {
        let at = MetricsAt::Tcp(at.parse().unwrap());
        assert_eq!(ok(&format!("metrics={text}")).metrics, Some(at));
    }
}

#[test]
fn the_same_value_twice_is_no_contradiction() {
    assert_eq!(ok("hard,hard,rsize=4K,rsize=4096").client.rsize, Some(4096));
    assert_eq!(ok("noac,actimeo=0"), ok("noac"));
}

/// A given option never contradicts a default, which gives way.
#[test]
fn defaults_contradict_nothing() {
    assert_eq!(times("acregmin=99"), [99, 99, 30, 60]);
    assert_eq!(times("acregmax=1"), [1, 1, 30, 60]);
    assert_eq!(times("acdirmax=1"), [3, 60, 1, 1]);
    assert_eq!(times("acdirmin=90"), [3, 60, 90, 90]);
    assert_eq!(ok("dirty=1G").cache, 2 << 30);
    assert_eq!(ok("dirty=1T").cache, 1 << 40);
    assert_eq!(ok("dirty=256M").cache, 256 << 20);
}

#[test]
fn the_port_of_a_url_is_one_of_the_options() {
    let with_port = |text: &str, port| Options::parse_with_port(text, port).map(|o| o.client.port);
    assert_eq!(with_port("", Some(7)), Ok(7));
    assert_eq!(with_port("port=7", Some(7)), Ok(7));
    assert_eq!(with_port("port=0", Some(7)), Ok(7));
    assert_eq!(with_port("port=7", None), Ok(7));
    assert_eq!(
        with_port("port=2", Some(1)).unwrap_err().to_string(),
        "options 'port 1 of the URL' and 'port=2' contradict each other: leave one out"
    );
}

/// Options of nfs(5), mount(8) and /proc/mounts that do not exist here under that name. Others are in docs/MIGRATION.md,
/// each row of which tests/system/program/test_migration.py tries.
#[test]
fn what_the_kernels_client_takes_is_taken() {
    for text in [
        "rsize=0,wsize=0,port=0,mountport=0",
        "vers=3.0,minorversion=0",
        "namlen=255,bsize=4096,addr=10.0.0.1,mountaddr=10.0.0.1,mountvers=3,mountproto=auto",
        "addr=::1,mountaddr=unspecified",
        "nosoftreval,softreval,notrunkdiscovery,nomigration",
        "lazytime,nolazytime,iversion,noiversion,mand,nomand,silent,loud,symfollow,seclabel",
        "sec=sys:lkey",
        "sec=none:sys:sys",
        "rdirplus=force",
        "write=lazy,alignwrite,posix,fatal_neterrors=default,nfsprog=100003,mountprog=100005",
    ] {
        assert_eq!(ok(text), Options::default(), "{text}");
    }
    assert_eq!(ok("write=wait,async"), ok("sync"));
    assert_eq!(ok("async,write=wait"), ok("sync"));
    assert_eq!(
        ok("addr=1.1.1.1,mountaddr=1.1.1.2"),
        ok("mounthost=1.1.1.2")
    );
    assert_eq!(ok("mounthost=m,mountaddr=10.0.0.2"), ok("mounthost=m"));
    assert_eq!(ok("retrans=100000"), ok("retrans=1000"));
    assert_eq!(times("actimeo=4294967295"), [MAX_SECONDS; 4]);
    assert!(!ok("nosymfollow").vfs.symfollow);
    assert_eq!(
        ok("context=\"system_u:object_r:nfs_t:s0:c1,c2\"").security_contexts,
        ["context=\"system_u:object_r:nfs_t:s0:c1,c2\""]
    );
}

#[test]
fn quotes_hold_commas() {
    assert_eq!(ok("x-a=\"b,frobnicate\",ro"), ok("ro"));
}

/// The defaults that the table names are those of the settings.
#[test]
fn defaults_are_as_the_table_says() {
    let mut checked = 0;
    for entry in table::SECTIONS.iter().flat_map(|section| section.entries) {
        let words = entry.default.split(", ").zip(entry.names());
        for (word, name) in words {
            let literal = word
                .strip_prefix('`')
                .and_then(|word| word.strip_suffix('`'));
            let Some(literal) = literal.filter(|word| !word.contains('`')) else {
                continue;
            };
            let text = match entry.names().any(|name| name == literal) {
                true => literal.to_owned(),
                false => format!("{name}={literal}"),
            };
            // For locks, what was not given is not known before the server was asked.
            let given = Options {
                lock: None,
                local_lock: None,
                ..ok(&text)
            };
            assert_eq!(given, Options::default(), "{text}");
            checked += 1;
        }
    }
    assert!(checked > 25, "{checked}");
}

/// Generates words that are likely to get far into the parser.
fn word() -> impl Strategy<Value = String> {
    let names: Vec<&'static str> = table::names().map(|(name, _)| name).collect();
    let value = prop_oneof![
        Just(String::new()),
        (0u64..100_000).prop_map(|n| format!("={n}")),
        (0u64..5000).prop_map(|n| format!("={n}K")),
        "=(10\\.0\\.0\\.1|10\\.0\\.0\\.1-10\\.0\\.0\\.3|::1~10\\.0\\.0\\.9|dns)",
        "=(all|none|kernel|server|positive|rdma|rdma6|iwarp|verbs|auto|pz|reduced|tcp|sys|3)",
        "=[a-z0-9\"=]{0,5}",
    ];
    (proptest::sample::select(names), value).prop_map(|(name, value)| format!("{name}{value}"))
}

proptest! {
    #[test]
    fn what_is_in_force_is_parsed_to_the_same(words in proptest::collection::vec(word(), 0..8)) {
        let Ok(options) = Options::parse(&words.join(",")) else { return Ok(()) };
        let negotiated = Negotiated {
            rsize: options.client.rsize.unwrap_or(MAX_IO),
            wsize: options.client.wsize.unwrap_or(MAX_IO),
        };
        let shown = options.effective(negotiated);
        let mut again = Options::parse(&shown)
            .map_err(|error| TestCaseError::fail(format!("{shown}: {error}")))?;
        // Options that only matter while mounting are not shown.
        again.sloppy = options.sloppy;
        again.nofail = options.nofail;
        again.remount = options.remount;
        again.ignored.clone_from(&options.ignored);
        prop_assert_eq!(again.dirty_limit(), options.dirty_limit());
        again.dirty = options.dirty;
        prop_assert_eq!(again.workers(), options.workers());
        again.workers = options.workers;
        prop_assert_eq!(again.connections(), options.connections());
        again.nconnect = options.nconnect;
        again.client.rsize = options.client.rsize;
        again.client.wsize = options.client.wsize;
        if options.transport == Transport::Verbs {
            again.crc = options.crc;
        }
        prop_assert_eq!(again, options);
    }

    #[test]
    fn a_refusal_names_what_was_given(words in proptest::collection::vec(word(), 1..4)) {
        if let Err(error) = Options::parse(&words.join(",")) {
            let text = error.to_string();
            prop_assert!(
                words.iter().any(|word| {
                    let name = word.split('=').next().unwrap_or(word);
                    text.contains(name)
                }),
                "{}: {}", words.join(","), text
            );
        }
    }
}
