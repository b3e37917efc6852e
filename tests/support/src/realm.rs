//! A Kerberos realm for one test: MIT's KDC as a process, with everything it has in a directory.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The realm's name.
pub const REALM: &str = "NFSRDMA.TEST";
/// Where Debian has the programs of a KDC; not in the PATH of everybody.
const SBIN: &str = "/usr/sbin";
/// In the environment of a process that takes part in a realm: the realm's directory.
const PLACE: &str = "NFSRDMA_TEST_REALM";
/// How long a KDC may take to start.
const LIMIT: Duration = Duration::from_secs(60);
/// The encryption types of every key; the first is that of session keys, as MIT has it without
/// configuration.
const ENCTYPES: &str = "aes256-cts-hmac-sha1-96 aes128-cts-hmac-sha1-96 aes256-cts-hmac-sha384-192 \
                        aes128-cts-hmac-sha256-128";

/// A realm whose KDC runs until it is dropped. It has the principals `alice` and `bob` with their
/// names as passwords, and the keys of `nfs/localhost` and `host/localhost` in a keytab.
#[derive(Debug)]
pub struct Realm {
    base: TempDir,
    port: u16,
    kdc: Option<Child>,
}

impl Realm {
    /// Starts a realm. `None`, after a line that says so, if its programs are not installed.
    ///
    /// # Errors
    /// One of its programs fails.
    pub fn start() -> io::Result<Option<Realm>> {
        for name in ["krb5kdc", "kadmin.local", "kdb5_util", "kinit", "kdestroy"] {
            if program(name).is_none() {
                println!(
                    "skipped: no {name}: apt-get install krb5-kdc krb5-admin-server krb5-user"
                );
                return Ok(None);
            }
        }
        let base = tempfile::Builder::new()
            .prefix("nfsrdma-realm.")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let mut realm = Realm {
            base,
            port,
            kdc: None,
        };
        realm.configure()?;
        realm.admin("kdb5_util", &["create", "-s", "-P", "master"], "")?;
        let keytab = realm.keytab();
        let mut lines = String::from(
            "addprinc -pw alice alice\naddprinc -pw bob bob\naddprinc -randkey spare\n",
        );
        for service in ["nfs/localhost", "host/localhost"] {
            let keytab = keytab.display();
            lines += &format!("addprinc -randkey {service}\nktadd -k {keytab} {service}\n");
        }
        realm.admin("kadmin.local", &[], &lines)?;
        realm.serve()?;
        Ok(Some(realm))
    }

    fn configure(&self) -> io::Result<()> {
        let base = self.base.path().display();
        let port = self.port;
        self.configuration("krb5.conf", ENCTYPES)?;
        let keys = ENCTYPES.replace(' ', ":normal ");
        fs::write(
            self.base.path().join("kdc.conf"),
            format!(
                "[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n\
                 [realms]\n {REALM} = {{\n  database_name = {base}/principal\n  key_stash_file = {base}/stash\n  \
                 acl_file = {base}/acl\n  supported_enctypes = {keys}:normal\n }}\n[logging]\n kdc = FILE:{base}/log\n"
            ),
        )
    }

    /// Writes another krb5.conf beside the realm's own, in which only these encryption types are
    /// permitted; returns its path.
    pub fn configuration(&self, name: &str, enctypes: &str) -> io::Result<PathBuf> {
        let base = self.base.path();
        let (path, base, port) = (base.join(name), base.display(), self.port);
        fs::write(
            &path,
            format!(
                "[libdefaults]\n default_realm = {REALM}\n default_ccache_name = FILE:{base}/krb5cc_%{{uid}}\n \
                 default_keytab_name = FILE:{base}/krb5.keytab\n permitted_enctypes = {enctypes}\n \
                 dns_lookup_kdc = false\n dns_lookup_realm = false\n dns_canonicalize_hostname = false\n rdns = false\n \
                 udp_preference_limit = 1\n[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n\
                 [domain_realm]\n localhost = {REALM}\n"
            ),
        )?;
        Ok(path)
    }

