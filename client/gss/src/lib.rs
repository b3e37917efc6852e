//! Kerberos V5 contexts (RFC 4121) by the GSS-API library of the system, MIT's libgssapi_krb5.
//!
//! It is loaded when it is asked for: a program that uses this crate needs it neither to be built nor
//! to start. Whoever mounts with Kerberos and lacks it gets [`Kind::NotInstalled`].
//!
//! An [`Initiator`] and an [`Acceptor`] exchange tokens until each has a [`Context`], whose methods
//! protect messages. A context may be exported, and imported by another process. The library establishes contexts;
//! their messages are protected here ([`token`]), with the context's key, unless the library makes something else of
//! a sample.
//!
//! Tickets, keys and tokens are in no `Debug` output and in no `Display` of an error.

mod bounds;
mod context;
mod error;
mod establish;
mod raw;
mod suite;
#[cfg(feature = "test-support")]
pub mod support;
mod sys;
mod token;

pub use bounds::MAX_TOKEN_LEN;
pub use context::{Context, Exported};
pub use error::{Error, Kind};
pub use establish::{Accepting, Acceptor, Credential, Initiator, Step};
pub use raw::Output;

use bounds::{bounded, not_empty};
use raw::Raw;
use std::fmt;

/// The loaded library.
#[derive(Clone, Copy)]
pub struct Library(Raw);

impl Library {
    /// Loads the library and finds its functions, once in a process that has it.
    ///
    /// # Errors
    /// [`Kind::NotInstalled`], which [`Error::text`] explains.
    pub fn load() -> Result<Library, Error> {
        Raw::load().map(Library)
    }

    /// The tickets of this process's user: those in `cache` (like `FILE:/tmp/krb5cc_1000`), or where
    /// krb5.conf and the environment say.
    ///
    /// # Errors
    /// [`Kind::NoCredential`] and [`Kind::Expired`].
    pub fn tickets(self, cache: Option<&str>) -> Result<Credential, Error> {
        let store: Vec<_> = cache.map(|name| ("ccache", name)).into_iter().collect();
        Credential::of_initiator(self.0.acquire(None, false, &store)?)
    }

    /// Where krb5.conf and the environment have the tickets of this process's user, like
    /// `FILE:/tmp/krb5cc_1000`.
    ///
    /// # Errors
    /// krb5.conf may be unreadable.
    pub fn usual_cache(self) -> Result<String, Error> {
        self.0.usual_cache()
    }

    /// Tickets that are got with a key of `keytab` (a file, or where krb5.conf says): those of the
    /// machine. `principal` has the default realm unless it names one. They are in memory only.
    ///
    /// # Errors
    /// [`Kind::NoCredential`] if the keytab has no key for `principal`, or the KDC another one;
    /// [`Kind::Realm`] and [`Kind::ClockSkew`].
    pub fn tickets_by_key(
        self,
        principal: &str,
        keytab: Option<&str>,
    ) -> Result<Credential, Error> {
        let name = self.0.principal_name(principal)?;
        let keytab = keytab.unwrap_or("/etc/krb5.keytab");
        let cache = format!("MEMORY:nfsrdma-{principal}");
        let store = [("client_keytab", keytab), ("ccache", &cache)];
        Credential::of_initiator(self.0.acquire(Some(&name), false, &store)?)
    }

    /// The realms that krb5.conf has for this host and for `target`, a service on a host.
    ///
    /// # Errors
    /// krb5.conf may be unreadable, or have no realm.
    pub fn realms(self, target: &str) -> Result<[String; 2], Error> {
        let realm = |name: &str| {
            let at = name.rfind('@').map_or(name.len(), |at| at + 1);
            name[at..].to_owned()
        };
        let own = self.0.principal_name("host")?.principal()?.show()?;
        let its = self.0.service_name(target)?.principal()?.show()?;
        Ok([realm(&own), realm(&its)])
    }

    /// Begins a context with `target`, a service on a host like `nfs@server.example.org`.
    ///
    /// # Errors
    /// The name may be malformed.
    pub fn initiator(self, tickets: Credential, target: &str) -> Result<Initiator, Error> {
        let target = self.0.service_name(target)?;
        Ok(Initiator::new(self.0.no_context(), tickets, target))
    }

    /// Accepts contexts for every key in `keytab` (a file, or where krb5.conf says).
    ///
    /// # Errors
    /// [`Kind::NoCredential`] if there is no key.
    pub fn acceptor(self, keytab: Option<&str>) -> Result<Acceptor, Error> {
        // Without a replay cache: an RPC may be sent twice, and INIT by itself proves nothing.
        let mut store = vec![("rcache", "none:")];
        store.extend(keytab.map(|name| ("keytab", name)));
        Ok(Acceptor::new(self.0, self.0.acquire(None, true, &store)?))
    }

    /// A context that was exported, by this process or another one on this machine.
    ///
    /// # Errors
    /// [`Kind::Defective`].
    pub fn import(self, exported: &[u8]) -> Result<Context, Error> {
        bounded(exported)?;
        not_empty(exported)?;
        Context::new(self.0.import(exported)?)
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("libgssapi_krb5")
    }
}
