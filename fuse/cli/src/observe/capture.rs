//! The command `capture`: writes messages from the stream of [`frame`] to a pcapng file.

use super::frame::{self, FRAME_MAX, Frame};
use super::packet::{Conversation, Packet};
use super::{GREETING, capture_request};
use crate::cli::CaptureArgs;
use crate::failure::{Exit, Failure};
use crate::ipc::client;
use crate::mounts::Mount;
use crate::output;
use crate::user_file;
use nfsrdma_rpcrdma::words::counted;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};
use rustix::fs::{FsWord, OFlags, fstatfs, major, minor, statfs};
use rustix::process::geteuid;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{Metadata, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// The unit of time stamps: ten to the power of minus nine seconds.
const RESOLUTION: u8 = 9;

/// The file system of pipes without a name (`PIPEFS_MAGIC` of linux/magic.h).
const PIPEFS: FsWord = 0x5049_5045;

/// A writer that counts the bytes written.
struct Counting<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The state of the recording.
struct Recorder<W: Write> {
    file: PcapNgWriter<Counting<W>>,
    conversations: HashMap<u64, Conversation>,
    packets: u64,
    messages: u64,
    /// The number of lost events, in all and before the last packet.
    lost: u64,
    lost_before: u64,
    /// The limits that the user gave.
    packets_max: u64,
    bytes_max: u64,
}

impl<W: Write> Recorder<W> {
    fn new(to: W, args: &CaptureArgs) -> Result<Self, PcapError> {
        let name = |text: &'static str| Cow::Borrowed(text);
        let section = SectionHeaderBlock {
            endianness: Endianness::native(),
            options: vec![
                SectionHeaderOption::UserApplication(name(GREETING)),
                SectionHeaderOption::Comment(name(
                    "RPC-over-RDMA messages as iWARP over TCP; TCP, MPA, RDMA Read and RDMA \
                     Write are made from what was said, not seen on a wire",
                )),
            ],
            ..SectionHeaderBlock::default()
        };
        let to = Counting {
            inner: to,
            bytes: 0,
        };
        let mut file = PcapNgWriter::with_section_header(to, section)?;
        file.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(name("nfsrdma")),
                InterfaceDescriptionOption::IfTsResol(RESOLUTION),
            ],
        })?;
        Ok(Recorder {
            file,
            conversations: HashMap::new(),
            packets: 0,
            messages: 0,
            lost: 0,
            lost_before: 0,
            packets_max: args.packets.unwrap_or(u64::MAX),
            bytes_max: args.size.unwrap_or(u64::MAX),
        })
    }

    /// Whether the recording has reached one of its limits.
    fn is_full(&self) -> bool {
        self.packets >= self.packets_max || self.file.get_ref().bytes >= self.bytes_max
    }

    fn event(&mut self, frame: &Frame) -> Result<(), PcapError> {
        let packets = match frame {
            Frame::Connected(connected) => {
                let mut conversation = Conversation::new(connected);
                let packets = conversation.take();
                self.conversations
                    .insert(connected.connection, conversation);
                packets
            }
            Frame::Disconnected { connection, time } => {
                match self.conversations.remove(connection) {
                    Some(mut conversation) => {
                        conversation.end(*time);
                        conversation.take()
                    }
                    None => Vec::new(),
                }
            }
            Frame::Outgoing(out) => {
                let Some(conversation) = self.conversations.get_mut(&out.connection) else {
                    return Ok(());
                };
                self.messages += 1;
                conversation.outgoing(out.time, &out.message);
                conversation.take()
            }
            Frame::Incoming(incoming) => {
                let Some(conversation) = self.conversations.get_mut(&incoming.connection) else {
                    return Ok(());
                };
                self.messages += 1;
                conversation.incoming(incoming);
                conversation.take()
            }
            Frame::Lost(events) => {
                self.lost += events;
                self.lost_before += events;
                Vec::new()
            }
            Frame::End => Vec::new(),
        };
        for packet in packets {
            if !self.is_full() {
                self.packet(packet)?;
            }
        }
        Ok(())
    }

    fn packet(&mut self, packet: Packet) -> Result<(), PcapError> {
        let mut options = Vec::new();
        if let Some(comment) = packet.comment {
            options.push(EnhancedPacketOption::Comment(comment.into()));
        }
        let lost = std::mem::take(&mut self.lost_before);
        if lost > 0 {
            options.push(EnhancedPacketOption::DropCount(lost));
        }
        self.file.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: packet
                .time
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default(),
            original_len: packet.length as u32,
            data: packet.bytes.into(),
            options,
        })?;
        self.packets += 1;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.get_mut().flush()
    }
}

