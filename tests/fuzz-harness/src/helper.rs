//! What the serving process and a user's helper tell each other about a Kerberos context.

use nfsrdma::kerberos::protocol::{Answer, Request};
use nfsrdma_xdr::codec::{Decode, Encode};

/// Decodes a message of each side. What was decoded can be encoded and decoded again.
pub fn helper(bytes: &[u8]) {
    if let Ok(answer) = Answer::from_xdr(bytes) {
        assert_eq!(Answer::from_xdr(&answer.to_xdr()), Ok(answer));
    }
    if let Ok(request) = Request::from_xdr(bytes) {
        assert_eq!(Request::from_xdr(&request.to_xdr()), Ok(request));
    }
}
