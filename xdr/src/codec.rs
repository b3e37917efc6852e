//! XDR encoding and decoding (RFC 4506).
//!
//! Every length that is received is compared with the bytes that remain, and with the protocol's
//! own bound, before memory is allocated.

use thiserror::Error;

/// Why bytes do not match the XDR definition of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The stream ends inside an item.
    #[error("truncated: {wanted} B more wanted at offset {at}")]
    Truncated { at: usize, wanted: usize },
    /// A length or count exceeds the bound of its protocol.
    #[error("{what} of {length} exceeds its bound of {bound}")]
    TooLong {
        what: &'static str,
        length: usize,
        bound: usize,
    },
    /// An enumeration, union arm or boolean has a value outside its definition.
    #[error("{what} has the undefined value {value}")]
    Undefined { what: &'static str, value: u32 },
    /// Bytes remain after a message that should be complete.
    #[error("{0} B left over")]
    Trailing(usize),
    /// The items are well formed but contradict each other.
    #[error("{0}")]
    Inconsistent(&'static str),
}

/// Result of decoding.
pub type Result<T> = std::result::Result<T, DecodeError>;

/// The contents of a DDP-eligible data item (RFC 8166 section 3.4.1, RFC 8267 section 4), in the
/// XDR stream or in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload<'a> {
    /// The bytes are in the stream.
    Inline(&'a [u8]),
    /// The stream has only the length. The bytes, without roundup padding (RFC 8166 section
    /// 3.4.5.2), are in a chunk, or the sender gathers them.
    Placed(u32),
}

impl Payload<'_> {
    /// Length of the item in bytes, without roundup padding.
    pub fn len(&self) -> usize {
        match self {
            Payload::Inline(bytes) => bytes.len(),
            Payload::Placed(len) => *len as usize,
        }
    }

    /// Whether the item has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// `len` rounded up to XDR's four-byte unit (RFC 4506 section 3).
pub const fn roundup(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Number of zero bytes that follow `len` bytes of opaque data.
pub const fn padding(len: usize) -> usize {
    roundup(len) - len
}

/// Appends XDR items to a byte vector.
#[derive(Debug, Default)]
pub struct Encoder {
    out: Vec<u8>,
    placed_at: Option<usize>,
}

impl Encoder {
    /// An encoder that appends to `out`.
    pub fn new(out: Vec<u8>) -> Self {
        Encoder {
            out,
            placed_at: None,
        }
    }

    /// An encoder of a new message, with room for about `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Encoder::new(Vec::with_capacity(capacity))
    }

    /// Number of bytes written so far, including those given to [`Encoder::new`].
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// The offset at which the contents of a [`Payload::Placed`] item belong. This is the Position
    /// of its Read chunk if the encoder started at the RPC message (RFC 8166 section 3.4.5).
    pub fn placed_at(&self) -> Option<usize> {
        self.placed_at
    }

    /// The encoded bytes.
    pub fn into_vec(self) -> Vec<u8> {
        self.out
    }

    /// The encoded bytes, borrowed.
    pub fn as_slice(&self) -> &[u8] {
        &self.out
    }

    /// Appends an unsigned (or, by a cast, signed) integer or an enumeration.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// Puts an unsigned integer in the place of one that was written.
    pub(crate) fn put_u32(&mut self, at: usize, value: u32) {
        self.out[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Appends an unsigned hyper.
    pub fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends a boolean.
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Appends fixed-length opaque data (RFC 4506 section 4.9).
    pub fn opaque_fixed(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        let pad = padding(bytes.len());
        if pad > 0 {
            self.out.extend_from_slice(&[0; 3][..pad]);
        }
    }

    /// Appends variable-length opaque data or a string (RFC 4506 sections 4.10 and 4.11).
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.opaque_fixed(bytes);
    }

    /// Appends a DDP-eligible item. For a placed one, only its length is in the stream.
    pub fn payload(&mut self, payload: Payload<'_>) {
        match payload {
            Payload::Inline(bytes) => self.opaque(bytes),
            //= RFC 8166, Section 3.4.4.1
            //# If a chunk contains a counted array data type, the count of array elements MUST
            //# remain in the Payload stream, while the array elements MUST be moved to the chunk.
            //= RFC 8166, Section 3.4.4.4
            //# When a variable-length XDR data item is reduced, the sender MUST remove XDR roundup
            //# padding for that data item from the Payload stream so that data items remaining in
            //# the Payload stream begin on four-byte alignment.
            Payload::Placed(len) => {
                self.u32(len);
                self.placed_at = Some(self.out.len());
            }
        }
    }

    /// Appends optional data (RFC 4506 section 4.19).
    pub fn option<T: Encode>(&mut self, value: Option<&T>) {
        self.bool(value.is_some());
        if let Some(value) = value {
            value.encode(self);
        }
    }

    /// Appends a linked list (RFC 4506 section 4.19): "1 item 1 item ... 0".
    pub fn list<T: Encode>(&mut self, items: &[T]) {
        for item in items {
            self.bool(true);
            item.encode(self);
        }
        self.bool(false);
    }
}

/// Takes XDR items from the front of a byte slice.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    placed: Option<u32>,
}

impl<'a> Decoder<'a> {
    /// A decoder of `bytes`, which contain every item.
    pub fn new(bytes: &'a [u8]) -> Self {
        Decoder {
            bytes,
            at: 0,
            placed: None,
        }
    }

    /// A decoder of a reduced stream, whose first DDP-eligible item has `placed` bytes in a chunk.
    pub fn with_placed(bytes: &'a [u8], placed: u32) -> Self {
        Decoder {
            bytes,
            at: 0,
            placed: Some(placed),
        }
    }

    /// Offset of the next item.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Number of bytes not yet taken.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The bytes not yet taken.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Takes `len` bytes, without padding.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = self.rest().get(..len).ok_or_else(|| self.truncated(len))?;
        self.at += len;
        Ok(taken)
    }

    /// Takes `N` units of four bytes.
    #[inline]
    pub(crate) fn words<const N: usize>(&mut self) -> Result<&'a [[u8; 4]; N]> {
        let words = self.rest().as_chunks().0.first_chunk();
        let words = words.ok_or_else(|| self.truncated(4 * N))?;
        self.at += 4 * N;
        Ok(words)
    }

    #[cold]
    fn truncated(&self, wanted: usize) -> DecodeError {
        DecodeError::Truncated {
            at: self.at,
            wanted: wanted - self.remaining(),
        }
    }

    /// An unsigned integer or an enumeration.
    #[inline]
    pub fn u32(&mut self) -> Result<u32> {
        let &[word] = self.words()?;
        Ok(u32::from_be_bytes(word))
    }

    /// An unsigned hyper.
    #[inline]
    pub fn u64(&mut self) -> Result<u64> {
        let &[high, low] = self.words()?;
        Ok(u64::from(u32::from_be_bytes(high)) << 32 | u64::from(u32::from_be_bytes(low)))
    }

    /// A boolean. Any value but 0 is true: XDR defines only 1 (RFC 4506 section 4.4), but a server
    /// that sends another one means that, and nothing is endangered by it.
    #[inline]
    pub fn bool(&mut self) -> Result<bool> {
        Ok(self.u32()? != 0)
    }

    /// Fixed-length opaque data. Its roundup bytes are skipped, whatever their values.
    #[inline]
    pub fn opaque_fixed(&mut self, len: usize) -> Result<&'a [u8]> {
        Ok(&self.take(roundup(len))?[..len])
    }

    /// Takes the length of an item of at most `bound` bytes or elements.
    #[inline]
    fn length(&mut self, what: &'static str, bound: usize) -> Result<usize> {
        let length = self.u32()? as usize;
        if length > bound {
            return Err(DecodeError::TooLong {
                what,
                length,
                bound,
            });
        }
        Ok(length)
    }

    /// Variable-length opaque data of at most `bound` bytes.
    #[inline]
    pub fn opaque(&mut self, what: &'static str, bound: usize) -> Result<&'a [u8]> {
        let length = self.length(what, bound)?;
        self.opaque_fixed(length)
    }

    /// A variable-length array (RFC 4506 section 4.13) of at most `bound` unsigned integers.
    pub fn integers<C: FromIterator<u32>>(
        &mut self,
        what: &'static str,
        bound: usize,
    ) -> Result<C> {
        let length = self.length(what, bound)?;
        (0..length).map(|_| self.u32()).collect()
    }

    /// A DDP-eligible item of at most `bound` bytes.
    pub fn payload(&mut self, what: &'static str, bound: usize) -> Result<Payload<'a>> {
        match self.placed.take() {
            None => Ok(Payload::Inline(self.opaque(what, bound)?)),
            Some(placed) => {
                let length = self.length(what, bound)?;
                // According to RFC 8166 section 3.4.6.2 the chunk has the length of the item.
                // NFS-Ganesha (ntirpc 6.3) adds the remainder of the length by four to it, and as
                // many bytes, so the item's own length is used. A chunk shorter than its item is
                // never accepted.
                match (placed as usize).checked_sub(length) {
                    Some(0..=3) => Ok(Payload::Placed(length as u32)),
                    _ => Err(DecodeError::Inconsistent(
                        "the chunk's length differs from the item's",
                    )),
                }
            }
        }
    }

    /// Optional data (RFC 4506 section 4.19).
    pub fn option<T: Decode<'a>>(&mut self) -> Result<Option<T>> {
        Ok(match self.bool()? {
            false => None,
            true => Some(T::decode(self)?),
        })
    }

    /// A linked list (RFC 4506 section 4.19). Before items are taken from the received bytes, it
    /// takes no more memory than they do.
    pub fn list<T: Decode<'a>>(&mut self) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while self.bool()? {
            if items.is_empty() {
                items.reserve(self.remaining() / size_of::<T>().max(1));
            }
            items.push(T::decode(self)?);
        }
        Ok(items)
    }

    //= RFC 8166, Section 6.1
    //# The Requester MUST terminate the pending RPC transaction and report an appropriate permanent
    //# error to the RPC consumer.
    /// Returns an error if bytes remain, or if bytes were placed for an item that is missing. An
    /// unused chunk, with no bytes, may remain (RFC 8166 section 4.3.2.2).
    pub fn finish(self) -> Result<()> {
        if self.placed.is_some_and(|placed| placed > 0) {
            return Err(DecodeError::Inconsistent(
                "a chunk holds bytes of no item in the message",
            ));
        }
        match self.remaining() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}

