//! Sustained load over one session of the harness's own initiator, every byte compared.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rand::RngExt;
use rand::rngs::StdRng;

use super::pdu::{self, Pdu, Session};

const BLOCK_BYTES: usize = 512;

#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub name: &'static str,
    pub writes: bool,
    pub bytes: usize,
    pub depth: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub commands: u64,
    pub longest: Duration,
}

impl Done {
    pub fn add(&mut self, took: Duration) {
        self.commands += 1;
        self.longest = self.longest.max(took);
    }
}

/// Keeps `load.depth` commands outstanding until `until`. Reads are compared with `image`, the content of the LUN;
/// writes write the same bytes again.
pub fn busy(
    session: &mut Session,
    lun: u64,
    load: Load,
    image: &[u8],
    until: Instant,
    mut rng: StdRng,
) -> Result<Done> {
    let mut done = Done::default();
    let mut outstanding: HashMap<u32, (Instant, usize)> = HashMap::new();
    loop {
        while outstanding.len() < load.depth && Instant::now() < until {
            let offset = rng.random_range(0..image.len() / load.bytes) * load.bytes;
            let command = command(session, lun, load, image, offset)?;
            outstanding.insert(command.get(16), (Instant::now(), offset));
            session.send(&command)?;
        }
        if outstanding.is_empty() {
            return Ok(done);
        }
        let answer = session.receive()?;
        let itt = answer.get(16);
        let known = outstanding.get(&itt).copied();
        match (answer.opcode(), known) {
            (pdu::DATA_IN, Some((_, offset))) => {
                let start = offset + answer.get(40) as usize;
                let expected = image.get(start..start + answer.data.len()).context("data past the end")?;
                ensure!(answer.data == expected, "wrong data at byte {start}");
            }
            (pdu::R2T, Some((_, offset))) => {
                session.exp_stat_sn = answer.get(24);
                session.send_burst(&answer, &image[offset..offset + load.bytes])?;
            }
            (pdu::SCSI_RESPONSE, Some(_)) => {}
            (pdu::NOP_IN | pdu::ASYNC, _) => session.on_unasked(&answer)?,
            (other, _) => bail!("opcode {other:#x} for task {itt:#x}"),
        }
        let status = match answer.opcode() {
            pdu::DATA_IN if answer.bhs[1] & 1 != 0 => answer.bhs[3],
            pdu::SCSI_RESPONSE => answer.bhs[3],
            _ => continue,
        };
        ensure!(status == 0, "status {status:#x}");
        session.exp_stat_sn = answer.get(24).wrapping_add(1);
        let (began, _) = outstanding.remove(&itt).context("a status for no task")?;
        done.add(began.elapsed());
    }
}

fn command(session: &mut Session, lun: u64, load: Load, image: &[u8], offset: usize) -> Result<Pdu> {
    let (lba, blocks) = (u32::try_from(offset / BLOCK_BYTES)?, u16::try_from(load.bytes / BLOCK_BYTES)?);
    let data = &image[offset..offset + load.bytes];
    Ok(match load.writes {
        false => session.command(lun, &pdu::cdb10(0x28, lba, blocks), load.bytes, &[]),
        true => {
            let command = session.command(lun, &pdu::cdb10(0x2a, lba, blocks), 0, data);
            // Immediate data where every target accepts it (RFC 7143 §13.12), otherwise after an R2T.
            if load.bytes <= 8192 { command.with_data(data.to_vec()) } else { command }
        }
    })
}
