//! `key rotate`: replaces a key pair by a next one, which the servers of the present one have announced before.

use std::time::{Duration, UNIX_EPOCH};

use job::shell::quoted;
use job::units;
use serde_json::{Value, json};

use super::{OfFile, with_key};
use crate::context::Context;
use crate::control::Request;
use crate::control::client;
use crate::error::Failure;
use crate::output;
use crate::trust::fingerprint;
use crate::trust::identity::{self, Rotation};

/// Replace the key of a target without a new enrolment of its initiators
///
/// Makes the next key pair beside the present one, in FILE.next. From its next reload (SIGHUP) the server announces the next key
/// in each sealed login, with a proof that it holds it, and initiators accept both keys from then on. `--finish` makes the next key
/// the present one, for the next start of the server; initiators that have not logged in since the announcement need `key trust`
/// again. It asks the running servers at their control sockets, and refuses if none has announced the key to a login.
///
/// The key of an initiator is announced by no server: list the next key as a second peer in the peers file of each target, reload the
/// server there, then `--finish --force` here, and remove the first peer.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku key rotate && hikyaku ctl reload       announce the next key
  hikyaku status                                 sealed logins since then
  hikyaku key rotate --finish                    when the initiators have logged
                                                 in; then restart the server")]
pub(super) struct RotateArgs {
    #[command(flatten)]
    pub(super) of: OfFile,

    /// Make the next key the present one; the present private key is removed
    #[arg(long)]
    finish: bool,

    /// Do so although no running server has announced the next key
    #[arg(long, requires = "finish")]
    force: bool,
}

pub(super) fn rotate(context: &Context, args: &RotateArgs) -> Result<(), Failure> {
    let file = args.of.file.as_deref();
    let rotation = if args.finish {
        let rotation = identity::begun_rotation(file)?;
        if !args.force {
            let announced = announced(&rotation, &Servers::ask(&rotation))?;
            context.remark(&announced);
        }
        identity::finish_rotation(&rotation.file)?;
        rotation
    } else {
        identity::begin_rotation(file)?
    };
    let Rotation { file, present, next } = &rotation;
    if args.of.json {
        let object = json!({
            "schema": output::SCHEMA,
            "finished": args.finish,
            "file": file,
            "next_public_key": next.to_string(),
            "next_fingerprint": fingerprint(next),
        });
        output::json(&with_key(object, present));
        return Ok(());
    }
    let [was, is] = if args.finish { ["former", "present"] } else { ["present", "next"] };
    output::line(&format!("{was} {present} {}", fingerprint(present)));
    output::line(&format!("{is} {next} {}", fingerprint(next)));
    if args.finish {
        context.remark(
            "restart the server. Initiators that have logged in since the next key was announced accept it; the others need \
             hikyaku key trust; which ones these are is not recorded here",
        );
        return Ok(());
    }
    let finish = finish(args);
    context.remark(&format!(
        "of a target: reload the server (hikyaku ctl reload), which announces the next key from then on; when every initiator has \
         logged in (hikyaku status counts sealed logins): {finish}"
    ));
    context.remark(&format!(
        "of an initiator: in the peers file of each target add a second [[peer]], with another name, public-key = \"{next}\" and \
         what else the first has; there: hikyaku ctl reload; try it here: hikyaku info URL,identity={}; then {finish} --force; then \
         remove the first [[peer]] and reload again",
        identity::next_file(file).display()
    ));
    Ok(())
}

/// The command that ends this rotation.
fn finish(args: &RotateArgs) -> String {
    let file = args.of.file.as_ref().map(|file| format!(" {}", quoted(&file.display().to_string())));
    format!("hikyaku key rotate{} --finish", file.unwrap_or_default())
}

/// What the running servers with the present key say of the next one.
#[derive(Debug, Default)]
struct Servers {
    /// Announce the next key: PID, since when in seconds since 1970, sealed logins since then.
    announcing: Vec<(u64, u64, u64)>,
    /// PIDs of those that do not announce it.
    silent: Vec<u64>,
    /// Servers that only another user may ask.
    denied: usize,
}

impl Servers {
    fn ask(rotation: &Rotation) -> Self {
        let found = client::find();
        let mut servers = Self { denied: found.denied, ..Self::default() };
        for process in found.processes.iter().filter(|process| process.command == "serve") {
            if let Ok(status) = process.ask(&Request::Status {}) {
                servers.add(rotation, process.pid.into(), &status);
            }
        }
        servers
    }

