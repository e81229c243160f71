//! The initiator's half of SEAL/1 for the harness's own initiator: the outer login, and records in which every unit is
//! complete. The cryptography is the product's (`crates/seal`, which has test vectors and an independent decoder); the
//! messages and their order are this module's. Read docs/SEAL.md first.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use base64::engine::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use seal::{Channel, Descriptor, Head, Identity, Initiator, Kind, PublicKey, Suite};

use super::pdu::{DATA_OUT, Pdu, RECEIVE_BYTES_MAX, SCSI_COMMAND, data_length, keys, login_pdu};
use super::{Context, Url};

/// Unit of this initiator, bytes: the length of its Data-Out segments.
pub const UNIT_BYTES: usize = 8192;
/// Time limit of `key new`.
const KEY_LIMIT: Duration = Duration::from_secs(30);

/// A key pair that `hikyaku key new` made.
#[derive(Clone, Debug)]
pub struct Keys {
    pub file: PathBuf,
    pub public: String,
}

impl Keys {
    /// Makes `NAME.key` in `dir`.
    pub fn new(context: &Context, dir: &Path, name: &str) -> Result<Self> {
        let file = dir.join(format!("{name}.key"));
        let output = context.ours(&[Path::new("key"), Path::new("new"), &file], KEY_LIMIT)?.success()?;
        let public = output.stdout.trim().to_owned();
        ensure!(public.len() == 44, "`key new` prints {public:?}");
        Ok(Self { file, public })
    }

    pub fn path(&self) -> String {
        self.file.display().to_string()
    }

    pub fn secret(&self) -> Result<String> {
        let text = std::fs::read_to_string(&self.file)?;
        let line = text.lines().map(str::trim).find(|line| line.len() == 44 && !line.starts_with('#'));
        Ok(line.with_context(|| format!("no key in {}", self.file.display()))?.to_owned())
    }

    /// The parameters for the harness's own initiator with these keys.
    pub fn who(&self, target: &Self, suite: Suite) -> Result<Who> {
        let identity = Identity::parse(&self.secret()?).context("the identity")?;
        let target = PublicKey::parse(&target.public).context("the target's key")?;
        Ok(Who { identity, target, suite })
    }

    /// The key's entry in a list of peers; `more`: further lines of it.
    pub fn peer(&self, name: &str, more: &str) -> String {
        format!("[[peer]]\nname = \"{name}\"\npublic-key = \"{}\"\n{more}\n", self.public)
    }
}

/// The initiator's keys, the target's public key, and the suite.
#[derive(Debug)]
pub struct Who {
    pub identity: Identity,
    pub target: PublicKey,
    pub suite: Suite,
}

/// Sends one PDU of the outer login and receives the response.
fn exchange(stream: &mut TcpStream, isid: [u8; 6], exp_stat_sn: u32, text: Vec<u8>) -> Result<(Pdu, Pdu)> {
    let mut request = login_pdu(0, isid, text);
    request.set(28, exp_stat_sn);
    stream.write_all(&request.encode())?;
    let answer = Pdu::receive(stream).context("an answer of the outer login")?;
    let [class, detail] = answer.status();
    ensure!((class, detail) == (0, 0), "the outer login is refused with {class:02x}{detail:02x}");
    Ok((request, answer))
}

/// A PDU without its padding, with its length in front.
fn counted(Pdu { bhs, data }: &Pdu) -> Vec<u8> {
    let length = (bhs.len() + data.len()) as u32;
    [&length.to_be_bytes()[..], bhs, data].concat()
}

#[derive(Debug)]
pub struct Sealed {
    pub channel: Channel,
}

impl Sealed {
    /// Runs the outer login and its handshake.
    pub fn begin(
        stream: &mut TcpStream,
        url: &Url,
        initiator: &str,
        isid: [u8; 6],
        who: &Who,
    ) -> Result<Self> {
        let offer = keys(&[
            ("InitiatorName", initiator),
            ("SessionType", "Normal"),
            ("TargetName", &url.iqn),
            ("AuthMethod", "Z-example.hikyaku.seal1"),
            ("X-example.hikyaku.suite", who.suite.name()),
            ("X-example.hikyaku.unit", &UNIT_BYTES.to_string()),
            ("X-example.hikyaku.pattern", "IKpsk2"),
        ]);
        let (offer, choice) = exchange(stream, isid, 0, offer)?;
        let prologue = [b"hikyaku SEAL/1".to_vec(), counted(&offer), counted(&choice)].concat();
        let mut entropy = [0; 128];
        StdRng::from_rng(&mut rand::rng()).fill_bytes(&mut entropy);
        let (handshake, message) =
            Initiator::start(&who.identity, who.target, &prologue, None, who.suite, &entropy);
        let text = keys(&[("X-example.hikyaku.message", &format!("0b{}", STANDARD.encode(&message)))]);
        let (_, answer) = exchange(stream, isid, choice.get(24).wrapping_add(1), text)?;
        let text = String::from_utf8(answer.data)?;
        let value = text.trim_end_matches('\0').strip_prefix("X-example.hikyaku.message=0b");
        let message = value
            .and_then(|text| STANDARD.decode(text).ok())
            .with_context(|| format!("no message in {text:?}"))?;
        let channel =
            handshake.finish(&message).map_err(|broken| anyhow!("the target's message: {broken}"))?;
        Ok(Self { channel })
    }

