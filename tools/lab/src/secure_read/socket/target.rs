//! The target's side: sends blocks.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::tls::TlsSender;
use super::{SILENCE_MAX, records};
use crate::part::{Orders, send};
use crate::secure_read::cipher::{Meter, Sealing};
use crate::secure_read::figures::{Listening, Mark};
use crate::secure_read::shape::{Protection, Reading};
use crate::sys::Cpu;
use crate::{Attempted, LabError};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SocketTarget {
    pub(crate) reading: Reading,
    /// Whether to query the socket's queue at the start and end of each sealing.
    pub(crate) instrumented: bool,
    pub(crate) folder: PathBuf,
}

pub(super) trait Sender {
    fn request(&mut self, socket: &mut TcpStream, request: &mut [u8]) -> io::Result<()> {
        socket.read_exact(request)
    }

    fn send(&mut self, socket: &mut TcpStream, index: u64) -> io::Result<()>;
}

struct Plain {
    reading: Reading,
    stored: Vec<u8>,
}

impl Sender for Plain {
    fn send(&mut self, socket: &mut TcpStream, index: u64) -> io::Result<()> {
        socket.write_all(&self.stored[self.reading.range(index)])
    }
}

impl SocketTarget {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        let doing = "listen on the loopback";
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).attempted(doing)?;
        let port = listener.local_addr().attempted(doing)?.port();
        send(&Listening { port })?;
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
        orders.serve(|_| {
            let (sealing, hidden) = meter.seconds();
            Ok(Mark { cpu: Cpu::now(), sealing, hidden })
        })
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
            Protection::Volume(_) => unreachable!("rows of volumes are over iSCSI"),
        }
    }
}

/// Answers requests until the initiator closes the connection.
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
