//! What the loopback itself does: plain TCP with messages of the sizes the file system sends.

use anyhow::{Result, anyhow};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// Two ends of a connection over loopback.
fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let far = listener.accept()?.0;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// One direction, in pieces of 1 MiB: MB/s.
pub(crate) fn stream(bytes: u64) -> Result<f64> {
    let (mut near, mut far) = pair()?;
    let sender = std::thread::spawn(move || -> Result<()> {
        let piece = vec![1; 1 << 20];
        for _ in 0..bytes >> 20 {
            near.write_all(&piece)?;
        }
        Ok(())
    });
    let mut piece = vec![0; 1 << 20];
    let begin = Instant::now();
    let mut total = 0u64;
    loop {
        match far.read(&mut piece)? {
            0 => break,
            n => total += n as u64,
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    sender
        .join()
        .map_err(|_| anyhow!("the sender panicked"))??;
    Ok(total as f64 / 1e6 / seconds)
}

/// A small request and an answer of `answer` bytes, one at a time: round trips per second.
pub(crate) fn ping_pong(request: usize, answer: usize, rounds: u64) -> Result<f64> {
    let (mut near, mut far) = pair()?;
    let server = std::thread::spawn(move || -> Result<()> {
        let mut question = vec![0; request];
        let reply = vec![2; answer];
        for _ in 0..rounds {
            far.read_exact(&mut question)?;
            far.write_all(&reply)?;
        }
        Ok(())
    });
    let question = vec![1; request];
    let mut reply = vec![0; answer];
    let begin = Instant::now();
    for _ in 0..rounds {
        near.write_all(&question)?;
        near.read_exact(&mut reply)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    server
        .join()
        .map_err(|_| anyhow!("the server panicked"))??;
    Ok(rounds as f64 / seconds)
}
