//! The ways to the server: the addresses of `remoteports` and `localports`, taken in turn.

use crate::options::{ClientOptions, Remotes};
use nfsrdma_rpcrdma::options::{Path, TransportOptions};
use std::net::{IpAddr, SocketAddr};

/// The addresses that connections are spread over, if the server's name has `resolved`. There are none
/// if all go to the address that was mounted.
pub(super) fn remotes(options: &ClientOptions, resolved: &[IpAddr]) -> Vec<IpAddr> {
    match &options.remotes {
        Remotes::Mounted => Vec::new(),
        Remotes::These(list) => list.clone(),
        Remotes::Resolved => resolved.to_vec(),
    }
}

/// The options of the transport to `remotes`, or to `mounted` alone if there are none. The error is a
/// sentence.
pub(super) fn transport(
    options: &ClientOptions,
    mounted: IpAddr,
    remotes: &[IpAddr],
) -> Result<TransportOptions, String> {
    let mut transport = options.transport.clone();
    if remotes.is_empty() && options.locals.is_empty() {
        return Ok(transport);
    }
    let only = [mounted];
    let remotes = if remotes.is_empty() { &only } else { remotes };
    let each = (0..transport.nconnect as usize).map(|slot| {
        let remote = remotes[slot % remotes.len()];
        Ok(Path {
            peer: SocketAddr::new(remote, options.port),
            local: local(&options.locals, remote, slot)?,
        })
    });
    transport.paths = each.collect::<Result<_, String>>()?;
    Ok(transport)
}

/// The turn of `slot` among the local addresses of the same family.
fn local(locals: &[IpAddr], remote: IpAddr, slot: usize) -> Result<Option<IpAddr>, String> {
    let same = |local: &&IpAddr| local.is_ipv4() == remote.is_ipv4();
    let turns = locals.iter().filter(same).count();
    match locals {
        [] => Ok(None),
        _ if turns == 0 => Err(format!(
            "localports= has no address from which {remote} can be reached: add one of its family"
        )),
        _ => Ok(locals.iter().filter(same).nth(slot % turns).copied()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(remotes: Remotes, locals: &[&str], nconnect: u32) -> ClientOptions {
        let mut options = ClientOptions {
            remotes,
            locals: locals.iter().map(|text| text.parse().unwrap()).collect(),
            port: 7,
            ..ClientOptions::default()
        };
        options.transport.nconnect = nconnect;
        options
    }

    fn shown(options: &ClientOptions, resolved: &[&str]) -> Result<Vec<String>, String> {
        let resolved: Vec<IpAddr> = resolved.iter().map(|text| text.parse().unwrap()).collect();
        let transport = transport(options, resolved[0], &remotes(options, &resolved))?;
        Ok(transport.paths.iter().map(Path::to_string).collect())
    }

    #[test]
    fn a_name_is_spread_only_when_asked() {
        let resolved = ["10.0.0.1", "10.0.0.2"];
        assert!(
            shown(&options(Remotes::Mounted, &[], 2), &resolved)
                .unwrap()
                .is_empty()
        );
        assert_eq!(
            shown(&options(Remotes::Resolved, &[], 3), &resolved).unwrap(),
            ["10.0.0.1:7", "10.0.0.2:7", "10.0.0.1:7"]
        );
    }

    #[test]
    fn both_ends_are_taken_in_turn() {
        let list =
            |all: &[&str]| Remotes::These(all.iter().map(|text| text.parse().unwrap()).collect());
        let two = list(&["10.0.0.1", "10.0.1.1"]);
        assert_eq!(
            shown(
                &options(two.clone(), &["10.0.0.8", "10.0.1.8"], 4),
                &["10.9.9.9"]
            )
            .unwrap(),
            [
                "10.0.0.1:7 from 10.0.0.8",
                "10.0.1.1:7 from 10.0.1.8",
                "10.0.0.1:7 from 10.0.0.8",
                "10.0.1.1:7 from 10.0.1.8"
            ]
        );
        assert_eq!(
            shown(
                &options(Remotes::Mounted, &["10.0.0.8", "::1", "10.0.1.8"], 2),
                &["10.0.0.1"]
            )
            .unwrap(),
            ["10.0.0.1:7 from 10.0.0.8", "10.0.0.1:7 from 10.0.1.8"]
        );
        let error = shown(&options(two, &["::1"], 1), &["10.0.0.1"]).unwrap_err();
        assert!(
            error.starts_with("localports= has no address from which 10.0.0.1"),
            "{error}"
        );
    }
}