/// A type that has an XDR form.
pub trait Encode {
    /// Appends the XDR form of the value.
    fn encode(&self, to: &mut Encoder);

    /// The XDR form of the value alone.
    fn to_xdr(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        self.encode(&mut encoder);
        encoder.into_vec()
    }
}

/// A type that can be decoded from its XDR form; names and data are borrowed from it.
pub trait Decode<'a>: Sized {
    /// Takes a value from the front of the bytes.
    fn decode(from: &mut Decoder<'a>) -> Result<Self>;

    /// Decodes a value that is all of `bytes`.
    fn from_xdr(bytes: &'a [u8]) -> Result<Self> {
        let mut decoder = Decoder::new(bytes);
        let value = Self::decode(&mut decoder)?;
        decoder.finish()?;
        Ok(value)
    }
}

impl Encode for u32 {
    fn encode(&self, to: &mut Encoder) {
        to.u32(*self);
    }
}

impl Decode<'_> for u32 {
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        from.u32()
    }
}

impl Encode for u64 {
    fn encode(&self, to: &mut Encoder) {
        to.u64(*self);
    }
}

impl Decode<'_> for u64 {
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        from.u64()
    }
}

impl Encode for bool {
    fn encode(&self, to: &mut Encoder) {
        to.bool(*self);
    }
}

