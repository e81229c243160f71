//! The target's half: wrong lengths, digests that a list permits, keys that an initiator does not understand.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::super::names::{BEYOND, Namespace};
use crate::pdu::{Session, cdb10, connect, keys, login_pdu};
use crate::{Cases, Context, Disk, Server, Target, Url, scratch};

const LIMIT: Duration = Duration::from_secs(30);
const INITIATOR: &str = "iqn.2026-11.org.example:asked";
const ISID: [u8; 6] = [0x80, 0, 0, 0, 0, 9];
/// INVALID FIELD IN COMMAND INFORMATION UNIT.
const MISFIT: [u8; 3] = [0x05, 0x0e, 0x03];
const BLOCK: usize = 512;

/// Sends `cdb` with an expected transfer length that differs from the length of its data. Demands the refusal for that
/// reason and the right residual: positive for an overflow.
fn misfits(session: &mut Session, name: &str, cdb: &[u8], needed: usize, offered: usize) -> Result<()> {
    let data = vec![0xee; offered];
    let answer = session.scsi(0, cdb, 0, &data)?;
    ensure!(
        answer.status == 2 && answer.sense_codes() == MISFIT,
        "{name} that needs {needed} bytes and is offered {offered}: status {:#x}, sense {:02x?}",
        answer.status,
        answer.sense_codes()
    );
    let expected = needed as i64 - offered as i64;
    demand!(answer.residual == expected, "{name}: residual {} instead of {expected}", answer.residual)
}

/// A 16-byte CDB with a transfer length of `blocks`.
fn cdb16(code: u8, flags: u8, blocks: u8) -> [u8; 16] {
    [code, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, blocks, 0, 0]
}

/// Makes a login with the operational text `wishes`. Returns the keys of the second response, or the refusal.
fn negotiate(url: &Url, wishes: &[(&str, &str)]) -> Result<Vec<(String, String)>> {
    let mut session = Session::bare(connect(url, LIMIT)?);
    let base = [("InitiatorName", INITIATOR), ("TargetName", &url.iqn), ("SessionType", "Normal")];
    session.send(&login_pdu(0x80 | 1 << 2 | 3, ISID, keys(&[&base[..], wishes].concat())))?;
    let answer = session.receive()?;
    let [class, detail] = answer.status();
    ensure!((class, detail) == (0, 0), "login refused with {class:02x}{detail:02x}");
    let text = String::from_utf8(answer.data)?;
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    Ok(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// The negotiated value of a key, `None` if the target did not answer the key.
fn agreed(url: &Url, key: &str, offer: &str) -> Result<Option<String>> {
    let answers = negotiate(url, &[("HeaderDigest", offer), ("DataDigest", offer)])?;
    Ok(answers.into_iter().find(|(name, _)| name == key).map(|(_, value)| value))
}

fn refuses_data_out_of_a_length_that_does_not_fit(context: &Context) -> Result<()> {
    let target = Target::serve(context, &[Disk::endpoint("mem:4M")], None, &[])?;
    let mut session = Session::login(target.url(0), INITIATOR, ISID)?;
    session.write(0, 0, &[0x11; 4 * BLOCK])?;
    for offered in [1, 200, BLOCK - 1, BLOCK + 1, 2 * BLOCK - 1] {
        for code in [0x8a, 0x8e] {
            misfits(&mut session, "WRITE, WRITE AND VERIFY(16)", &cdb16(code, 0, 2), 2 * BLOCK, offered)?;
        }
        for code in [0x2a, 0x2e] {
            misfits(&mut session, "WRITE, WRITE AND VERIFY(10)", &cdb10(code, 0, 2), 2 * BLOCK, offered)?;
        }
    }
    for offered in [0, 200, BLOCK, 2 * BLOCK - 1] {
        misfits(&mut session, "VERIFY(16), BYTCHK 01b", &cdb16(0x8f, 0x02, 2), 2 * BLOCK, offered)?;
    }
    for offered in [0, 200, BLOCK - 1, 2 * BLOCK] {
        misfits(&mut session, "WRITE SAME(16)", &cdb16(0x93, 0, 2), BLOCK, offered)?;
        misfits(&mut session, "VERIFY(16), BYTCHK 11b", &cdb16(0x8f, 0x06, 2), BLOCK, offered)?;
    }
    for offered in [0, 8, 23] {
        misfits(&mut session, "UNMAP", &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], 24, offered)?;
        misfits(&mut session, "MODE SELECT(6)", &[0x15, 0x10, 0, 0, 24, 0], 24, offered)?;
        let list = [0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0];
        misfits(&mut session, "EXTENDED COPY", &list, 24, offered)?;
    }
    ensure!(session.read(0, 0, 4)?.iter().all(|byte| *byte == 0x11), "a refused command has written");
    // Complete blocks are written as far as they arrive, and the residual counts the rest (FCP-4 9.4.2.6 a).
    for (offered, written) in [(BLOCK, 1), (2 * BLOCK + 200, 2)] {
        let answer = session.scsi(0, &cdb10(0x2a, 0, 2), 0, &vec![0x22; offered])?;
        let expected = 2 * BLOCK as i64 - offered as i64;
        ensure!((answer.status, answer.residual) == (0, expected), "{offered} bytes of 2 blocks: {answer:?}");
        let blocks = session.read(0, 0, 4)?;
        let count = blocks.iter().take_while(|byte| **byte == 0x22).count();
        ensure!(count == written * BLOCK, "{count} bytes are written of {offered}");
    }
    // An accepted list has no residual.
    let list = [0; 24];
    let answer = session.scsi(0, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], 0, &list)?;
    demand!((answer.status, answer.residual) == (0, 0), "UNMAP of nothing: {answer:?}")
}