    fn add(&mut self, Rotation { present, next, .. }: &Rotation, pid: u64, status: &Value) {
        let announced = &status["next_key"];
        if status["public_key"] != present.to_string() {
            return;
        }
        if announced["public_key"] != next.to_string() {
            self.silent.push(pid);
            return;
        }
        let number = |name: &str| announced[name].as_u64().unwrap_or_default();
        self.announcing.push((pid, number("since_unix_s"), number("sealed_logins")));
    }
}

/// Since when and to how many logins the next key was announced. Refuses a next key that no initiator can know of, and one
/// that a server with the present key does not announce: its initiators forget it again.
fn announced(rotation: &Rotation, servers: &Servers) -> Result<String, Failure> {
    let refused = |cause: String, instead: &str| {
        Err(Failure::refused("finish the rotation of", rotation.file.display().to_string(), cause).hint(format!(
            "{instead}; --force makes the next key the present one all the same: initiators that do not know it then need \
             hikyaku key trust"
        )))
    };
    if let Some(pid) = servers.silent.first() {
        let instead = format!("hikyaku ctl reload --pid {pid}, and wait until the initiators have logged in");
        return refused(
            format!("the server with PID {pid} has this key and does not announce the next one"),
            &instead,
        );
    }
    let (Some((pid, since, _)), logins) =
        (servers.announcing.first(), servers.announcing.iter().map(|(_, _, logins)| logins).sum::<u64>())
    else {
        let cause = "no running server has announced the next key, as far as this user can see";
        let instead = match servers.denied {
            0 => {
                "start or reload the server (hikyaku ctl reload), and wait until the initiators have logged in; the next key of an \
                 initiator is listed in the peers file of each target instead, before --force"
            }
            _ => "ask those of other users too: sudo",
        };
        return refused(cause.to_owned(), instead);
    };
    let since = units::utc(UNIX_EPOCH + Duration::from_secs(*since));
    if logins == 0 {
        let cause = format!(
            "the server with PID {pid} announces the next key since {since}, and no initiator has logged in sealed since then"
        );
        return refused(
            cause,
            "wait until the initiators have logged in (hikyaku status counts sealed logins)",
        );
    }
    Ok(format!("the next key was announced since {since}, in {}", units::counted(logins, "sealed login")))
}

#[cfg(test)]
mod tests {
    use seal::PublicKey;

    use super::*;

    fn status(key: u8, next: Option<(u8, u64)>) -> Value {
        let text = |byte: u8| PublicKey([byte; 32]).to_string();
        let next = next.map(
            |(next, logins)| json!({ "public_key": text(next), "since_unix_s": 86_400, "sealed_logins": logins }),
        );
        json!({ "public_key": text(key), "next_key": next })
    }

    #[test]
    fn a_rotation_ends_only_when_a_login_can_have_learnt_the_next_key() {
        let rotation = Rotation { file: "k".into(), present: PublicKey([1; 32]), next: PublicKey([2; 32]) };
        for (statuses, denied, expected) in [
            (vec![], 0, Err("no running server has announced")),
            (vec![], 1, Err("no running server has announced")),
            // Of other keys, and of a release without these fields.
            (vec![status(3, Some((2, 5))), json!({})], 0, Err("no running server has announced")),
            (vec![status(1, None)], 0, Err("PID 10 has this key and does not announce")),
            (vec![status(1, Some((4, 5)))], 0, Err("PID 10 has this key and does not announce")),
            (vec![status(1, Some((2, 5))), status(1, None)], 0, Err("PID 11 has this key")),
            (vec![status(1, Some((2, 0)))], 0, Err("since 1970-01-02 00:00:00 UTC, and no initiator")),
            (vec![status(1, Some((2, 1)))], 1, Ok("since 1970-01-02 00:00:00 UTC, in 1 sealed login")),
            (vec![status(1, Some((2, 0))), status(1, Some((2, 3)))], 0, Ok("in 3 sealed logins")),
        ] {
            let mut servers = Servers { denied, ..Servers::default() };
            for (pid, status) in (10..).zip(&statuses) {
                servers.add(&rotation, pid, status);
            }
            let said = announced(&rotation, &servers);
            match (&said, expected) {
                (Ok(text), Ok(part)) => assert!(text.contains(part), "{statuses:?}: {text}"),
                (Err(failure), Err(part)) => {
                    assert!(failure.cause.contains(part), "{statuses:?}: {failure}");
                    assert!(failure.hint.contains("--force"), "{failure}");
                    assert_eq!(failure.hint.contains("sudo"), denied > 0, "{failure}");
                }
                _ => panic!("{statuses:?}: {said:?}"),
            }
        }
    }
}
