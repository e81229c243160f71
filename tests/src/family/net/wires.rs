//! Two stacks of one wire: they come, wait and end in any order.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use net::socket::{Stack, TcpListener, TcpStream};
use serde_json::Value;
use tempfile::TempDir;

use super::place::LIMIT;
use crate::{Cases, Context, Running, scratch, wait_until};

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("wire-waits", || waits(context));
    cases.check("wire-third-end", || third_end(context));
    cases.check("wire-joined-again", || joined_again(context));
}

/// Where the wire and the sockets of its stacks are.
struct Place<'a> {
    context: &'a Context,
    dir: TempDir,
}

impl<'a> Place<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        Ok(Self { context, dir: scratch()? })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Stack `number`, with that number in its address and its socket's name.
    fn start(&self, number: u8) -> Result<Running> {
        let mut command = self.context.command();
        command.args(["net", "up", "--address", &format!("10.81.0.{number}/24")]);
        command.arg("--nic").arg(format!("wire:{}", self.path("wire").display()));
        command.arg("--socket").arg(self.path(&number.to_string()));
        Running::start(&mut command)
    }

    fn status(&self, number: u8) -> Result<Value> {
        let socket = self.path(&number.to_string()).display().to_string();
        self.context.ours(&["net", "status", "--json", "--socket", &socket], LIMIT)?.success()?.json()
    }

    fn wait_for(&self, number: u8, state: &str) -> Result<()> {
        wait_until(LIMIT, || Ok(self.status(number)?["state"] == state))
            .with_context(|| format!("stack {number} is not {state}"))
    }

    fn wait_for_socket(&self, number: u8) -> Result<()> {
        wait_until(LIMIT, || Ok(self.path(&number.to_string()).exists()))
    }
}

/// A stack that waits for the other end can be asked, and ended; it leaves no file.
fn waits(context: &Context) -> Result<()> {
    let place = Place::new(context)?;
    let mut one = place.start(1)?;
    place.wait_for_socket(1)?;
    place.wait_for(1, "waiting_for_wire")?;
    crate::schema::Schema::load("net-status")?.check(&place.status(1)?)?;
    for name in ["wire", "1"] {
        let mode = place.path(name).metadata()?.permissions().mode();
        ensure!(mode & 0o777 == 0o600, "{name} has mode {mode:o}");
    }
    one.signal(libc::SIGTERM)?;
    one.finish(LIMIT)?.success()?;
    let left = std::fs::read_dir(place.dir.path())?.count();
    demand!(left == 0, "{left} files are left")
}

fn third_end(context: &Context) -> Result<()> {
    let place = Place::new(context)?;
    let stacks = [place.start(1)?, place.start(2)?];
    for number in [1, 2] {
        place.wait_for_socket(number)?;
        place.wait_for(number, "up")?;
    }
    place.start(3)?.finish(LIMIT)?.expect(1)?.says("two stacks use this wire already")?;
    drop(stacks);
    // Killed: their files are there. A new pair takes them over.
    let _stacks = [place.start(1)?, place.start(2)?];
    wait_until(LIMIT, || Ok(place.status(1).is_ok_and(|status| status["state"] == "up")))
}

/// Each end in turn is killed and comes back. What listens at the other end goes on.
fn joined_again(context: &Context) -> Result<()> {
    let place = Place::new(context)?;
    let mut stacks = [place.start(1)?];
    place.wait_for_socket(1)?;
    let mut second = place.start(2)?;
    place.wait_for_socket(2)?;
    place.wait_for(1, "up")?;
    let listening = Stack::connect(place.path("1"))?;
    let listener = TcpListener::bind(&listening, ("10.81.0.1", 7))?;
    for _ in 0..2 {
        second.kill();
        place.wait_for(1, "wire_ended")?;
        second = place.start(2)?;
        place.wait_for(1, "up")?;
        let connecting = Stack::connect(place.path("2"))?;
        let stream = TcpStream::connect(&connecting, ("10.81.0.1", 7))?;
        listener.accept()?;
        drop(stream);
    }
    let log = stacks[0].stderr();
    ensure!(log.matches("has ended; another one can join it").count() == 2, "{log}");
    // The end that listened: the one that had connected listens now.
    drop((listener, listening));
    stacks[0].kill();
    place.wait_for(2, "wire_ended")?;
    stacks[0] = place.start(1)?;
    place.wait_for(2, "up")?;
    let [listening, connecting] = ["2", "1"].map(|name| Stack::connect(place.path(name)));
    let listener = TcpListener::bind(&listening?, ("10.81.0.2", 7))?;
    let _stream = TcpStream::connect(&connecting?, ("10.81.0.2", 7))?;
    listener.accept().map(drop).context("accept")
}
