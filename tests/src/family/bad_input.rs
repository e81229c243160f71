//! Seeded garbage, truncated and mutated PDUs sent to the served port. The target must stay up, bounded in memory and
//! descriptors, and the data of other sessions must be unharmed.
//!
//! LUN 0 is attacked. LUN 1 is served read-only and read continuously; LUN 2 is continuously written and read back by a
//! second session. `hikyaku serve` seals sessions on request, so that some of the garbage reaches the outer login, its
//! handshake and the records behind it. A mutated command may be a valid write, so no PDU sent here names LUN 2. Task
//! management addresses LUN 0 only, because CLEAR TASK SET and LOGICAL UNIT RESET end the tasks of others. Warm and
//! cold resets are not sent, because they may end the other sessions.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use base64::engine::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};

use crate::files::{empty_file, random_file};
use crate::pdu::{
    DATA_OUT, IMMEDIATE, LOGOUT, NOP_OUT, Pdu, SCSI_COMMAND, SNACK, Session, TASK_MANAGEMENT, TEXT, connect,
    keys, login_pdu, login_request,
};
use crate::procfs::{descriptors, resident_bytes};
use crate::seal::Keys;
use crate::{Against, Cases, Context, Disk, Scene, Served, Target, Url, random, scratch, wait_until};

const BYTES: u64 = 16 << 20;
/// Connections of a case, cases of a full run, and cases of a sample.
const BATCH: usize = 50;
const BATCHES: usize = 400;
const BATCHES_OF_SAMPLE: usize = 8;
const READ_ONLY: &str = "read-only.img";
/// Permitted growth of the target's memory after all cases, relative to its memory after warming up.
const RESIDENT_GROWTH_MAX: u64 = 64 << 20;
const DESCRIPTOR_GROWTH_MAX: usize = 8;
const SETTLE_LIMIT: Duration = Duration::from_secs(20);
/// Time during which an attacking connection reads responses.
const LISTEN: Duration = Duration::from_millis(15);
const WRITE_LIMIT: Duration = Duration::from_millis(500);
const IDLE_CONNECTIONS: usize = 200;
const INITIATOR: &str = "iqn.2026-11.org.example:fuzz";

/// The session that must not be harmed: reads LUN 1, writes and re-reads LUN 2, until `stop` is set.
fn bystander(url: &Url, reference: &[u8], seed: u64, stop: &AtomicBool, rounds: &AtomicU64) -> Result<()> {
    let mut rng = random::seeded(seed);
    let (read_only, writable) = (url.lun + 1, url.lun + 2);
    let mut session = Session::login(url, "iqn.2026-11.org.example:bystander", [0x80, 1, 2, 3, 4, 5])?;
    let blocks = session.blocks(writable)?;
    ensure!(session.blocks(read_only)? as usize * 512 == reference.len(), "size of the read-only LUN");
    while !stop.load(Ordering::Relaxed) {
        let count: u16 = rng.random_range(1..=256);
        let lba = rng.random_range(0..=blocks - u32::from(count));
        let start = lba as usize * 512;
        let data = session.read(read_only, lba, count)?;
        ensure!(data == reference[start..start + data.len()], "read-only LUN differs at block {lba}");
        let data = random::bytes(&mut rng, usize::from(count) * 512);
        session.write(writable, lba, &data)?;
        ensure!(session.read(writable, lba, count)? == data, "writable LUN differs at block {lba}");
        rounds.fetch_add(1, Ordering::Relaxed);
        // Leaves the two processors of a small machine to the attack.
        std::thread::sleep(Duration::from_millis(2));
    }
    session.logout()
}

/// A PDU of the full feature phase, valid except for random fields.
pub(super) fn template(rng: &mut StdRng, session: &Session) -> Pdu {
    let mut pdu = match rng.random_range(0..8) {
        0 => {
            let data = random::bytes_of(rng, 0..600);
            let mut pdu = Pdu::new(NOP_OUT, 0x80).with_data(data);
            pdu.set(20, u32::MAX);
            pdu
        }
        1 => {
            let mut pdu = Pdu::new(TASK_MANAGEMENT | IMMEDIATE, 0x80 | rng.random_range(1..=5));
            pdu.set(20, rng.random());
            pdu
        }
        2 => Pdu::new(TEXT, 0x80).with_data(text(rng)),
        3 => {
            let data = random::bytes_of(rng, 0..4096);
            let mut pdu = Pdu::new(DATA_OUT, 0x80).with_data(data);
            pdu.set(20, rng.random()).set(36, rng.random_range(0..3)).set(40, rng.random_range(0..9) * 512);
            pdu
        }
        4 => Pdu::new(SNACK, 0x80 | rng.random_range(0..4)),
        5 => Pdu::new(LOGOUT | IMMEDIATE, 0x80 | rng.random_range(0..3)),
        _ => scsi_template(rng),
    };
    pdu.set(16, rng.random_range(0..64)).set(24, session.cmd_sn).set(28, session.exp_stat_sn);
    pdu
}