impl Decode<'_> for bool {
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        from.bool()
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, to: &mut Encoder) {
        to.option(self.as_ref());
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self> {
        from.option()
    }
}

/// A borrowed string or opaque of at most `MAX` bytes. Encoding does not check the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Text<'a, const MAX: usize>(pub &'a [u8]);

impl<const MAX: usize> Encode for Text<'_, MAX> {
    fn encode(&self, to: &mut Encoder) {
        to.opaque(self.0);
    }
}

impl<'a, const MAX: usize> Decode<'a> for Text<'a, MAX> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self> {
        Ok(Text(from.opaque("string", MAX)?))
    }
}

/// Declares a struct whose XDR form is its fields in order.
macro_rules! xdr_struct {
    ($(#[$meta:meta])* $name:ident $(<$life:lifetime>)? { $($(#[$fmeta:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name $(<$life>)? { $($(#[$fmeta])* pub $field: $ty,)* }

        impl $(<$life>)? $crate::codec::Encode for $name $(<$life>)? {
            fn encode(&self, to: &mut $crate::codec::Encoder) {
                let _ = &to;
                $($crate::codec::Encode::encode(&self.$field, to);)*
            }
        }

        $crate::codec::xdr_struct!(@decode $name $(<$life>)? { $($field,)* });
    };
    (@decode $name:ident <$life:lifetime> { $($field:ident,)* }) => {
        impl<$life> $crate::codec::Decode<$life> for $name<$life> {
            fn decode(from: &mut $crate::codec::Decoder<$life>) -> $crate::codec::Result<Self> {
                let _ = &from;
                Ok($name { $($field: $crate::codec::Decode::decode(from)?,)* })
            }
        }
    };
    (@decode $name:ident { $($field:ident,)* }) => {
        impl<'de> $crate::codec::Decode<'de> for $name {
            fn decode(from: &mut $crate::codec::Decoder<'de>) -> $crate::codec::Result<Self> {
                let _ = &from;
                Ok($name { $($field: $crate::codec::Decode::decode(from)?,)* })
            }
        }
    };
}

/// Declares an enumeration with the values of its XDR definition. All other values are errors, or
/// the variant after `or`.
macro_rules! xdr_enum {
    (@other $name:ident $other:ident $value:ident) => { Ok($name::$other) };
    (@other $name:ident $value:ident) => {
        Err($crate::codec::DecodeError::Undefined { what: stringify!($name), value: $value })
    };
    ($(#[$meta:meta])* $name:ident $(or $other:ident)? { $($(#[$vmeta:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant = $value,)* }

        impl $name {
            /// Every value of the definition.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name of the value in this crate.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => stringify!($variant),)* }
            }
        }

        impl TryFrom<u32> for $name {
            type Error = $crate::codec::DecodeError;
            fn try_from(value: u32) -> $crate::codec::Result<Self> {
                match value {
                    $($value => Ok($name::$variant),)*
                    value => {
                        let _ = value;
                        $crate::codec::xdr_enum!(@other $name $($other)? value)
                    }
                }
            }
        }

        impl $crate::codec::Encode for $name {
            fn encode(&self, to: &mut $crate::codec::Encoder) {
                to.u32(*self as u32);
            }
        }

        impl<'de> $crate::codec::Decode<'de> for $name {
            fn decode(from: &mut $crate::codec::Decoder<'de>) -> $crate::codec::Result<Self> {
                $name::try_from(from.u32()?)
            }
        }
    };
}

pub(crate) use {xdr_enum, xdr_struct};

#[cfg(test)]
mod tests;
