//! The addresses of a host.

use super::error::{MountError, Step};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// Whether the name service gave no answer (EAI_AGAIN), as before it has started or found a network.
/// The standard library tells only the text, in the words of glibc or of musl.
fn is_temporary(error: &io::Error) -> bool {
    let text = error.to_string();
    ["Temporary failure in name resolution", "Try again"]
        .iter()
        .any(|words| text.contains(words))
}

/// The host's addresses without duplicates; with `ipv6_only` only those of IPv6.
pub(super) async fn resolve(
    host: &str,
    timeout: Duration,
    ipv6_only: bool,
) -> Result<Vec<IpAddr>, MountError> {
    let failed = |step, transient, why: &str| {
        MountError::new(step, transient, format!("cannot resolve {host}: {why}"))
    };
    let lookup = tokio::net::lookup_host((host, 0));
    let found = match tokio::time::timeout(timeout, lookup).await {
        Err(_) => return Err(failed(Step::Resolve, true, "no answer in time; check DNS")),
        Ok(Err(error)) if is_temporary(&error) => {
            let why = "DNS does not answer; check the name, /etc/hosts and DNS";
            return Err(failed(Step::Resolve, true, why));
        }
        Ok(Err(_)) => {
            let why = "no such host; check the name, /etc/hosts and DNS";
            return Err(failed(Step::Name, false, why));
        }
        Ok(Ok(found)) => found,
    };
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found.map(|a| a.ip()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if ipv6_only {
        addresses.retain(IpAddr::is_ipv6);
        if addresses.is_empty() {
            let message =
                format!("host {host} has no IPv6 address, which rdma6 asks for: use proto=rdma");
            return Err(MountError::new(Step::Resolve, false, message));
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(20);

    /// As the standard library words what getaddrinfo(3) returns, with glibc and with musl.
    #[test]
    fn a_name_service_that_does_not_answer_is_told_from_an_unknown_name() {
        let is_temporary = |why: &str| {
            let text = format!("failed to lookup address information: {why}");
            super::is_temporary(&io::Error::other(text))
        };
        assert!(is_temporary("Temporary failure in name resolution"));
        assert!(is_temporary("Try again"));
        assert!(!is_temporary("Name or service not known"));
        assert!(!is_temporary("Name does not resolve"));
    }

    #[tokio::test]
    async fn addresses_of_one_family() {
        let of = |host, ipv6_only| resolve(host, TIME, ipv6_only);
        assert_eq!(of("127.0.0.1", false).await.unwrap().len(), 1);
        assert_eq!(of("::1", true).await.unwrap().len(), 1);
        let error = of("127.0.0.1", true).await.unwrap_err();
        assert_eq!(
            error.message,
            "host 127.0.0.1 has no IPv6 address, which rdma6 asks for: use proto=rdma"
        );
    }
}
