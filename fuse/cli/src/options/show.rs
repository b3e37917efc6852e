//! Formats the effective options, in the order in which the kernel's NFS mounts show them.

use super::{
    AccessTime, LookupCache, MountProtocol, Options, Permissions, Recovery, Transport, WriteChunk,
};
use crate::options::size::show_size;
use std::fmt::{self, Display};

/// The values that the server and the connection negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Largest READ in force, in bytes.
    pub rsize: u32,
    /// Largest WRITE in force, in bytes.
    pub wsize: u32,
}

impl Options {
    /// These options as text for `-o`, with the sizes in force. Parsing the text results in the
    /// same settings.
    pub fn effective(&self, negotiated: Negotiated) -> String {
        let mut words = Words(String::new());
        self.show_vfs(&mut words);
        words.value("vers", 3);
        words.value("rsize", negotiated.rsize);
        words.value("wsize", negotiated.wsize);
        self.show_consistency(&mut words);
        self.show_connection(&mut words);
        words.value("sec", "sys");
        self.show_mount_protocol(&mut words);
        self.show_locks_and_access(&mut words);
        self.show_transport(&mut words);
        self.show_limits(&mut words);
        words.0
    }

    /// Options that the kernel's VFS acts on.
    fn show_vfs(&self, words: &mut Words) {
        let vfs = &self.vfs;
        words.flag(if vfs.read_only { "ro" } else { "rw" });
        for (on, name) in [
            (!vfs.suid, "nosuid"),
            (!vfs.dev, "nodev"),
            (
                vfs.dev && self.permissions == Some(Permissions::Server),
                "dev",
            ),
            (!vfs.exec, "noexec"),
            (!vfs.symfollow, "nosymfollow"),
            (vfs.sync && !self.noac, "sync"),
            (vfs.dirsync, "dirsync"),
            (vfs.access_time == AccessTime::Always, "strictatime"),
            (vfs.access_time == AccessTime::Relative, "relatime"),
            (vfs.access_time == AccessTime::Never, "noatime"),
            (!vfs.dir_access_time, "nodiratime"),
        ] {
            if on {
                words.flag(name);
            }
        }
        for context in &self.security_contexts {
            words.flag(context);
        }
    }

    /// Caches, their times, and what happens to calls without an answer.
    fn show_consistency(&self, words: &mut Words) {
        match self.noac {
            true => words.flag("noac"),
            false => {
                words.value("acregmin", self.fs.acregmin.as_secs());
                words.value("acregmax", self.fs.acregmax.as_secs());
                words.value("acdirmin", self.fs.acdirmin.as_secs());
                words.value("acdirmax", self.fs.acdirmax.as_secs());
            }
        }
        words.flag(match self.client.transport.recovery {
            Recovery::Hard => "hard",
            Recovery::Soft => "soft",
            Recovery::SoftErr => "softerr",
        });
        if self.intr {
            words.flag("intr");
        }
        if self.fs.nocto {
            words.flag("nocto");
        }
        if !self.client.acl {
            words.flag("noacl");
        }
        match self.fs.lookup_cache {
            LookupCache::All => {}
            LookupCache::Positive => words.value("lookupcache", "positive"),
            LookupCache::None => words.value("lookupcache", "none"),
        }
        if !self.fs.readdirplus {
            words.flag("nordirplus");
        }
        if self.background {
            words.flag("bg");
        }
    }

    fn show_connection(&self, words: &mut Words) {
        words.value(
            "proto",
            if self.client.ipv6_only {
                "rdma6"
            } else {
                "rdma"
            },
        );
        words.value("port", self.client.port);
        words.value("nconnect", self.connections());
        words.value("timeo", self.client.transport.timeo.as_millis() / 100);
        words.value("retrans", self.client.transport.retrans);
        if let Some(retry) = self.retry {
            words.value("retry", retry.as_secs() / 60);
        }
    }

    fn show_mount_protocol(&self, words: &mut Words) {
        if let Some(host) = &self.client.mounthost {
            words.value("mounthost", host);
        }
        if let Some(port) = self.client.mountport {
            words.value("mountport", port);
        }
        let six = self.client.mount_ipv6_only;
        match self.client.mountproto {
            MountProtocol::Auto => {}
            MountProtocol::Tcp => words.value("mountproto", if six { "tcp6" } else { "tcp" }),
            MountProtocol::Udp => words.value("mountproto", if six { "udp6" } else { "udp" }),
            MountProtocol::Rdma => words.value("mountproto", if six { "rdma6" } else { "rdma" }),
        }
        if !self.client.resvport {
            words.flag("noresvport");
        }
    }

    fn show_locks_and_access(&self, words: &mut Words) {
        if let Some(lock) = self.lock {
            words.flag(if lock { "lock" } else { "nolock" });
        }
        if let Some(local) = self.local_lock {
            words.value("local_lock", local.name());
        }
        if let Some(port) = self.lock_port {
            words.value("lockport", port);
        }
        match self.callback_port {
            Some(0) => words.value("callbackport", "none"),
            Some(port) => words.value("callbackport", port),
            None => {}
        }
        match self.allow_other {
            Some(true) => words.flag("allow_other"),
            Some(false) => words.flag("noallow_other"),
            None => {}
        }
        match self.permissions {
            Some(Permissions::Kernel) => words.value("permissions", "kernel"),
            Some(Permissions::Server) => words.value("permissions", "server"),
            None => {}
        }
    }

    /// Options of RPC-over-RDMA and the layers below.
    fn show_transport(&self, words: &mut Words) {
        words.value(
            "transport",
            match self.transport {
                Transport::Auto => "auto",
                Transport::Iwarp => "iwarp",
                Transport::Verbs => "verbs",
            },
        );
        words.value(
            "write_chunk",
            match self.client.transport.write_chunk {
                WriteChunk::PositionZero => "pz",
                WriteChunk::Reduced => "reduced",
            },
        );
        words.value("inline", self.client.transport.inline);
        words.value("credits", self.client.transport.credits);
        if self.transport != Transport::Verbs {
            words.flag(if self.crc { "crc" } else { "nocrc" });
            if let Some(fpdu) = self.fpdu {
                words.value("fpdu", fpdu);
            }
        }
    }

    /// Limits of memory and threads.
    fn show_limits(&self, words: &mut Words) {
        words.value("cache", show_size(self.cache));
        words.value("dirty", show_size(self.dirty_limit()));
        words.value("readahead", show_size(self.fs.readahead_bytes as u64));
        words.value("workers", self.workers());
        if let Some(threads) = self.threads {
            words.value("threads", threads);
        }
        if let Some(metrics) = &self.metrics {
            words.value("metrics", metrics);
        }
    }
}

struct Words(String);

impl Words {
    fn flag(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
    }

    fn value(&mut self, name: &str, value: impl Display) {
        self.flag(name);
        fmt::write(&mut self.0, format_args!("={value}"))
            .expect("writing to a String does not fail");
    }
}
