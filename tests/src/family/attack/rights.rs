//! Effects of a read-only and a masked initiator on a logical unit, and on the sessions of others.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::cases::Rows;
use crate::pdu::{R2T, SCSI_RESPONSE, Session, cdb10};
use crate::{Cases, Context, Server, run, scratch};

const LIMIT: Duration = Duration::from_secs(30);
const WRITER: &str = "iqn.2026-11.org.example:writer";
const READER: &str = "iqn.2026-11.org.example:reader";
/// Initiator that sees LUN 1 only, with write access.
const MASKED: &str = "iqn.2026-11.org.example:masked";

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 0x02, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 0x03, 0];
const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 0x01, 0];
const ALLOW: [u8; 6] = [0x1e, 0, 0, 0, 0, 0];
const MODE_SENSE_6: [u8; 6] = [0x1a, 0x08, 0x3f, 0, 255, 0];
const SYNCHRONIZE_CACHE_10: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Task management functions, and responses (RFC 7143 §11.5.1, §11.6.1).
const ABORT_TASK_SET: u8 = 2;
const CLEAR_TASK_SET: u8 = 4;
const LUN_RESET: u8 = 5;
const WARM_RESET: u8 = 6;
const COLD_RESET: u8 = 7;
const COMPLETE: u8 = 0;
const NO_LUN: u8 = 2;
const UNAUTHORIZED: u8 = 6;

/// ACCESS DENIED - NO ACCESS RIGHTS, and WRITE PROTECTED.
const DENIED: Option<[u8; 3]> = Some([0x05, 0x20, 0x02]);
const PROTECTED: Option<[u8; 3]> = Some([0x07, 0x27, 0x00]);
const NO_UNIT: Option<[u8; 3]> = Some([0x05, 0x25, 0x00]);

struct Scene {
    _home: TempDir,
    server: Server,
}

impl Scene {
    fn new(context: &Context) -> Result<Self> {
        let home = scratch()?;
        let acl = |name: &str, more: &str| format!("[[target.acl]]\ninitiator = \"{name}\"\n{more}\n");
        let text = [
            "[server]\nlisten = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"iqn.2026-11.org.example:rights\"\n"
                .into(),
            "[[target.lun]]\nlun = 0\nendpoint = \"mem:4M,removable\"\n".into(),
            "[[target.lun]]\nlun = 1\nendpoint = \"mem:4M\"\n".into(),
            acl(WRITER, ""),
            acl(READER, "mode = \"ro\""),
            acl(MASKED, "luns = [1]"),
        ];
        let file = home.path().join("hikyaku.toml");
        std::fs::write(&file, text.concat())?;
        let mut command = context.command_in(home.path());
        let server = Server::start(command.arg("serve").arg("--config").arg(&file), 2)?;
        Ok(Self { _home: home, server })
    }

    fn session(&self, initiator: &str, luns: &[u64]) -> Result<Session> {
        let isid = [0x80, 0, 0, 0, 0, initiator.len() as u8];
        let mut session = Session::login(&self.server.url, initiator, isid)?;
        for lun in luns {
            session.good(*lun, &TEST_UNIT_READY, 0, &[])?;
        }
        Ok(session)
    }

    fn writer(&self) -> Result<Session> {
        self.session(WRITER, &[0, 1])
    }

    fn reader(&self) -> Result<Session> {
        self.session(READER, &[0, 1])
    }
}

/// Demands the end of a command: `None` for GOOD, otherwise key, code and qualifier of its sense data.
fn ends(
    session: &mut Session,
    (lun, cdb): (u64, &[u8]),
    out: &[u8],
    expected: Option<[u8; 3]>,
    what: &str,
) -> Result<()> {
    let answer = session.scsi(lun, cdb, 0, out)?;
    let found = (answer.status != 0).then(|| answer.sense_codes());
    let status = answer.status;
    ensure!(found == expected, "{what}: status {status:#04x}, sense {found:02x?} instead of {expected:02x?}");
    Ok(())
}

