//! The threads that read and write streams, and the buffers between them and the loop.
//!
//! These threads are never joined: a thread that blocks in a pipe ends with the process.

use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use io::{Io, Owner, Token, Waker};

/// Buffers per stream, of one chunk each.
const BUFFERS: usize = 4;
/// Pause between two attempts at a stream that is in non-blocking mode.
const PAUSE: Duration = Duration::from_millis(1);

/// The loop's end of a thread that reads a stream.
pub(super) struct Inlet {
    full: Receiver<std::io::Result<(Vec<u8>, usize)>>,
    empty: Sender<Vec<u8>>,
    /// The buffer of the last [`Inlet::next`].
    here: Vec<u8>,
    /// Owner of the events that announce full buffers.
    pub(super) owner: Owner,
}

impl Inlet {
    /// Starts to read: drops `skip` bytes, then takes `most` bytes, or all, in buffers of `chunk` bytes.
    pub(super) fn start(
        io: &mut Io,
        reader: Box<dyn Read + Send>,
        chunk: usize,
        skip: u64,
        most: Option<u64>,
    ) -> std::io::Result<Self> {
        let owner = io.owner();
        let waker = io.waker(Token { owner, key: 0 })?;
        let ((empty, empties), (fulls, full)) = (channel(), channel());
        for _ in 0..BUFFERS {
            empty.send(vec![0; chunk]).expect("the other end is here");
        }
        let read = move || read_all(reader, &empties, &fulls, &waker, skip, most);
        std::thread::Builder::new().name("stream-in".to_owned()).spawn(read)?;
        Ok(Self { full, empty, here: Vec::new(), owner })
    }

    /// Bytes in the next buffer, if one is full; fewer bytes than a chunk are the last.
    pub(super) fn next(&mut self) -> Option<std::io::Result<usize>> {
        match self.full.try_recv() {
            Ok(Ok((buffer, length))) => {
                self.here = buffer;
                Some(Ok(length))
            }
            Ok(Err(error)) => Some(Err(error)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(ErrorKind::BrokenPipe.into())),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.here
    }

    pub(super) fn give_back(&mut self) {
        // A thread that has reached the end does not receive it.
        let _ = self.empty.send(std::mem::take(&mut self.here));
    }
}

fn read_all(
    mut reader: Box<dyn Read + Send>,
    empties: &Receiver<Vec<u8>>,
    fulls: &Sender<std::io::Result<(Vec<u8>, usize)>>,
    waker: &Waker,
    skip: u64,
    most: Option<u64>,
) {
    let mut left = most.unwrap_or(u64::MAX);
    let mut to_skip = skip;
    for mut buffer in empties {
        while to_skip > 0 {
            let part = to_skip.min(buffer.len() as u64) as usize;
            match fill(&mut reader, &mut buffer[..part]) {
                Ok(read) if read == part => to_skip -= part as u64,
                Ok(read) => {
                    let has = skip - to_skip + read as u64;
                    let text = format!("it ends after {has} bytes, before its byte {skip}");
                    let _ = fulls.send(Err(std::io::Error::new(ErrorKind::UnexpectedEof, text)));
                    return waker.wake();
                }
                Err(error) => {
                    let _ = fulls.send(Err(error));
                    return waker.wake();
                }
            }
        }
        let length = left.min(buffer.len() as u64) as usize;
        let result = fill(&mut reader, &mut buffer[..length]);
        let ends = !matches!(result, Ok(read) if read == buffer.len());
        left -= *result.as_ref().unwrap_or(&0) as u64;
        // The loop may have ended.
        let _ = fulls.send(result.map(|read| (buffer, read)));
        waker.wake();
        if ends {
            return;
        }
    }
}

/// Reads until `into` is full or the stream ends; returns the bytes read.
fn fill(reader: &mut dyn Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut at = 0;
    while at < into.len() {
        match reader.read(&mut into[at..]) {
            Ok(0) => break,
            Ok(read) => at += read,
            Err(error) => again(error)?,
        }
    }
    Ok(at)
}

/// Whether a read or write may be retried after an error; otherwise returns the error.
fn again(error: std::io::Error) -> std::io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock => {
            std::thread::sleep(PAUSE);
            Ok(())
        }
        _ => Err(error),
    }
}

/// The loop's end of a thread that writes a stream.
pub(super) struct Outlet {
    full: Sender<Vec<u8>>,
    empty: Receiver<std::io::Result<Vec<u8>>>,
    spare: Vec<Vec<u8>>,
    /// Bytes that the stream has accepted.
    pub(super) written: u64,
    pub(super) owner: Owner,
}

impl Outlet {
    pub(super) fn start(
        io: &mut Io,
        mut writer: Box<dyn Write + Send>,
        chunk: usize,
    ) -> std::io::Result<Self> {
        let owner = io.owner();
        let waker = io.waker(Token { owner, key: 0 })?;
        let ((full, fulls), (empties, empty)) = (channel::<Vec<u8>>(), channel());
        let write = move || {
            for buffer in fulls {
                let result = write_all(&mut *writer, &buffer);
                let failed = result.is_err();
                let _ = empties.send(result.map(|()| buffer));
                waker.wake();
                if failed {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("stream-out".to_owned()).spawn(write)?;
        let spare = (0..BUFFERS).map(|_| Vec::with_capacity(chunk)).collect();
        Ok(Self { full, empty, spare, written: 0, owner })
    }

    pub(super) fn look(&mut self) -> std::io::Result<()> {
        while let Ok(buffer) = self.empty.try_recv() {
            let buffer = buffer?;
            self.written += buffer.len() as u64;
            self.spare.push(buffer);
        }
        Ok(())
    }

    /// A free buffer, to be filled and passed to the thread.
    pub(super) fn buffer(&mut self) -> Option<Vec<u8>> {
        self.spare.pop()
    }

    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        // A thread that has failed has reported its error.
        let _ = self.full.send(buffer);
    }

    pub(super) fn is_busy(&self) -> bool {
        self.spare.len() < BUFFERS
    }
}

fn write_all(writer: &mut dyn Write, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match writer.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) => again(error)?,
        }
    }
    loop {
        match writer.flush() {
            Ok(()) => return Ok(()),
            Err(error) => again(error)?,
        }
    }
}