fn keeps_digests_beyond_loopback(context: &Context) -> Result<()> {
    let network = Namespace::new("asked")?;
    let home = scratch()?;
    let mut command = context.command_in(home.path());
    network.surroundings().apply(&mut command);
    // Storage beyond loopback without authentication needs `--seal off`.
    command.args(["serve", "mem:4M", "--seal", "off", "--listen", "0.0.0.0:0"]);
    let Server { running: _running, url } = Server::start(&mut command, 1)?;
    let port = url.port()?;
    let at = |address: &str| url.at(&format!("{address}:{port}"));
    network.within(|| {
        for key in ["HeaderDigest", "DataDigest"] {
            for (address, offer, expected) in [
                (BEYOND, "None,CRC32C", "CRC32C"),
                (BEYOND, "CRC32C,None", "CRC32C"),
                (BEYOND, "None", "None"),
                ("127.0.0.1", "None,CRC32C", "None"),
                ("127.0.0.1", "CRC32C,None", "CRC32C"),
            ] {
                let found = agreed(&at(address), key, offer)?;
                let is_so = found.as_deref() == Some(expected);
                ensure!(is_so, "{key}={offer} from {address}: {found:?} instead of {expected}");
            }
        }
        Ok(())
    })
}

fn ends_a_login_that_does_not_know_a_standard_key(context: &Context) -> Result<()> {
    let target = Target::serve(context, &[Disk::endpoint("mem:4M")], None, &[])?;
    for key in ["HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength", "ImmediateData"] {
        let error = negotiate(target.url(0), &[(key, "NotUnderstood")]).err();
        let error = error.with_context(|| format!("{key}=NotUnderstood: the login goes on"))?;
        ensure!(error.to_string().contains("0200"), "{key}=NotUnderstood: {error:#}");
    }
    // An initiator need not understand the keys of RFC 7144.
    negotiate(target.url(0), &[("iSCSIProtocolLevel", "NotUnderstood")]).map(|_| ())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let unfit = "asked-target-refuses-data-out-of-a-length-that-does-not-fit";
    let unknown = "asked-target-ends-a-login-that-does-not-know-a-standard-key";
    cases.check(unfit, || refuses_data_out_of_a_length_that_does_not_fit(context));
    cases.check("asked-target-keeps-digests-beyond-loopback", || keeps_digests_beyond_loopback(context));
    cases.check(unknown, || ends_a_login_that_does_not_know_a_standard_key(context));
}