    /// Seals the data of a PDU: in units of [`UNIT_BYTES`], which must divide the Buffer Offset, if it is data of a
    /// SCSI command; otherwise as one unit.
    pub fn units(&mut self, pdu: &Pdu) -> (Vec<Descriptor>, Vec<u8>) {
        let of_command = matches!(pdu.opcode(), SCSI_COMMAND | DATA_OUT);
        let mut body = pdu.data.clone();
        let length = if of_command { UNIT_BYTES } else { body.len().max(1) };
        let descriptors =
            body.chunks_mut(length).map(|unit| self.channel.sealer.seal_in_place(unit)).collect();
        (descriptors, body)
    }

    /// Makes a record of these parts, without checks.
    pub fn record(&mut self, header: &[u8], descriptors: &[Descriptor], body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.channel.sealer.seal_head(header, descriptors, &mut bytes);
        bytes.extend_from_slice(body);
        bytes
    }

    pub fn seal(&mut self, pdu: &Pdu) -> Vec<u8> {
        let (descriptors, body) = self.units(pdu);
        self.record(&pdu.bhs, &descriptors, &body)
    }

    /// Makes the record of an offer of fresh keys (docs/SEAL.md section 6).
    pub fn offer(&mut self) -> Result<Vec<u8>> {
        let Channel { sealer, opener, renewal, .. } = &mut self.channel;
        let mut entropy = [0; seal::RENEWAL_ENTROPY_BYTES];
        StdRng::from_rng(&mut rand::rng()).fill_bytes(&mut entropy);
        let mut record = Vec::new();
        renewal.seal(sealer, opener, &entropy, Duration::ZERO, &mut record)?;
        Ok(record)
    }

    fn receive_head(&mut self, stream: &mut TcpStream) -> Result<(Kind, Vec<u8>)> {
        let opener = &mut self.channel.opener;
        let mut prefix = [0; 4];
        stream.read_exact(&mut prefix).context("receive a prefix")?;
        let mut head = vec![0; opener.sealed_head_bytes(prefix)?];
        stream.read_exact(&mut head).context("receive a head")?;
        let Head { kind, bytes } = opener.open_head(prefix, &mut head)?;
        head.truncate(bytes);
        Ok((kind, head))
    }

    /// Receives the answer to an offer, which must be the next record.
    pub fn receive_answer(&mut self, stream: &mut TcpStream) -> Result<()> {
        let (kind, message) = self.receive_head(stream)?;
        ensure!(kind == Kind::Answer, "{kind:?} instead of an answer");
        let Channel { sealer, opener, renewal, .. } = &mut self.channel;
        Ok(renewal.open(kind, &message, sealer, opener, Duration::ZERO)?)
    }

    pub fn receive(&mut self, stream: &mut TcpStream) -> Result<Pdu> {
        let (kind, head) = self.receive_head(stream)?;
        ensure!(kind == Kind::Pdu, "{kind:?} instead of a PDU");
        let opener = &mut self.channel.opener;
        let (header, descriptors) = seal::parse_head(&head)?;
        ensure!(header.len() == 48, "an AHS of {} bytes", header.len() - 48);
        let bhs: [u8; 48] = header.try_into()?;
        let length = data_length(&bhs);
        ensure!(length <= RECEIVE_BYTES_MAX, "data segment of {length} bytes exceeds what was declared");
        let mut data = vec![0; length];
        stream.read_exact(&mut data).context("receive a body")?;
        let mut at = 0;
        for descriptor in descriptors {
            let end = at + descriptor.length as usize;
            opener.open_unit(
                &descriptor,
                data.get_mut(at..end).context("a unit past the end of its record")?,
            )?;
            at = end;
        }
        ensure!(at == length, "{} bytes of a record belong to no unit that began in it", length - at);
        Ok(Pdu { bhs, data })
    }
}
