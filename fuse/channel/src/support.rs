//! What fuzzing and property tests run.

use super::operation::Operation;
use super::request::Request;

/// Decodes any bytes as a request, and takes all of what it gives.
pub fn decode(bytes: &[u8]) {
    let Ok(request) = Request::parse(bytes) else {
        return;
    };
    if let Operation::BatchForget(forgets) = request.operation {
        let count = forgets.count();
        assert!(count * 16 <= bytes.len());
    }
    let shown = format!("{request:?}");
    assert!(!shown.is_empty());
    // What was read again is the same.
    assert_eq!(Request::parse(bytes), Ok(request));
}