fn scsi_template(rng: &mut StdRng) -> Pdu {
    const OPCODES: &[u8] = &[
        0x00, 0x03, 0x12, 0x15, 0x1a, 0x1b, 0x25, 0x28, 0x2a, 0x2e, 0x2f, 0x35, 0x41, 0x42, 0x55, 0x5a, 0x5e,
        0x5f, 0x83, 0x84, 0x88, 0x89, 0x8a, 0x8b, 0x8e, 0x8f, 0x91, 0x93, 0x9e, 0xa0, 0xa3, 0xa8, 0xaa,
    ];
    let flags = [0x80 | 0x40 | 1, 0x80 | 0x20 | 1, 0x80 | 1, 0xe1][rng.random_range(0..4)];
    let data = if flags & 0x20 != 0 { random::bytes_of(rng, 0..2048) } else { Vec::new() };
    let mut pdu = Pdu::new(SCSI_COMMAND, flags).with_data(data);
    rng.fill_bytes(&mut pdu.bhs[33..48]);
    pdu.bhs[32] = OPCODES[rng.random_range(0..OPCODES.len())];
    if rng.random_range(0..3) > 0 {
        // Small numbers, many of which are in range.
        for byte in [34, 35, 36, 39, 42, 43, 44] {
            pdu.bhs[byte] = 0;
        }
    }
    let length = [0, 36, 512, 4096, 65_536, rng.random_range(0..1 << 20), rng.random()];
    pdu.set(20, length[rng.random_range(0..length.len())]);
    pdu
}

fn text(rng: &mut StdRng) -> Vec<u8> {
    /// Valid, invalid and misplaced pairs, separated by spaces.
    const WORDS: &str = "SendTargets=All SendTargets= SendTargets=iqn.x MaxRecvDataSegmentLength=0 \
        MaxRecvDataSegmentLength=16777216 MaxBurstLength=511 FirstBurstLength=4294967296 HeaderDigest= \
        HeaderDigest=CRC32C,None DataDigest=Reject InitialR2T=Maybe MaxConnections=65536 ErrorRecoveryLevel=3 \
        DefaultTime2Wait=-1 AuthMethod=CHAP,None AuthMethod=KRB5 CHAP_A=5 CHAP_N= CHAP_R=0x CHAP_R=0b==== \
        CHAP_I=256 X-com.example.x=1 NoEquals =value A=B=C InitiatorName= TargetName=iqn.other \
        SessionType=Discovery SessionType=Odd TaskReporting=x TargetPortalGroupTag=70000";
    let words: Vec<&str> = WORDS.split(' ').collect();
    let mut data = Vec::new();
    for _ in 0..rng.random_range(0..12) {
        match rng.random_range(0..6) {
            0 => data.extend(random::bytes_of(rng, 1..200)),
            1 => data.extend(format!("{}={}", "K".repeat(rng.random_range(1..300)), "v".repeat(700)).bytes()),
            _ => data.extend(words[rng.random_range(0..words.len())].bytes()),
        }
        if rng.random_range(0..8) > 0 {
            data.push(0);
        }
    }
    data
}

fn mutate(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(0..4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..8) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 if bytes.len() >= 8 => {
                let length: u32 = [0, 1, 3, 0xff_ffff, rng.random::<u32>() >> 8][rng.random_range(0..5)];
                bytes[5..8].copy_from_slice(&length.to_be_bytes()[1..]);
            }
            3 if bytes.len() >= 8 => bytes[4] = [1, 2, 255][rng.random_range(0..3)],
            4 => bytes[0] = rng.random(),
            5 => bytes.truncate(at),
            6 if bytes.len() >= 48 => {
                let field = [16, 20, 24, 28, 36, 40, 44][rng.random_range(0..7)];
                let value: u32 =
                    [0, 1, u32::MAX, 0x7fff_ffff, 0x8000_0000, rng.random()][rng.random_range(0..6)];
                bytes[field..field + 4].copy_from_slice(&value.to_be_bytes());
            }
            _ => {
                let extra = bytes[..at.min(64)].to_vec();
                bytes.extend(extra);
            }
        }
    }
}

