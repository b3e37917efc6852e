//! `nfsrdma`, also callable as `mount.nfsrdma` and `umount.nfsrdma`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(nfsrdma::main(std::env::args_os().collect()))
}
