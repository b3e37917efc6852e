//! The parts of a mount from its options to its end: the files of the machine that add to the
//! options, the connection to the server, the FUSE mount, the serving process and its log.

pub(crate) mod apart;
pub(crate) mod begun;
pub(crate) mod connect;
pub(crate) mod daemon;
pub(crate) mod fstab_line;
pub(crate) mod fuse_mount;
pub(crate) mod locking;
pub(crate) mod log;
pub(crate) mod memory_limit;
pub(crate) mod mount_point;
pub(crate) mod nfsmount_conf;
pub(crate) mod privileges;
pub(crate) mod provider;
pub(crate) mod record;
pub(crate) mod remount;
pub(crate) mod service;
pub(crate) mod settings;
pub(crate) mod summary;
pub(crate) mod utab;