/// Why the recording ended.
enum CaptureEnd {
    /// A limit was reached, or a signal came.
    Enough,
    Mount,
    /// The reader closed the pipe.
    Reader,
}

pub(crate) fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let system = |error: io::Error| Failure::new(Exit::System, error.to_string());
    let mount = client::mount(&args.dir)?;
    let limit = args.snaplen.map_or(FRAME_MAX / 4, |limit| limit as usize);
    let stream = client::connect(&args.dir, &mount, &capture_request(limit))?;
    stream.set_nonblocking(true).map_err(system)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system)?;
    runtime.block_on(async {
        let stream = tokio::net::UnixStream::from_std(stream).map_err(system)?;
        let mut input = Input {
            stream,
            bytes: Vec::new(),
            at: 0,
        };
        input.greeting(&args.dir).await?;
        let to = create(&args.file, &mount)?;
        record(args, input, to).await
    })
}

/// The stream of events.
struct Input {
    stream: tokio::net::UnixStream,
    bytes: Vec<u8>,
    /// The position up to which the bytes are used.
    at: usize,
}

impl Input {
    /// Reads more bytes; false at the end of the stream. It is cancel-safe.
    async fn more(&mut self) -> bool {
        self.bytes.drain(..self.at);
        self.at = 0;
        matches!(self.stream.read_buf(&mut self.bytes).await, Ok(n) if n > 0)
    }

    async fn greeting(&mut self, dir: &Path) -> Result<(), Failure> {
        while !self.bytes.contains(&b'\n') && self.bytes.len() < 1024 && self.more().await {}
        let line = self.bytes.split(|&byte| byte == b'\n').next();
        let line = line.unwrap_or_default().to_vec();
        client::refusal(dir, &line)?;
        if self.bytes.is_empty() {
            return Err(client::gone(dir));
        }
        if line != GREETING.as_bytes() {
            return Err(client::other_version(dir, "it greets otherwise"));
        }
        self.at = line.len() + 1;
        Ok(())
    }

    /// The next event, if it has been received completely.
    fn next(&mut self) -> Result<Option<Frame>, frame::FrameError> {
        let Some((frame, used)) = frame::split(&self.bytes[self.at..])? else {
            return Ok(None);
        };
        let frame = frame::decode(frame)?;
        self.at += used;
        Ok(Some(frame))
    }
}

/// The error for a file that cannot be written. The crate says "Error reading bytes" for every
/// error of a file, so this uses the system's own text.
fn unwritable(path: &Path, error: PcapError) -> Failure {
    let why = match error {
        PcapError::IoError(error) => output::without_number(&error),
        other => other.to_string(),
    };
    let path = path.display();
    let message = format!("cannot write {path}: {why}; choose another place, or make room there");
    Failure::new(Exit::System, message)
}

/// Creates the file, readable only by its owner, because it will contain the data of other users. A file
/// that exists must not be one that somebody else has put there to read it.
fn create(path: &Path, mount: &Mount) -> Result<Box<dyn Write>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let failed = |error: io::Error| unwritable(path, PcapError::IoError(error));
    let place = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // A file on the mount itself would be recorded, and each packet would cause further ones.
    let device = place.metadata().map_err(failed)?.dev();
    if format!("{}:{}", major(device), minor(device)) == mount.device {
        return Err(Failure::usage(format!(
            "{} is on the mount it is to record: choose another place",
            path.display()
        )));
    }
    let me = geteuid().as_raw();
    // Also before it is opened, because the open of a FIFO waits for a reader.
    if let (Ok(there), Ok(place)) = (path.metadata(), statfs(path)) {
        is_safe(path, &there, place.f_type, me)?;
    }
    // What somebody else has put there stays as it is.
    let flags = OFlags::WRONLY | OFlags::CREATE;
    let file = user_file::open(path, flags, 0o600.into()).map_err(failed)?;
    let there = file.metadata().map_err(failed)?;
    let place = fstatfs(&file).map_err(|error| failed(error.into()))?;
    is_safe(path, &there, place.f_type, me)?;
    if there.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))
            .and_then(|()| file.set_len(0))
            .map_err(failed)?;
    }
    Ok(Box::new(file))
}

