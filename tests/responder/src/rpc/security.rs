//! What the server demands of calls.

use super::gss::Gss;
use nfsrdma_xdr::rpc::flavor;
use nfsrdma_xdr::rpcsec_gss::pseudo_flavor;
use std::str::FromStr;

/// The flavors of an export whose flavors are not set.
pub(super) const USUAL: &[u32] = &[flavor::SYS];

/// Flavors in the order of preference, as `sec=` of exports(5) has them: `krb5:krb5i:krb5p`; with a
/// name, `/data=sys`, for this export alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flavors {
    export: Option<Vec<u8>>,
    list: Vec<u32>,
}

impl FromStr for Flavors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (export, list) = match text.rsplit_once('=') {
            Some((export, list)) => (Some(export.as_bytes().to_vec()), list),
            None => (None, text),
        };
        let number = |name: &str| match name {
            "none" => Ok(flavor::NONE),
            "sys" => Ok(flavor::SYS),
            "krb5" => Ok(pseudo_flavor::KRB5),
            "krb5i" => Ok(pseudo_flavor::KRB5I),
            "krb5p" => Ok(pseudo_flavor::KRB5P),
            name => Err(format!("{name} is none of none, sys, krb5, krb5i, krb5p")),
        };
        let list = list.split(':').map(number).collect::<Result<_, _>>()?;
        Ok(Flavors { export, list })
    }
}

impl Flavors {
    /// Whether one of them needs a context.
    pub fn need_context(&self) -> bool {
        self.list
            .iter()
            .any(|&flavor| flavor >= pseudo_flavor::KRB5)
    }
}

/// What the server demands of calls.
#[derive(Debug, Default)]
pub struct Security {
    pub flavors: Vec<Flavors>,
    /// Without it the flavor RPCSEC_GSS is refused.
    pub gss: Option<Gss>,
}

impl Security {
    /// The flavors of an export.
    pub(super) fn flavors_of(&self, export: &[u8]) -> &[u32] {
        let of = |name: Option<&[u8]>| {
            let mut all = self.flavors.iter();
            all.find(|flavors| flavors.export.as_deref() == name)
        };
        let found = of(Some(export)).or_else(|| of(None));
        found.map_or(USUAL, |flavors| &flavors.list)
    }
}