    /// Its directory, in which tests may have files as well.
    pub fn path(&self) -> &Path {
        self.base.path()
    }

    /// The krb5.conf of its clients and servers.
    pub fn config(&self) -> PathBuf {
        self.base.path().join("krb5.conf")
    }

    /// The keytab with the keys of the services.
    pub fn keytab(&self) -> PathBuf {
        self.base.path().join("krb5.keytab")
    }

    /// The file in which krb5.conf has the tickets of a user.
    pub fn cache(&self, uid: u32) -> PathBuf {
        self.base.path().join(format!("krb5cc_{uid}"))
    }

    /// Adds principals by lines for kadmin.local.
    ///
    /// # Errors
    /// The program cannot be started, or fails. It does not fail for a wrong line.
    pub fn edit(&self, lines: &str) -> io::Result<()> {
        self.admin("kadmin.local", &[], lines)
    }

    /// Gets a ticket of `principal` into the file `cache`, with a life like `5s`.
    ///
    /// # Errors
    /// The KDC refuses it, or does not answer.
    pub fn kinit(&self, principal: &str, life: &str, cache: &Path) -> io::Result<()> {
        let cache = format!("FILE:{}", cache.display());
        let words = ["-l", life, "-c", &cache, principal];
        self.admin("kinit", &words, &format!("{principal}\n"))
    }

    /// Starts the KDC, at the same port as before.
    ///
    /// # Errors
    /// It cannot be started, or ends.
    pub fn serve(&mut self) -> io::Result<()> {
        let mut child = self.command("krb5kdc").arg("-n").spawn()?;
        let until = Instant::now() + LIMIT;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            if child.try_wait()?.is_some() || Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                return Err(io::Error::other("the KDC does not start"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kdc = Some(child);
        Ok(())
    }

    /// Ends the KDC.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.kdc.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Gives a program the environment of the realm, and no other words about Kerberos.
    pub fn environment(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"KRB5") {
                command.env_remove(name);
            }
        }
        command.env("KRB5_CONFIG", self.config());
        command.env("KRB5_KDC_PROFILE", self.base.path().join("kdc.conf"));
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(program(name).unwrap_or_else(|| name.into()));
        self.environment(&mut command);
        command
            .current_dir(self.base.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Runs one of the realm's programs.
    fn admin(&self, name: &str, words: &[&str], input: &str) -> io::Result<()> {
        let mut child = self
            .command(name)
            .args(words)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "{name}: {}",
                String::from_utf8_lossy(&output.stderr)
            ))),
        }
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs the body of `test` in a process that takes part in a realm, because the library reads its
/// environment: this test program again, with this test alone. `prepare` sees the new realm, and
/// returns the configurations with which to run the body one after the other; none means the realm's
/// own. The body is given the realm's directory.
///
/// # Panics
/// If the realm does not start, or the test fails in one of these processes.
pub fn in_realm(
    test: &str,
    prepare: impl FnOnce(&mut Realm) -> Vec<PathBuf>,
    body: impl FnOnce(&Path),
) {
    if let Some(place) = std::env::var_os(PLACE) {
        return body(Path::new(&place));
    }
    let Some(mut realm) = Realm::start().expect("a realm starts") else {
        return;
    };
    let mut configurations = prepare(&mut realm);
    if configurations.is_empty() {
        configurations.push(realm.config());
    }
    for configuration in configurations {
        let program = std::env::current_exe().expect("this program has a path");
        let mut again = Command::new(program);
        realm.environment(&mut again);
        again
            .args([test, "--exact", "--nocapture"])
            .env(PLACE, realm.path())
            .env("KRB5_CONFIG", configuration);
        let output = again.output().expect("this program can be started");
        // Of a test that passes, libtest hides this.
        println!("{}", String::from_utf8_lossy(&output.stdout));
        println!("{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "it fails in the realm");
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<_> = std::env::split_paths(&path).collect();
    directories.push(SBIN.into());
    let mut found = directories
        .iter()
        .map(|directory| directory.join(name))
        .filter(|path| path.is_file());
    found.next()
}
