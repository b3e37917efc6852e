//! Functions that fuzzing and property tests run.

use super::operation::Operation;
use super::request::{self, Request};

/// Decodes any bytes as a request, and uses all of the result.
pub fn decode(bytes: &[u8]) {
    let Ok(request) = Request::parse(bytes) else {
        return;
    };
    if let Operation::BatchForget { nodes } = request.operation {
        let count = nodes.count();
        assert!(count * 16 <= bytes.len());
    }
    let shown = format!("{request:?}");
    assert!(!shown.is_empty());
    assert_eq!(Request::parse(bytes), Ok(request));
    if let Some(head) = bytes.first_chunk()
        && let Some((header, to)) = request::parse_write(head, bytes.len())
    {
        let data = &bytes[head.len()..];
        assert_eq!(request.header, header);
        assert_eq!(request.operation, Operation::Write { to, data });
    }
}
