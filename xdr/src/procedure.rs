//! The properties of an RPC procedure: number, arguments, results, DDP-eligible item, and the
//! largest reply, which determines the size of a Reply chunk (RFC 8166 section 4.3.3).

use crate::codec::{Decode, Encode};

/// Which item of a procedure may be in its own chunk (RFC 8267 section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ddp {
    /// No item.
    None,
    /// A variable-length argument: WRITE's data, SYMLINK's path.
    Argument,
    /// A variable-length result: READ's data, READLINK's path.
    Result,
}

/// An RPC procedure.
pub trait Procedure {
    /// RPC program number.
    const PROGRAM: u32;
    /// Version of the program.
    const VERSION: u32;
    /// Procedure number.
    const NUMBER: u32;
    /// The name in the RFC, in capitals.
    const NAME: &'static str;
    /// The item that may be in a chunk.
    const DDP: Ddp;
    /// Whether running it twice has the same effect and the same reply as running it once.
    const IDEMPOTENT: bool;
    /// The arguments.
    type Args<'a>: Encode + Decode<'a>;
    /// The results.
    type Res<'a>: Encode + Decode<'a>;

    /// Largest encoded length of the results in bytes, status included, without contents and
    /// padding of a DDP-eligible result.
    fn max_results(args: &Self::Args<'_>) -> usize;

    //= RFC 8166, Section 3.4.6
    //# Thus, it MUST register Write chunks long enough to accommodate the maximum possible size of
    //# each returned data item.
    //= RFC 8166, Section 4.3.2.2
    //# Therefore, the Requester MUST provision each Write chunk so it can be filled with the
    //# largest DDP-eligible data item that can be placed in it.
    /// Largest length of the contents of the DDP-eligible result in bytes, which is the size of its
    /// Write chunk; 0 for procedures without one.
    fn max_ddp_result(args: &Self::Args<'_>) -> usize {
        let _ = args;
        0
    }
}

/// Declares procedures without DDP-eligible items, all of which are idempotent: number, name,
/// arguments and results, and the largest length of the results.
macro_rules! idempotent_procedures {
    ($($(#[$meta:meta])* $type:ident = $number:literal, $name:literal, $args:ty => $res:ty, $max:expr;)*) => {
        $(
            #[doc = concat!($name, ", procedure ", $number, ".")]
            #[doc = ""]
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            pub struct $type;

            impl $crate::procedure::Procedure for $type {
                const PROGRAM: u32 = PROGRAM;
                const VERSION: u32 = VERSION;
                const NUMBER: u32 = $number;
                const NAME: &'static str = $name;
                const DDP: $crate::procedure::Ddp = $crate::procedure::Ddp::None;
                const IDEMPOTENT: bool = true;
                type Args<'a> = $args;
                type Res<'a> = $res;

                fn max_results(_: &Self::Args<'_>) -> usize {
                    $max
                }
            }
        )*
    };
}

pub(crate) use idempotent_procedures;
