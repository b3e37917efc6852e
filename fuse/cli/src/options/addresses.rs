//! Lists of IP addresses: joined by `~`, or as ranges of consecutive ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most addresses of a list; more connections than that are not made.
pub(super) const MOST: usize = 16;

/// The addresses of a list, each once.
pub(super) fn parse(text: &str) -> Option<Vec<IpAddr>> {
    let mut all = Vec::new();
    for part in text.split('~') {
        for address in range(part)? {
            if !all.contains(&address) {
                all.push(address);
            }
        }
    }
    (all.len() <= MOST).then_some(all)
}

/// `A`, or `A-B` with A not behind B.
fn range(part: &str) -> Option<Vec<IpAddr>> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    match (first.parse().ok()?, last.parse().ok()?) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            let numbers = numbers(first.to_bits().into(), last.to_bits().into())?;
            let address = |number| IpAddr::V4(Ipv4Addr::from_bits(number as u32));
            Some(numbers.map(address).collect())
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            let numbers = numbers(first.to_bits(), last.to_bits())?;
            let address = |number| IpAddr::V6(Ipv6Addr::from_bits(number));
            Some(numbers.map(address).collect())
        }
        _ => None,
    }
}

/// From the first to the last number, if there are not too many.
fn numbers(first: u128, last: u128) -> Option<std::ops::RangeInclusive<u128>> {
    let further = last.checked_sub(first)?;
    (further < MOST as u128).then_some(first..=last)
}

/// A list that [`parse`] reads.
pub(super) fn show(addresses: &[IpAddr]) -> String {
    let each: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    each.join("~")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_and_ranges() {
        let shown = |text: &str| parse(text).map(|all| show(&all));
        for (text, all) in [
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.2~10.0.0.1", "10.0.0.2~10.0.0.1"),
            (
                "10.0.0.255-10.0.1.1~10.0.0.9",
                "10.0.0.255~10.0.1.0~10.0.1.1~10.0.0.9",
            ),
            ("10.0.0.1~10.0.0.1-10.0.0.2", "10.0.0.1~10.0.0.2"),
            ("fe80::ffff-fe80::1:0~::1", "fe80::ffff~fe80::1:0~::1"),
            ("255.255.255.255-255.255.255.255", "255.255.255.255"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(all), "{text}");
        }
        assert_eq!(parse("10.0.0.1-10.0.0.16").unwrap().len(), MOST);
        for text in [
            "",
            "~",
            "10.0.0.1~",
            "srv",
            "10.0.0.1:20049",
            "10.0.0.2-10.0.0.1",
            "10.0.0.1-10.0.0.17",
            "10.0.0.1-10.0.0.16~10.0.0.17",
            "0.0.0.0-255.255.255.255",
            "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "10.0.0.1-::1",
            "10.0.0.1-",
            "[::1]",
            "fe80::1%eth0",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_parsed_to_the_same(all in proptest::collection::hash_set(any::<IpAddr>(), 1..MOST)) {
            let all: Vec<_> = all.into_iter().collect();
            prop_assert_eq!(parse(&show(&all)), Some(all));
        }
    }
}