/// Applies the rules at the head of this file to every PDU of a connection, at the places where the target finds them:
/// mutated lengths and inserted bytes move them, so that the middle of a PDU may be read as a TARGET COLD RESET.
fn tame(bytes: &mut [u8], spared_lun: u8) {
    let mut rest = bytes;
    while rest.len() >= 48 {
        let is_task_management = rest[0] & 0x3f == TASK_MANAGEMENT;
        if is_task_management && rest[1] & 0x7f > 5 {
            rest[1] = 0x80 | 5;
        }
        if is_task_management || rest[9] == spared_lun {
            rest[9] = 0;
        }
        let data = u32::from_be_bytes([0, rest[5], rest[6], rest[7]]) as usize;
        let length = 48 + usize::from(rest[4]) * 4 + data.next_multiple_of(4);
        rest = rest.split_at_mut(length.min(rest.len())).1;
    }
}

/// An outer login of docs/SEAL.md: its two requests, valid or not, and arbitrary bytes behind them. Any 32 bytes are a
/// valid message of an enquiry (XX), which the target answers; the other kind needs a key on the target's list.
fn outer_login_bytes(rng: &mut StdRng, url: &Url) -> Vec<u8> {
    let pattern = if rng.random() { "XX" } else { "IKpsk2" };
    let offer = keys(&[
        ("InitiatorName", INITIATOR),
        ("SessionType", "Normal"),
        ("TargetName", &url.iqn),
        ("AuthMethod", "Z-example.hikyaku.seal1"),
        ("X-example.hikyaku.suite", "AES-256-GCM,AEGIS-256X4"),
        ("X-example.hikyaku.unit", "65536"),
        ("X-example.hikyaku.pattern", pattern),
    ]);
    let length = *[0, 31, 32, 33, 1280, 1296, 3000].choose(rng).expect("not empty");
    let message = random::bytes(rng, length);
    let message = format!("X-example.hikyaku.message=0b{}\0", STANDARD.encode(&message));
    let isid = random::isid(rng);
    let mut bytes = Vec::new();
    for text in [offer, message.into_bytes()] {
        let mut one = login_pdu(0, isid, text).encode();
        if rng.random_range(0..4) == 0 {
            mutate(rng, &mut one);
        }
        bytes.extend(one);
    }
    bytes.extend(random::bytes_of(rng, 0..3000));
    bytes
}

/// All bytes of one connection, generated before the first is sent.
fn login_bytes(rng: &mut StdRng, url: &Url) -> Vec<u8> {
    let mut bytes = Vec::new();
    let isid = random::isid(rng);
    for round in 0..rng.random_range(1..6) {
        let mut pdu = login_request(url, INITIATOR, isid, round > 0);
        if rng.random() {
            let mut data =
                if rng.random() { pdu.data.clone() } else { keys(&[("InitiatorName", INITIATOR)]) };
            data.extend(text(rng));
            pdu = Pdu { bhs: pdu.bhs, data: Vec::new() }.with_data(data);
        }
        if rng.random_range(0..3) == 0 {
            pdu.bhs[1] = rng.random();
        }
        let mut one = pdu.encode();
        if rng.random_range(0..3) > 0 {
            mutate(rng, &mut one);
        }
        bytes.extend(one);
    }
    bytes
}

/// One hostile connection. Only a failure to connect is an error: the target may refuse the rest.
fn attack(context: &Context, url: &Url, index: usize) -> Result<()> {
    let mut rng = context.rng(&format!("bad-input/{index}"));
    let spared = url.lun as u8 + 2;
    if rng.random_range(0..10) < 4 {
        let stream = connect(url, WRITE_LIMIT)?;
        let mut bytes = match rng.random_range(0..6) {
            0 => random::bytes_of(&mut rng, 1..20_000),
            1 => {
                let mut bytes = login_request(url, INITIATOR, [0x80, 9, 9, 9, 9, 9], false).encode();
                bytes.truncate(rng.random_range(0..bytes.len()));
                bytes
            }
            2 | 3 => outer_login_bytes(&mut rng, url),
            _ => login_bytes(&mut rng, url),
        };
        tame(&mut bytes, spared);
        return throw(stream, &bytes, &mut rng);
    }
    let isid = random::isid(&mut rng);
    let mut session = Session::login(url, INITIATOR, isid).context("a valid login was not accepted")?;
    let mut bytes = Vec::new();
    for _ in 0..rng.random_range(1..8) {
        let pdu = template(&mut rng, &session);
        if pdu.bhs[0] & IMMEDIATE == 0 && rng.random_range(0..8) > 0 {
            session.cmd_sn = session.cmd_sn.wrapping_add(1);
        }
        let mut one = pdu.encode();
        if rng.random() {
            mutate(&mut rng, &mut one);
        }
        bytes.extend(one);
    }
    tame(&mut bytes, spared);
    throw(session.stream, &bytes, &mut rng)
}

