//! The CSI driver `nfsrdma.csi`: it makes and ends mounts for a container orchestrator such as Kubernetes, by the
//! program `nfsrdma`. docs/CSI.md says how it is used.
//!
//! The driver keeps nothing: what is mounted is asked of the kernel, and the id of a volume says where it is. So it may
//! be killed at any time. The mounts are processes of their own and do not notice.

pub mod messages;

mod controller;
mod driver;
mod identity;
mod mount;
mod node;
mod serve;
mod volume;

pub use driver::{Driver, NAME};
pub use serve::serve;