/// Refuses a file or FIFO of another user than `me`, who could read what is recorded. `place` is the
/// type of its file system. A pipe without a name, such as /dev/stdout may be, was handed over by whoever started
/// this program.
fn is_safe(path: &Path, there: &Metadata, place: FsWord, me: u32) -> Result<(), Failure> {
    let kind = there.file_type();
    let keeps = kind.is_file() || (kind.is_fifo() && place != PIPEFS);
    if !keeps || there.uid() == me {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} belongs to another user, who could read what is recorded: choose another place",
        path.display()
    )))
}

async fn record(args: &CaptureArgs, mut input: Input, to: Box<dyn Write>) -> Result<(), Failure> {
    let system = |error: io::Error| Failure::new(Exit::System, error.to_string());
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system)?;
    let until = args
        .seconds
        .map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let failed = |error: PcapError| unwritable(&args.file, error);
    let mut recorder = Recorder::new(BufWriter::new(to), args).map_err(failed)?;
    let end = loop {
        let written = take(&mut input, &mut recorder);
        match written.map_err(|error| error.of(&args.dir, failed))? {
            Some(end) => break end,
            None => recorder
                .flush()
                .map_err(PcapError::IoError)
                .map_err(failed)?,
        }
        tokio::select! {
            more = input.more() => if !more { return Err(client::gone(&args.dir)) },
            _ = interrupt.recv() => break CaptureEnd::Enough,
            _ = terminate.recv() => break CaptureEnd::Enough,
            () = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            } => break CaptureEnd::Enough,
        }
    };
    if let CaptureEnd::Reader = end {
        return Ok(());
    }
    recorder
        .flush()
        .map_err(PcapError::IoError)
        .map_err(failed)?;
    if let CaptureEnd::Mount = end {
        output::message("the mount ended");
    }
    output::message(format_args!(
        "{} of {} written, {} lost",
        counted(recorder.packets, "packet"),
        counted(recorder.messages, "message"),
        counted(recorder.lost, "event")
    ));
    Ok(())
}

/// An error that stopped the recording.
enum Trouble {
    File(PcapError),
    Stream(frame::FrameError),
}

impl Trouble {
    fn of(self, dir: &Path, file: impl FnOnce(PcapError) -> Failure) -> Failure {
        match self {
            Trouble::File(error) => file(error),
            Trouble::Stream(error) => client::other_version(dir, error),
        }
    }
}

/// Records the events that have been received.
fn take<W: Write>(
    input: &mut Input,
    recorder: &mut Recorder<W>,
) -> Result<Option<CaptureEnd>, Trouble> {
    while let Some(frame) = input.next().map_err(Trouble::Stream)? {
        match recorder.event(&frame) {
            Ok(()) => {}
            Err(PcapError::IoError(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(Some(CaptureEnd::Reader));
            }
            Err(error) => return Err(Trouble::File(error)),
        }
        if frame == Frame::End {
            return Ok(Some(CaptureEnd::Mount));
        }
        if recorder.is_full() {
            return Ok(Some(CaptureEnd::Enough));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::OwnedFd;

    #[test]
    fn a_fifo_of_another_user_is_refused_and_a_pipe_that_was_handed_over_is_not() {
        let me = geteuid().as_raw();
        let another = me + 1;
        let path = std::env::temp_dir().join(format!("nfsrdma-fifo-{}", std::process::id()));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o666),
            0,
        )
        .unwrap();
        let (there, place) = (path.metadata().unwrap(), statfs(&path).unwrap().f_type);
        std::fs::remove_file(&path).unwrap();
        assert!(is_safe(&path, &there, place, me).is_ok());
        assert!(is_safe(&path, &there, place, another).is_err());

        let pipe = File::from(OwnedFd::from(io::pipe().unwrap().1));
        let there = pipe.metadata().unwrap();
        let place = fstatfs(&pipe).unwrap().f_type;
        assert!(is_safe(Path::new("/dev/stdout"), &there, place, another).is_ok());
    }
}
