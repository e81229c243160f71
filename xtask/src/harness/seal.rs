//! The initiator's half of SEAL/1 for the harness's own initiator: the outer login, and records in which every unit is whole.
//! The cryptography is the product's (`crates/seal`, which has vectors and a decoder of its own to be held against); what is
//! said, and when, is this module's. Read docs/SEAL.md first.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use seal::{Channel, Descriptor, Head, Identity, Initiator, Kind, PublicKey, Suite};

use super::Url;
use super::pdu::{DATA_OUT, IMMEDIATE, LOGIN, Pdu, RECEIVE_BYTES_MAX, SCSI_COMMAND, keys};

/// Our unit: what a Data-Out of the harness's initiator carries.
pub(crate) const UNIT_BYTES: usize = 8192;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding (RFC 4648).
pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// What [`base64`] wrote; `None` for other letters.
pub(crate) fn unbase64(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for byte in text.trim_end_matches('=').bytes() {
        bits = bits << 6 | ALPHABET.iter().position(|&letter| letter == byte)? as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

/// Who we are, and whom we trust.
#[derive(Debug)]
pub(crate) struct Who {
    pub(crate) identity: Identity,
    pub(crate) target: PublicKey,
    pub(crate) suite: Suite,
}

/// One PDU of the outer login, and the answer: header and text.
fn exchange(
    stream: &mut TcpStream,
    isid: [u8; 6],
    exp_stat_sn: u32,
    text: Vec<u8>,
) -> Result<(Vec<u8>, Pdu)> {
    let mut request = Pdu::new(LOGIN | IMMEDIATE, 0).with_data(text);
    request.bhs[8..14].copy_from_slice(&isid);
    request.set(16, 0).set(24, 1).set(28, exp_stat_sn);
    stream.write_all(&request.encode())?;
    let mut bhs = [0; 48];
    stream.read_exact(&mut bhs).context("an answer of the outer login")?;
    ensure!((bhs[36], bhs[37]) == (0, 0), "the outer login is refused with {:02x}{:02x}", bhs[36], bhs[37]);
    let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
    let mut data = vec![0; length.next_multiple_of(4)];
    stream.read_exact(&mut data)?;
    data.truncate(length);
    Ok(([&request.bhs[..], &request.data].concat(), Pdu { bhs, data }))
}

/// Length before the bytes.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

/// The seal around one connection.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) channel: Channel,
}

impl Sealed {
    /// The outer login and its handshake.
    pub(crate) fn begin(
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
        let (p1, choice) = exchange(stream, isid, 0, offer)?;
        let p2 = [&choice.bhs[..], &choice.data].concat();
        let prologue = [b"hikyaku SEAL/1".to_vec(), counted(&p1), counted(&p2)].concat();
        let mut entropy = [0; 128];
        StdRng::from_rng(&mut rand::rng()).fill_bytes(&mut entropy);
        let (handshake, message) =
            Initiator::start(&who.identity, who.target, &prologue, None, who.suite, &entropy);
        let text = keys(&[("X-example.hikyaku.message", &format!("0b{}", base64(&message)))]);
        let (_, answer) = exchange(stream, isid, choice.get(24).wrapping_add(1), text)?;
        let text = String::from_utf8(answer.data)?;
        let value = text.trim_end_matches('\0').strip_prefix("X-example.hikyaku.message=0b");
        let message = value.and_then(unbase64).with_context(|| format!("no message in {text:?}"))?;
        let channel =
            handshake.finish(&message).map_err(|broken| anyhow!("the target's message: {broken}"))?;
        Ok(Self { channel })
    }

    /// Seals the units of a PDU: where they begin is where [`UNIT_BYTES`] divide the Buffer Offset.
    pub(crate) fn units(&mut self, pdu: &Pdu) -> (Vec<Descriptor>, Vec<u8>) {
        let of_command = matches!(pdu.opcode(), SCSI_COMMAND | DATA_OUT);
        let mut body = pdu.data.clone();
        let length = if of_command { UNIT_BYTES } else { body.len().max(1) };
        let descriptors =
            body.chunks_mut(length).map(|unit| self.channel.sealer.seal_in_place(unit)).collect();
        (descriptors, body)
    }

    /// A record of these parts, whatever they are.
    pub(crate) fn record(&mut self, header: &[u8], descriptors: &[Descriptor], body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.channel.sealer.seal_head(header, descriptors, &mut bytes);
        bytes.extend_from_slice(body);
        bytes
    }

    /// The record of a PDU.
    pub(crate) fn seal(&mut self, pdu: &Pdu) -> Vec<u8> {
        let (descriptors, body) = self.units(pdu);
        self.record(&pdu.bhs, &descriptors, &body)
    }

    /// An offer of fresh keys (docs/SEAL.md section 6).
    pub(crate) fn offer(&mut self) -> Result<Vec<u8>> {
        let Channel { sealer, opener, renewal } = &mut self.channel;
        let mut entropy = [0; seal::RENEWAL_ENTROPY_BYTES];
        StdRng::from_rng(&mut rand::rng()).fill_bytes(&mut entropy);
        let mut record = Vec::new();
        renewal.seal(sealer, opener, &entropy, Duration::ZERO, &mut record)?;
        Ok(record)
    }

    /// Receives the head of one record.
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
    pub(crate) fn receive_answer(&mut self, stream: &mut TcpStream) -> Result<()> {
        let (kind, message) = self.receive_head(stream)?;
        ensure!(kind == Kind::Answer, "{kind:?} instead of an answer");
        let Channel { sealer, opener, renewal } = &mut self.channel;
        Ok(renewal.open(kind, &message, sealer, opener, Duration::ZERO)?)
    }

    /// Receives one record of a PDU.
    pub(crate) fn receive(&mut self, stream: &mut TcpStream) -> Result<Pdu> {
        let (kind, head) = self.receive_head(stream)?;
        ensure!(kind == Kind::Pdu, "{kind:?} instead of a PDU");
        let opener = &mut self.channel.opener;
        let (header, descriptors) = seal::parse_head(&head)?;
        ensure!(header.len() == 48, "an AHS of {} bytes", header.len() - 48);
        let bhs: [u8; 48] = header.try_into()?;
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (plain, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), text);
            assert_eq!(unbase64(text).unwrap(), plain.as_bytes());
        }
        assert_eq!(unbase64("a b"), None);
    }
}
