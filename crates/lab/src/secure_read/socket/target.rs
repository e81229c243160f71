//! The side that has the blocks.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::tls::TlsSender;
use super::{SILENCE_MAX, records};
use crate::part::{Order, Talk};
use crate::secure_read::cipher::{Meter, Sealing};
use crate::secure_read::figures::{Listening, Mark};
use crate::secure_read::shape::{Protection, Reading};
use crate::sys::Cpu;
use crate::{Attempted, LabError};

/// What a target is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SocketTarget {
    pub(crate) reading: Reading,
    /// Look what the socket holds at the beginning and end of each sealing.
    pub(crate) instrumented: bool,
    /// Where the certificate lies.
    pub(crate) folder: PathBuf,
}

/// Sends blocks, one at a time.
pub(super) trait Sender {
    /// Receives a request.
    fn request(&mut self, socket: &mut TcpStream, request: &mut [u8]) -> io::Result<()> {
        socket.read_exact(request)
    }

    /// Sends the block of this number, protected.
    fn send(&mut self, socket: &mut TcpStream, index: u64) -> io::Result<()>;
}

/// As they lie in memory.
struct Plain {
    reading: Reading,
    stored: Vec<u8>,
}

impl Sender for Plain {
    fn send(&mut self, socket: &mut TcpStream, index: u64) -> io::Result<()> {
        let start = self.reading.offset(index) as usize;
        socket.write_all(&self.stored[start..start + self.reading.block as usize])
    }
}

impl SocketTarget {
    pub(crate) fn run(self, mut talk: Talk) -> Result<(), LabError> {
        let doing = "listen on the loopback";
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).attempted(doing)?;
        let port = listener.local_addr().attempted(doing)?.port();
        talk.say(&Listening { port })?;
        let (mut socket, _) = listener.accept().attempted(doing)?;
        socket.set_nodelay(true).attempted(doing)?;
        socket.set_read_timeout(Some(SILENCE_MAX)).attempted(doing)?;
        let watched = self.instrumented.then(|| socket.try_clone()).transpose().attempted(doing)?;
        let meter = Arc::new(Meter::new(watched));
        let mut sender = self.sender(&meter).attempted("prepare what will be sent")?;
        std::thread::Builder::new()
            .name("serve".to_owned())
            .spawn(move || {
                if let Err(error) = serve(&mut socket, &mut *sender) {
                    eprintln!("the socket target ended: {error}");
                    std::process::exit(1);
                }
            })
            .attempted("start a thread")?;
        while let Some(order) = talk.next()? {
            match order {
                Order::Mark => {
                    let (sealing, hidden) = meter.seconds();
                    talk.say(&Mark { cpu: Cpu::now(), sealing, hidden })?;
                }
                Order::Go { .. } => talk.say(&())?,
            }
        }
        Ok(())
    }

    fn sender(&self, meter: &Arc<Meter>) -> io::Result<Box<dyn Sender + Send>> {
        let reading = self.reading;
        match reading.protection {
            Protection::Tls => Ok(Box::new(TlsSender::new(reading, &self.folder)?)),
            Protection::Plain => Ok(Box::new(Plain { reading, stored: reading.contents() })),
            Protection::Sealed { cipher, unit, how } => {
                let sealing = Sealing::new(cipher, Arc::clone(meter)).map_err(records::broken)?;
                records::sender(reading, how, unit, sealing)
            }
        }
    }
}

/// Answers requests until the initiator has gone.
fn serve(socket: &mut TcpStream, sender: &mut (dyn Sender + Send)) -> io::Result<()> {
    let mut request = [0; 8];
    loop {
        match sender.request(socket, &mut request) {
            Ok(()) => sender.send(socket, u64::from_be_bytes(request))?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
