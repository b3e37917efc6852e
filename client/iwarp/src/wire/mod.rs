//! Wire formats, without state: MPA (RFC 5044, 6581), DDP (RFC 5041), RDMAP (RFC 5040).

pub mod ddp;
pub mod mpa;
mod opcode;
pub mod rdmap;
