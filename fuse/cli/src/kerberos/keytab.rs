//! The names in a keytab, from which the machine's principal is chosen (MIT Kerberos documentation,
//! "Keytab file format"). The keys are skipped: the library reads them itself.

use nfsrdma_xdr::codec::{Decoder, Result};

/// The first bytes of a keytab with numbers in network order.
const VERSION: [u8; 2] = [5, 2];
/// Most components of a principal that are read.
const MAX_COMPONENTS: usize = 8;

/// A principal whose key is in a keytab.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Principal {
    components: Vec<String>,
    realm: String,
}

impl Principal {
    fn parse(entry: &[u8]) -> Result<Option<Principal>> {
        let mut from = Decoder::new(entry);
        let count = usize::from(short(&mut from)?);
        if count > MAX_COMPONENTS {
            return Ok(None);
        }
        let realm = text(&mut from)?;
        let components: Option<Vec<_>> =
            (0..count).map(|_| text(&mut from)).collect::<Result<_>>()?;
        Ok(realm
            .zip(components)
            .map(|(realm, components)| Principal { components, realm }))
    }

    /// As the library parses it.
    fn name(&self) -> String {
        let escaped = |text: &String| {
            let mut all = String::new();
            for c in text.chars() {
                if matches!(c, '/' | '@' | '\\') {
                    all.push('\\');
                }
                all.push(c);
            }
            all
        };
        let components: Vec<_> = self.components.iter().map(escaped).collect();
        format!("{}@{}", components.join("/"), escaped(&self.realm))
    }
}

fn short(from: &mut Decoder<'_>) -> Result<u16> {
    let bytes = from.take(2)?;
    Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// A counted text; `None` if it is not UTF-8.
fn text(from: &mut Decoder<'_>) -> Result<Option<String>> {
    let length = usize::from(short(from)?);
    let bytes = from.take(length)?;
    Ok(String::from_utf8(bytes.to_vec()).ok())
}

/// All principals of a keytab, up to the first entry that is damaged.
fn principals(keytab: &[u8]) -> Vec<Principal> {
    let mut found = Vec::new();
    let Some(entries) = keytab.strip_prefix(&VERSION) else {
        return found;
    };
    let mut from = Decoder::new(entries);
    while let Ok(length) = from.u32() {
        let length = length.cast_signed();
        // The place of a removed entry has a negative length.
        let Ok(entry) = from.take(length.unsigned_abs() as usize) else {
            break;
        };
        if length > 0
            && let Ok(Some(principal)) = Principal::parse(entry)
            && !found.contains(&principal)
        {
            found.push(principal);
        }
    }
    found
}

/// The principals with which this machine may authenticate itself, best first, in rpc.gssd's order:
/// HOST$, then root/, nfs/ and host/; in each those of this host before others.
pub(super) fn machine_principals(keytab: &[u8], host: &str) -> Vec<String> {
    let short = host.split('.').next().unwrap_or_default();
    let account = format!("{}$", short.to_uppercase());
    let rank = |principal: &Principal| match &principal.components[..] {
        [name] if *name == account => Some((0, 0)),
        [service, of] => {
            let services = ["root", "nfs", "host"];
            let service = services.iter().position(|known| known == service)?;
            let other = !of.eq_ignore_ascii_case(host)
                && !of.split('.').next()?.eq_ignore_ascii_case(short);
            Some((1 + service, usize::from(other)))
        }
        _ => None,
    };
    let mut ranked: Vec<_> = principals(keytab)
        .into_iter()
        .filter_map(|principal| Some((rank(&principal)?, principal)))
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked
        .iter()
        .map(|(_, principal)| principal.name())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(components: &[&str], realm: &str) -> Vec<u8> {
        let text = |text: &str| [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
        let mut bytes = (components.len() as u16).to_be_bytes().to_vec();
        bytes.extend(text(realm));
        components.iter().for_each(|part| bytes.extend(text(part)));
        // Kind of name, time, version and key.
        bytes.extend([0, 0, 0, 1, 1, 2, 3, 4, 2, 0, 18, 0, 2, 9, 9]);
        [&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat()
    }

    #[test]
    fn names_in_order() {
        let mut keytab = VERSION.to_vec();
        for (components, realm) in [
            (&["host", "me.example.org"][..], "R"),
            (&["HTTP", "me.example.org"], "R"),
            (&["nfs", "other"], "R"),
            (&["nfs", "me.example.org"], "R"),
            (&["nfs", "me.example.org"], "R"),
            (&["ME$"], "A@D"),
            (&["OTHER$"], "R"),
        ] {
            keytab.extend(entry(components, realm));
        }
        // A removed entry, and then one that is cut off.
        keytab.extend((-4i32).to_be_bytes());
        keytab.extend([0; 4]);
        keytab.extend(&entry(&["root", "me"], "R")[..10]);
        let expected = [
            r"ME$@A\@D",
            "nfs/me.example.org@R",
            "nfs/other@R",
            "host/me.example.org@R",
        ];
        for host in ["me", "me.example.org"] {
            assert_eq!(machine_principals(&keytab, host), expected);
        }
    }

    #[test]
    fn damaged_keytabs_have_no_names() {
        for bytes in [
            &b""[..],
            b"\x05",
            b"\x05\x01\0\0\0\x04",
            b"\x05\x02\x80\0\0\0",
        ] {
            assert!(machine_principals(bytes, "me").is_empty());
        }
        let mut keytab = VERSION.to_vec();
        keytab.extend(entry(&["root", "me"], "R"));
        for len in 0..keytab.len() {
            assert!(machine_principals(&keytab[..len], "me").is_empty());
        }
        assert_eq!(machine_principals(&keytab, "me"), ["root/me@R"]);
    }
}
