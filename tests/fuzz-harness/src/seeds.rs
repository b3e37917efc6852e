//! Initial inputs, made from the captures in `tests/vectors` and from the tables of options and
//! procedures.

use nfsrdma::kerberos::protocol::{Answer, Request, Secret};
use nfsrdma::options::table;
use nfsrdma_xdr::codec::Encode;
use std::path::Path;

/// The lengths of the MPA length field and of the longer DDP header.
const BEFORE_MESSAGE: usize = 2 + 18;
/// The length of an RPC-over-RDMA header without chunks.
const EMPTY_HEADER: usize = 28;

/// The frames of the captures.
pub fn frames() -> std::io::Result<Vec<Vec<u8>>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/data");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(data)? {
        let text = std::fs::read_to_string(entry?.path())?;
        let vectors = nfsrdma_vectors::parse(&text).map_err(std::io::Error::other)?;
        all.extend(vectors.into_iter().map(|vector| vector.bytes));
    }
    Ok(all)
}

/// The initial inputs of the target `name`.
pub fn of(name: &str) -> std::io::Result<Vec<Vec<u8>>> {
    let with = |first: &[u8], frame: &[u8]| [first, frame].concat();
    let mut all = Vec::new();
    for frame in frames()? {
        let message = frame.get(BEFORE_MESSAGE..).unwrap_or_default();
        let rpc = message.get(EMPTY_HEADER..).unwrap_or_default();
        match name {
            "xdr" => all.extend([message.to_vec(), rpc.to_vec()]),
            "handshake" if frame.starts_with(b"MPA ID Re") => {
                all.extend([with(&[0xff], &frame), with(&[7], &frame)]);
            }
            "stream" if !frame.starts_with(b"MPA ID Re") => {
                // Few captures have CRCs. Use both roles, whole and in pieces.
                all.extend([0xf4, 0xf5, 0xf6, 0x0c].map(|mode| with(&[mode], &frame)));
            }
            "secured" => all.extend([0x00, 0x01, 0x11, 0x22].map(|kind| with(&[kind], rpc))),
            _ => {}
        }
    }
    match name {
        // Each operation with numbers, with names after them, and with names only.
        "fuse" => {
            for code in nfsrdma_channel::abi::opcode::ALL {
                for numbers in [0usize, 8, 16, 24, 40, 88] {
                    let mut input = vec![*code as u8];
                    input.resize(1 + numbers, 0);
                    if let Some(length) = input.get_mut(17) {
                        *length = 4;
                    }
                    input.extend(b"name\0new name\0");
                    all.push(input);
                }
            }
        }
        "mount" => {
            all.push(b"server:/export /mnt nfsrdma rw,hard,nconnect=2 0 0\n[::1]:/a%20b".to_vec());
            all.push(b"nfs://server:20049/x /m\\040t nfsrdma ro,soft,timeo=600,x-a=b 0 0".to_vec());
            all.push(b"36 35 98:0 /m /mnt rw - fuse.nfsrdma srv:/x rw,user_id=0".to_vec());
            for (name, _) in table::names() {
                all.push(name.as_bytes().to_vec());
                all.extend(["3", "all", "1M", "rdma6"].map(|v| format!("{name}={v}").into()));
            }
        }
        // Each encryption type and use, with few and many bytes.
        "tokens" => {
            for kind in 0..16u8 {
                let ascending: Vec<u8> = (0..100).collect();
                all.extend([1, 20, 45, 80].map(|len| with(&[kind], &ascending[..len])));
                // The header of an encrypted message from the acceptor.
                let header = [5, 4, 7, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
                let token = [&header, &ascending[..48], &header, &[0; 24]].concat();
                all.push(with(&[kind], &token));
            }
        }
        // Each use and service, and the number of the call.
        "secured" => {
            for kind in 0..48u8 {
                all.push(with(&[kind], &[&[0, 0, 0, 9], &[7u8; 40][..]].concat()));
            }
        }
        "helper" => {
            let empty = Request::default();
            let full = Request {
                target: "nfs@server".into(),
                keytab: "/etc/krb5.keytab".into(),
                directories: vec!["/tmp".into(), "/run/user/1000".into()],
                ..empty.clone()
            };
            all.extend([empty.to_xdr(), full.to_xdr()]);
            all.push(Answer::Token(Secret(vec![1; 30])).to_xdr());
            all.push(Answer::Context(Secret(vec![2; 60])).to_xdr());
            all.push([0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 4, b'n', b'o', b'n', b'e'].to_vec());
        }
        "stream" => {
            // Each kind of segment after each kind of work of this side, in each mode.
            for mode in 0..4u8 {
                for work in 0..5u8 {
                    for kind in 0..8u8 {
                        let head = [mode | 0xf8, 0, work, 3, 5, kind, 40, kind];
                        all.push([&head[..], &[0; 6]].concat());
                    }
                }
            }
        }
        _ => {}
    }
    Ok(all)
}
