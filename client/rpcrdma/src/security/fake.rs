//! A mechanism for tests: its MICs are sums, and it hides a message by turning its bits.

use nfsrdma_rpcrdma::security::{Broken, SecurityContext, Service};
use std::ops::Range;
use std::time::SystemTime;

/// Both sides have a fake of the same key.
#[derive(Debug, Clone)]
pub struct Fake {
    pub handle: Vec<u8>,
    pub key: u64,
    pub service: Service,
    pub window: u32,
    pub expires: Option<SystemTime>,
    /// Whether this is the server's side.
    pub acceptor: bool,
}

const MIC: usize = 28;
const HEAD: usize = 32;
const OVERHEAD: usize = HEAD + MIC;

impl Fake {
    pub fn new(key: u64, service: Service) -> Self {
        Fake {
            handle: key.to_be_bytes().to_vec(),
            key,
            service,
            window: 128,
            expires: None,
            acceptor: false,
        }
    }

    pub fn server(&self) -> Self {
        Fake {
            acceptor: true,
            ..self.clone()
        }
    }

    fn sum(&self, acceptor: bool, pieces: &[&[u8]]) -> [u8; MIC] {
        let mut sum = self.key ^ u64::from(acceptor) << 63;
        for byte in pieces.iter().flat_map(|piece| piece.iter()) {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let mut mic = [0xff; MIC];
        mic[20..].copy_from_slice(&sum.to_be_bytes());
        mic
    }
}

impl SecurityContext for Fake {
    fn handle(&self) -> &[u8] {
        &self.handle
    }

    fn service(&self) -> Service {
        self.service
    }

    fn window(&self) -> u32 {
        self.window
    }

    fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    fn mic_len(&self) -> usize {
        MIC
    }

    fn wrap_overhead(&self) -> usize {
        OVERHEAD
    }

    fn mic(&self, message: &[&[u8]], mic: &mut [u8]) -> Result<(), Broken> {
        mic.copy_from_slice(&self.sum(self.acceptor, message));
        Ok(())
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> bool {
        *mic == self.sum(!self.acceptor, &[message])
    }

    fn wrap(&self, message: &[&[u8]], wrapped: &mut [u8]) -> Result<(), Broken> {
        let mut at = HEAD;
        for byte in message.iter().flat_map(|piece| piece.iter()) {
            wrapped[at] = !byte;
            at += 1;
        }
        wrapped[..HEAD].fill(self.key as u8);
        wrapped[at..].copy_from_slice(&self.sum(self.acceptor, message));
        Ok(())
    }

    fn unwrap(&self, wrapped: &mut [u8]) -> Option<Range<usize>> {
        let at = HEAD..wrapped.len().checked_sub(MIC).filter(|end| *end >= HEAD)?;
        if wrapped[..HEAD] != [self.key as u8; HEAD] {
            return None;
        }
        wrapped[at.clone()]
            .iter_mut()
            .for_each(|byte| *byte = !*byte);
        self.verify(&wrapped[at.clone()], &wrapped[at.end..])
            .then_some(at)
    }
}