/// CDB and parameter list of MODE SELECT(6) with the SWP bit of the Control page.
fn set_write_protect() -> ([u8; 6], Vec<u8>) {
    let page = [0x0a, 10, 0x02, 0x10, 0x08, 0, 0, 0, 0xff, 0xff, 0, 0];
    let list = [&[0; 4][..], &page].concat();
    ([0x15, 0x10, 0, 0, list.len() as u8, 0], list)
}

fn cannot_protect_the_unit(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let (mut writer, mut reader) = (scene.writer()?, scene.reader()?);
    let (cdb, list) = set_write_protect();
    ends(&mut reader, (0, &cdb), &list, DENIED, "MODE SELECT with SWP by a read-only initiator")?;
    ends(&mut writer, (0, &cdb10(0x2a, 0, 1)), &[7; 512], None, "a WRITE afterwards")
}

fn cannot_reserve_the_unit(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let (mut writer, mut reader) = (scene.writer()?, scene.reader()?);
    ends(&mut reader, (0, &RESERVE_6), &[], DENIED, "RESERVE by a read-only initiator")?;
    ends(&mut writer, (0, &cdb10(0x2a, 0, 1)), &[7; 512], None, "a WRITE afterwards")
}

fn cannot_eject_or_keep_the_medium(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let (mut writer, mut reader) = (scene.writer()?, scene.reader()?);
    ends(&mut reader, (0, &EJECT), &[], DENIED, "an eject by a read-only initiator")?;
    ends(&mut writer, (0, &TEST_UNIT_READY), &[], None, "TEST UNIT READY afterwards")?;
    ends(&mut reader, (0, &PREVENT), &[], DENIED, "PREVENT by a read-only initiator")?;
    ends(&mut reader, (0, &ALLOW), &[], DENIED, "ALLOW by a read-only initiator")?;
    ends(&mut writer, (0, &EJECT), &[], None, "an eject by its owner")?;
    ends(&mut writer, (0, &LOAD), &[], None, "a load by its owner")
}

fn is_told_so_and_reads_without_errors(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let (mut writer, mut reader) = (scene.writer()?, scene.reader()?);
    for (session, expected, who) in [(&mut writer, 0, "the writer"), (&mut reader, 0x80, "the reader")] {
        let data = session.good(0, &MODE_SENSE_6, 255, &[])?;
        ensure!(data[2] & 0x80 == expected, "WP of {who}: {:#04x}", data[2]);
    }
    // Commands that a kernel sends to a disk that it mounts read-only.
    for cdb in [&TEST_UNIT_READY[..], &cdb10(0x25, 0, 0), &SYNCHRONIZE_CACHE_10, &[0x1d, 0x04, 0, 0, 0, 0]] {
        reader.good(0, cdb, 8, &[])?;
    }
    reader.read(0, 0, 8)?;
    ends(&mut reader, (0, &cdb10(0x2a, 0, 1)), &[7; 512], PROTECTED, "WRITE")?;
    let same = cdb10(0x41, 0, 1);
    ends(&mut reader, (0, &same), &[7; 512], PROTECTED, "WRITE SAME")?;
    let endpoint = format!("{},initiator={READER}", scene.server.url);
    let info = run(context.command().args(["info", &endpoint, "--json"]), LIMIT)?.success()?.json()?;
    ensure!(info["facts"]["access"] == "ro", "info: {info}");
    let listed = run(context.command().args(["ls", &endpoint]), LIMIT)?.success()?;
    demand!(listed.stdout.split_whitespace().any(|word| word == "ro"), "ls: {}", listed.stdout)
}

