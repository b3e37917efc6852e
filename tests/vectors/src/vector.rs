//! The text form of vectors.

/// The sender of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The requester, which connected.
    Client,
    /// The responder.
    Server,
}

/// One MPA frame or FPDU with its dissection.
#[derive(Debug, Clone)]
pub struct Vector {
    /// The kind of message; not unique.
    pub name: String,
    /// Its sender.
    pub from: Side,
    /// Whether the connection has CRCs.
    pub crc: bool,
    /// The NFSv3 procedure of the message, if it has a transport header.
    pub procedure: Option<u32>,
    /// The bytes of the frame, including padding and CRC field.
    pub bytes: Vec<u8>,
    /// tshark's names and values, in the order of the wire.
    pub fields: Vec<(String, String)>,
}

/// Parses a file of vectors. The error names the line.
pub fn parse(text: &str) -> Result<Vec<Vector>, String> {
    let mut vectors: Vec<Vector> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |what: &str| format!("line {}: {what}: {line}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once(' ').ok_or_else(|| wrong("no value"))?;
        if key == "vector" {
            vectors.push(Vector {
                name: value.to_owned(),
                from: Side::Client,
                crc: false,
                procedure: None,
                bytes: Vec::new(),
                fields: Vec::new(),
            });
            continue;
        }
        let vector = vectors.last_mut().ok_or_else(|| wrong("no vector yet"))?;
        match key {
            "from" => {
                vector.from = match value {
                    "client" => Side::Client,
                    "server" => Side::Server,
                    _ => return Err(wrong("no side")),
                }
            }
            "crc" => vector.crc = value == "on",
            "procedure" => {
                vector.procedure = Some(value.parse().map_err(|_| wrong("no number"))?);
            }
            "bytes" => vector
                .bytes
                .extend(from_hex(value).ok_or_else(|| wrong("no hexadecimal bytes"))?),
            _ => vector.fields.push((key.to_owned(), value.to_owned())),
        }
    }
    Ok(vectors)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}