/// Sends bytes, reads responses for [`LISTEN`], and closes in one of several ways. Errors are ignored, because the
/// target may close.
fn throw(mut stream: TcpStream, bytes: &[u8], rng: &mut StdRng) -> Result<()> {
    stream.set_read_timeout(Some(LISTEN))?;
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    let sent = if rng.random_range(0..4) == 0 && bytes.len() > 2 {
        let (first, second) = bytes.split_at(rng.random_range(1..bytes.len()));
        stream.write_all(first).and_then(|()| {
            std::thread::sleep(Duration::from_millis(2));
            stream.write_all(second)
        })
    } else {
        stream.write_all(bytes)
    };
    if sent.is_ok() && rng.random_range(0..4) > 0 {
        let mut answer = [0u8; 16 << 10];
        let until = Instant::now() + LISTEN * 4;
        while Instant::now() < until && matches!(stream.read(&mut answer), Ok(count) if count > 0) {}
    }
    if rng.random() {
        let _ = stream.shutdown(Shutdown::Write);
    }
    Ok(())
}

fn settle(pid: u32, baseline: usize) -> Result<()> {
    wait_until(SETTLE_LIMIT, || Ok(descriptors(pid)? <= baseline + DESCRIPTOR_GROWTH_MAX)).with_context(
        || {
            format!(
                "{:?} descriptors open after the connections were closed; {baseline} before",
                descriptors(pid)
            )
        },
    )
}

fn idle_connections(url: &Url) -> Result<()> {
    let idle: Vec<TcpStream> = (0..IDLE_CONNECTIONS)
        .map(|index| connect(url, WRITE_LIMIT).with_context(|| format!("idle connection {index}")))
        .collect::<Result<_>>()?;
    let mut session = Session::login(url, "iqn.2026-11.org.example:late", [0x80, 7, 7, 7, 7, 7])?;
    session.read(url.lun + 1, 0, 8)?;
    session.logout()?;
    drop(idle);
    Ok(())
}

fn prepare(context: &Context, dir: &Path) -> Result<[Disk; 3]> {
    let attacked = random_file(dir.join("attacked.img"), BYTES, context.seed_for("bad-input/attacked"))?;
    let read_only = random_file(dir.join(READ_ONLY), BYTES, context.seed_for("bad-input/read-only"))?;
    let writable = empty_file(dir.join("writable.img"), BYTES)?;
    let read_only = Disk { read_only: true, ..Disk::file(&read_only) };
    Ok([Disk::file(&attacked), read_only, Disk::file(&writable)])
}

/// Serves the disks; `hikyaku serve` also seals.
fn serve(context: &Context, disks: &[Disk], dir: &Path) -> Result<Served> {
    if context.against != Against::Ours {
        return context.serve(disks, None);
    }
    let (keys, peers) = (Keys::new(context, dir, "target")?, dir.join("peers.toml"));
    std::fs::write(&peers, keys.peer("self", ""))?;
    let sealing = ["--seal", "offer", "--identity", &keys.path(), "--peers", &peers.display().to_string()];
    Ok(Served::Ours(Target::serve(context, disks, None, &sealing)?))
}

struct Attacked {
    served: RefCell<Served>,
    url: Url,
    pid: u32,
    reference: Vec<u8>,
}

impl Attacked {
    fn new(context: &Context, dir: &Path) -> Result<Self> {
        let disks = prepare(context, dir)?;
        let reference = std::fs::read(dir.join(READ_ONLY))?;
        let mut served = serve(context, &disks, dir)?;
        let (pid, url) = (served.pid(), served.url(0).clone());
        Ok(Self { served: RefCell::new(served), url, pid, reference })
    }
}

