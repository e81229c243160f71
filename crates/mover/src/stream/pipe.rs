//! The threads that read and write streams, and the buffers between them and the loop.
//!
//! Nobody waits for such a thread: one that is stuck in a pipe ends with the process.

use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use io::{Io, Owner, Token, Waker};

/// Buffers of one chunk for each stream.
const BUFFERS: usize = 4;
/// Between two attempts at a stream that somebody has made non-blocking.
const PAUSE: Duration = Duration::from_millis(1);

/// What a thread reads.
pub(super) struct Inlet {
    full: Receiver<std::io::Result<(Vec<u8>, usize)>>,
    empty: Sender<Vec<u8>>,
    /// The buffer that the last [`Inlet::next`] was about.
    here: Vec<u8>,
    /// Whose events say that there may be something.
    pub(super) owner: Owner,
}

impl Inlet {
    /// Begins to read: drops `skip` bytes, then takes `most`, or all, in buffers of `chunk` bytes.
    pub(super) fn start(
        io: &mut Io,
        reader: Box<dyn Read + Send>,
        chunk: usize,
        skip: u64,
        most: Option<u64>,
    ) -> std::io::Result<Self> {
        let owner = io.owner();
        let bell = io.waker(Token { owner, key: 0 })?;
        let ((empty, empties), (fulls, full)) = (channel(), channel());
        for _ in 0..BUFFERS {
            empty.send(vec![0; chunk]).expect("the other end is here");
        }
        let read = move || read_all(reader, &empties, &fulls, &bell, skip, most);
        std::thread::Builder::new().name("stream-in".to_owned()).spawn(read)?;
        Ok(Self { full, empty, here: Vec::new(), owner })
    }

    /// Bytes in the next buffer, if there is one; fewer than a chunk are the last.
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

    /// Of the buffer that came last.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.here
    }

    /// That buffer may be filled again.
    pub(super) fn give_back(&mut self) {
        // A thread that has reached the end takes no more.
        let _ = self.empty.send(std::mem::take(&mut self.here));
    }
}

fn read_all(
    mut reader: Box<dyn Read + Send>,
    empties: &Receiver<Vec<u8>>,
    fulls: &Sender<std::io::Result<(Vec<u8>, usize)>>,
    bell: &Waker,
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
                    return bell.wake();
                }
                Err(error) => {
                    let _ = fulls.send(Err(error));
                    return bell.wake();
                }
            }
        }
        let wanted = left.min(buffer.len() as u64) as usize;
        let result = fill(&mut reader, &mut buffer[..wanted]);
        let ends = !matches!(result, Ok(read) if read == buffer.len());
        left -= *result.as_ref().unwrap_or(&0) as u64;
        // The loop may have gone.
        let _ = fulls.send(result.map(|read| (buffer, read)));
        bell.wake();
        if ends {
            return;
        }
    }
}

/// Reads until `into` is full or the stream ends; the bytes read.
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

/// Whether to go on after an error.
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

/// What a thread writes.
pub(super) struct Outlet {
    full: Sender<Vec<u8>>,
    empty: Receiver<std::io::Result<Vec<u8>>>,
    spare: Vec<Vec<u8>>,
    /// Bytes that the stream has taken.
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
        let bell = io.waker(Token { owner, key: 0 })?;
        let ((full, fulls), (empties, empty)) = (channel::<Vec<u8>>(), channel());
        let write = move || {
            for buffer in fulls {
                let result = write_all(&mut *writer, &buffer);
                let failed = result.is_err();
                let _ = empties.send(result.map(|()| buffer));
                bell.wake();
                if failed {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("stream-out".to_owned()).spawn(write)?;
        let spare = (0..BUFFERS).map(|_| Vec::with_capacity(chunk)).collect();
        Ok(Self { full, empty, spare, written: 0, owner })
    }

    /// Takes back what was written.
    pub(super) fn look(&mut self) -> std::io::Result<()> {
        while let Ok(buffer) = self.empty.try_recv() {
            let buffer = buffer?;
            self.written += buffer.len() as u64;
            self.spare.push(buffer);
        }
        Ok(())
    }

    /// A buffer to be filled and given.
    pub(super) fn buffer(&mut self) -> Option<Vec<u8>> {
        self.spare.pop()
    }

    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        // A thread that has failed said so.
        let _ = self.full.send(buffer);
    }

    /// Whether something is still to be written.
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
