//! Bytes copied of a send: by the counters of `inet`, on the way to the kernel, and over a wire that loses segments and
//! divides nothing for its sender.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use net::socket::{Stack, TcpListener};
use serde_json::{Value, json};

use super::near::Connection;
use super::ours::Ours;
use super::servers::ServersUp;
use crate::wan::Namespace;
use crate::{Attempted, LabError};

const SENDER: &str = "10.97.0.1";
const RECEIVER: &str = "10.97.0.2";
const PORT: u16 = 9;
const BYTES: usize = 64 << 10;
const LOSS: &str = "1%";

/// Sends over a path, and what became of their bytes.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    pub(super) path: String,
    /// Of applications, repetitions included.
    pub(super) sent: u64,
    /// Sent again, where the number of all sends is known.
    pub(super) repeated: Option<u64>,
    /// By `inet`.
    pub(super) copied: u64,
    pub(super) frames: u64,
    /// Of the sends that asked for it.
    pub(super) direct_share: Option<f64>,
}

impl Copies {
    /// Of servers since they were started.
    pub(super) fn of(up: &ServersUp, path: &str, sent: Option<u64>) -> Result<Self, LabError> {
        let status = up.status()?;
        let inet = |name: &str| status["inet"][name].as_u64().unwrap_or_default();
        Ok(Self {
            path: path.to_owned(),
            sent: inet("bytes_out"),
            repeated: sent.map(|sent| inet("bytes_out").saturating_sub(sent)),
            copied: inet("bytes_copied"),
            frames: inet("frames_out"),
            direct_share: status["returned_directly_share"].as_f64(),
        })
    }

    /// Sends of 64 KiB, written in place, between two stacks joined by a wire of segments of which some are lost.
    pub(super) fn under_loss(
        program: &Path,
        namespace: &Namespace,
        cores: [Option<usize>; 2],
        duration: Duration,
    ) -> Result<Self, LabError> {
        let folder = crate::folder()?;
        let nic = format!("wire:{},loss={LOSS},seed=1", folder.path().join("wire").display());
        let start = |address: &str| {
            let options = ["--nic", &nic, "--address", &format!("{address}/24")];
            ServersUp::start(program, namespace, &options, cores)
        };
        let mut both = [start(SENDER)?, start(RECEIVER)?];
        for up in &mut both {
            up.wait()?;
        }
        let [sender, receiver] = &both;
        let sent = stream(sender, receiver, duration).attempted("send over a wire that loses segments")?;
        Self::of(sender, &format!("{LOSS} of segments of 1448 B lost, divided by the driver"), Some(sent))
    }

    pub(super) fn object(&self) -> Value {
        json!({
            "row": format!("copies, {}", self.path),
            "bytes_out": self.sent,
            "bytes_sent_again": self.repeated,
            "bytes_copied_by_inet": self.copied,
            "frames": self.frames,
            "direct_return_share": self.direct_share,
        })
    }

    pub(super) fn text(&self) -> String {
        let again =
            self.repeated.map(|bytes| format!(", {} KiB of them again", bytes >> 10)).unwrap_or_default();
        format!(
            "{}: {} MiB in {} frames{again}; inet copied {} B of them.\n",
            self.path,
            self.sent >> 20,
            self.frames,
            self.copied,
        )
    }
}

/// Bytes sent in that time, all of which arrived.
fn stream(sender: &ServersUp, receiver: &ServersUp, duration: Duration) -> std::io::Result<u64> {
    let to: SocketAddr = format!("{RECEIVER}:{PORT}").parse().expect("a constant");
    let stack = Stack::connect(receiver.socket())?;
    let listener = TcpListener::bind(&stack, to)?;
    std::thread::scope(|scope| {
        let received = scope.spawn(move || {
            let (stream, _) = listener.accept()?;
            let mut bytes = 0;
            while let Some(area) = stream.recv()? {
                bytes += area.len() as u64;
            }
            Ok::<_, std::io::Error>(bytes)
        });
        let mut connection = Ours::connect(Stack::connect(sender.socket())?, to)?;
        let (begin, mut sent) = (Instant::now(), 0);
        while begin.elapsed() < duration {
            connection.send_ready(BYTES)?;
            sent += BYTES as u64;
        }
        connection.finish()?;
        let received = received.join().map_err(|_| std::io::ErrorKind::Other)??;
        if received == sent { Ok(sent) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
    })
}