/// The other session, which runs since before the first attack, and the target's resources at that time. Dropping it
/// ends the session.
struct Witness {
    thread: Option<JoinHandle<Result<()>>>,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    resident: u64,
    open: usize,
}

impl Witness {
    fn start(context: &Context, attacked: &Attacked) -> Result<Self> {
        let Attacked { url, pid, reference, .. } = attacked;
        settle(*pid, 16 + DESCRIPTOR_GROWTH_MAX).ok();
        let (resident, open) = (resident_bytes(*pid)?, descriptors(*pid)?);
        let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let seed = context.seed_for("bad-input/bystander");
        let (url, reference) = (url.clone(), reference.clone());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || bystander(&url, &reference, seed, &stopped, &counted));
        Ok(Self { thread: Some(thread), stop, rounds, resident, open })
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn finish(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it was ended before")?;
        thread.join().unwrap_or_else(|_| Err(anyhow!("panic in the other session")))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.finish();
        }
    }
}

fn batch(context: &Context, attacked: &Attacked, witness: &Witness, batch: usize) -> Result<()> {
    let mut served = attacked.served.borrow_mut();
    served.alive()?;
    for index in batch * BATCH..(batch + 1) * BATCH {
        let result = attack(context, &attacked.url, index);
        served.blame(result).with_context(|| format!("connection {index} (seed {})", context.seed))?;
        let (is_well, seed) = (!witness.has_ended(), context.seed);
        ensure!(is_well, "the other session failed about connection {index} (seed {seed})");
    }
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let dir = Scene::new(scratch);
    let attacked = Scene::new(|| Attacked::new(context, dir.get()?.path()));
    // Also warms up: buffers that the target keeps are no leak.
    cases.check("idle-connections", || {
        let Attacked { served, url, .. } = attacked.get()?;
        served.borrow_mut().blame(idle_connections(url))
    });
    let mut witness = Scene::new(|| Witness::start(context, attacked.get()?));
    let mut connections = 0;
    for number in 0..BATCHES {
        cases.check_some(("batches", BATCHES_OF_SAMPLE), &format!("batch-{number}"), || {
            connections += BATCH;
            batch(context, attacked.get()?, witness.get()?, number)
        });
    }
    let mut rounds = 0;
    cases.check_sum("other-session-unharmed", connections > 0, || {
        let witness = witness.get_mut()?;
        let result = witness.finish();
        attacked.get()?.served.borrow_mut().blame(result)?;
        rounds = witness.rounds.load(Ordering::Relaxed);
        demand!(rounds > 0, "the other session never completed a round")
    });
    cases.check_sum("descriptors-returned", connections > 0, || {
        settle(attacked.get()?.pid, witness.get()?.open)
    });
    cases.check_sum("memory-bounded", connections > 0, || {
        let (now, resident) = (resident_bytes(attacked.get()?.pid)?, witness.get()?.resident);
        let limit = resident + RESIDENT_GROWTH_MAX;
        demand!(now <= limit, "resident {now} bytes, {resident} at first, limit {limit}")
    });
    cases.check("serves-on", || {
        let Attacked { served, url, reference, .. } = attacked.get()?;
        let mut session = Session::login(url, "iqn.2026-11.org.example:after", [0x80, 8, 8, 8, 8, 8])?;
        let data = session.read(url.lun + 1, 0, 256)?;
        ensure!(data == reference[..data.len()], "read-only LUN differs");
        session.logout()?;
        served.borrow_mut().alive()
    });
    drop(witness);
    let before = attacked.into_made().map(|attacked| attacked.reference);
    cases.check_sum("read-only-file-unchanged", before.is_some(), || {
        let now = std::fs::read(dir.get()?.path().join(READ_ONLY))?;
        demand!(Some(now) == before, "the file was changed")
    });
    cases.fact("connections", connections);
    cases.fact("other_session_rounds", rounds);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_sent_names_the_spared_lun_or_a_reset() {
        let mut rng = random::seeded(3);
        for _ in 0..2000 {
            let mut bytes = scsi_template(&mut rng).encode();
            bytes[9] = 2;
            mutate(&mut rng, &mut bytes);
            tame(&mut bytes, 2);
            assert!(bytes.len() < 48 || bytes[9] != 2);
        }
        let mut reset = Pdu::new(TASK_MANAGEMENT | IMMEDIATE, 0x80 | 7).encode();
        reset[9] = 1;
        tame(&mut reset, 2);
        assert_eq!((reset[1] & 0x7f, reset[9]), (5, 0));
    }
}
