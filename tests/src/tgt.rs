//! tgt (Linux SCSI target framework) under a guard: the peer of comparisons with `hikyaku serve`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use super::{Credentials, Disk, Running, Url, free_port, program, run, wait_until};

/// Number of tgtd's control socket; the directory is unique to the instance, so the number need not be.
const CONTROL: &str = "1";
const READY_LIMIT: Duration = Duration::from_secs(15);
const ADMIN_LIMIT: Duration = Duration::from_secs(15);
/// tgt derives the identity of a LUN from its numbers alone: with equal numbers, two instances would show one disk.
static NEXT_TARGET: AtomicU32 = AtomicU32::new(1);

#[derive(Debug)]
pub struct Tgt {
    running: Running,
    urls: Vec<Url>,
    tid: String,
    dir: TempDir,
}

impl Tgt {
    /// Serves disks, numbered from LUN 1 (LUN 0 is tgt's controller), on a free port of the loopback address.
    pub fn serve(disks: &[Disk], credentials: Option<&Credentials>) -> Result<Self> {
        let tid = NEXT_TARGET.fetch_add(1, Ordering::Relaxed).to_string();
        Self::serve_as(&tid, free_port()?, disks, credentials)
    }

    /// Kills tgtd and starts another one on the same port, without credentials.
    pub fn killed_and_restarted(mut self, disks: &[Disk]) -> Result<Self> {
        let port = self.urls[0].port()?;
        self.running.signal(libc::SIGKILL)?;
        let Self { running, tid, .. } = self;
        running.finish(READY_LIMIT)?;
        Self::serve_as(&tid, port, disks, None)
    }

    fn serve_as(tid: &str, port: u16, disks: &[Disk], credentials: Option<&Credentials>) -> Result<Self> {
        let dir = super::scratch()?;
        let iqn = format!("iqn.2026-11.org.example:tgt-{tid}");
        let mut command = program("tgtd")?;
        command.args(["-f", "-C", CONTROL, "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        command.env("TGT_IPC_SOCKET", dir.path().join("control"));
        let running = Running::start(&mut command)?;
        let urls = (1..=disks.len())
            .map(|lun| Url { portal: format!("127.0.0.1:{port}"), iqn: iqn.clone(), lun: lun as u64 })
            .collect();
        let mut tgt = Self { running, urls, tid: tid.to_owned(), dir };
        tgt.wait_ready()?;
        tgt.admin(&["--mode", "target", "--op", "new", "--tid", tid, "-T", &iqn])?;
        for (index, disk) in disks.iter().enumerate() {
            tgt.add(index + 1, disk)?;
        }
        if let Some(Credentials { user, secret }) = credentials {
            tgt.admin(&["--mode", "account", "--op", "new", "--user", user, "--password", secret])?;
            tgt.admin(&["--mode", "account", "--op", "bind", "--tid", tid, "--user", user])?;
        }
        tgt.admin(&["--mode", "target", "--op", "bind", "--tid", tid, "-I", "ALL"])?;
        Ok(tgt)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let ready = wait_until(READY_LIMIT, || {
            self.running.alive()?;
            Ok(self.admin(&["--mode", "target", "--op", "show"]).is_ok())
        });
        ready.with_context(|| format!("tgtd does not start: {}", self.running.stderr_tail()))
    }

    fn add(&self, lun: usize, disk: &Disk) -> Result<()> {
        if disk.endpoint.contains(':') || !disk.options.is_empty() {
            bail!("tgt serves plain files only, not {} with {:?}", disk.endpoint, disk.options);
        }
        let (tid, lun) = (&self.tid, lun.to_string());
        let unit = ["--mode", "logicalunit", "--tid", tid, "--lun", &lun, "--op"];
        let block_size = disk.block_size.map(|bytes| bytes.to_string());
        let mut arguments = [&unit, &["new", "-b", &disk.endpoint][..]].concat();
        if let Some(block_size) = &block_size {
            arguments.extend(["--blocksize", block_size]);
        }
        self.admin(&arguments)?;
        for (on, parameter) in [
            (disk.thin, "thin_provisioning=1"),
            (disk.removable, "removable=1"),
            (disk.read_only, "readonly=1"),
        ] {
            if on {
                self.admin(&[&unit, &["update", "--params", parameter][..]].concat())?;
            }
        }
        Ok(())
    }

    fn admin(&self, arguments: &[&str]) -> Result<()> {
        let mut command = program("tgtadm")?;
        command.args(["-C", CONTROL, "--lld", "iscsi"]).args(arguments);
        command.env("TGT_IPC_SOCKET", self.dir.path().join("control"));
        run(&mut command, ADMIN_LIMIT)?.success().context("tgtadm").map(|_| ())
    }

    pub fn running(&mut self) -> &mut Running {
        &mut self.running
    }

    pub fn url(&self, index: usize) -> &Url {
        &self.urls[index]
    }
}