fn cannot_end_tasks_and_sessions(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let (mut writer, mut reader) = (scene.writer()?, scene.reader()?);
    for (function, name) in [
        (CLEAR_TASK_SET, "CLEAR TASK SET"),
        (LUN_RESET, "LOGICAL UNIT RESET"),
        (WARM_RESET, "TARGET WARM RESET"),
        (COLD_RESET, "TARGET COLD RESET"),
    ] {
        let answer = reader.manage(function, 0)?;
        ensure!(answer == UNAUTHORIZED, "{name} by a read-only initiator: response {answer}");
        // After a logical unit reset the first command would meet a unit attention; a cold reset would end the session.
        for lun in [0, 1] {
            ends(&mut writer, (lun, &TEST_UNIT_READY), &[], None, name)?;
        }
    }
    let answer = reader.manage(ABORT_TASK_SET, 0)?;
    ensure!(answer == COMPLETE, "ABORT TASK SET, of one's own tasks: response {answer}");
    let answer = writer.manage(WARM_RESET, 0)?;
    ensure!(answer == COMPLETE, "TARGET WARM RESET by an initiator with all rights: response {answer}");
    let log = scene.server.running.stderr();
    demand!(log.contains("task management refused"), "the log does not name the refusal:\n{log}")
}

fn masked_units_are_not_reached_by_resets(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let (mut writer, mut masked) = (scene.writer()?, scene.session(MASKED, &[1])?);
    for (function, lun, expected, name) in [
        (WARM_RESET, 0, UNAUTHORIZED, "TARGET WARM RESET"),
        (COLD_RESET, 0, UNAUTHORIZED, "TARGET COLD RESET"),
        (LUN_RESET, 0, NO_LUN, "LOGICAL UNIT RESET of a masked unit"),
        (CLEAR_TASK_SET, 0, NO_LUN, "CLEAR TASK SET of a masked unit"),
        (ABORT_TASK_SET, 0, NO_LUN, "ABORT TASK SET of a masked unit"),
    ] {
        let answer = masked.manage(function, lun)?;
        ensure!(answer == expected, "{name}: response {answer} instead of {expected}");
        for lun in [0, 1] {
            ends(&mut writer, (lun, &TEST_UNIT_READY), &[], None, name)?;
        }
    }
    ends(&mut masked, (0, &cdb10(0x28, 0, 1)), &[], NO_UNIT, "READ of a masked unit")?;
    let answer = masked.manage(LUN_RESET, 1)?;
    demand!(answer == COMPLETE, "LOGICAL UNIT RESET of a unit that is seen: response {answer}")
}

fn a_refused_reset_ends_no_task_of_its_sender(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let mut reader = scene.reader()?;
    // VERIFY with BYTCHK 01b reads, and waits for the data to compare.
    let verify = [0x2f, 0x02, 0, 0, 0, 0, 0, 0, 1, 0];
    let zeros = [0; 512];
    let command = reader.command(0, &verify, 0, &zeros);
    reader.send(&command)?;
    let r2t = reader.receive()?;
    ensure!(r2t.opcode() == R2T, "opcode {:#x} instead of an R2T", r2t.opcode());
    let answer = reader.manage(LUN_RESET, 0)?;
    ensure!(answer == UNAUTHORIZED, "LOGICAL UNIT RESET: response {answer}");
    reader.send_burst(&r2t, &zeros)?;
    let response = reader.receive().context("the answer to the VERIFY")?;
    let (opcode, status) = (response.opcode(), response.bhs[3]);
    let is_good = opcode == SCSI_RESPONSE && status == 0;
    ensure!(is_good, "opcode {opcode:#x}, status {status:#x} answer the VERIFY");
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let rows: Rows<'_> = &[
        ("rights-read-only-cannot-protect-the-unit-from-others", cannot_protect_the_unit),
        ("rights-read-only-cannot-reserve-the-unit", cannot_reserve_the_unit),
        ("rights-read-only-cannot-eject-or-keep-the-medium", cannot_eject_or_keep_the_medium),
        ("rights-read-only-is-told-so-and-reads-without-errors", is_told_so_and_reads_without_errors),
        ("rights-read-only-cannot-end-the-tasks-and-sessions-of-others", cannot_end_tasks_and_sessions),
        ("rights-masked-units-are-not-reached-by-resets", masked_units_are_not_reached_by_resets),
        ("rights-a-refused-reset-ends-no-task-of-its-sender", a_refused_reset_ends_no_task_of_its_sender),
    ];
    cases.check_each(context, rows);
}
