//! `key`: keys of sealed sessions. Creates a host's key pair, prints its public key, and stores the public keys of
//! trusted targets.

mod list;
mod rotate;

use std::io::{self, BufRead, IsTerminal, Write};
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::time::Duration;

use block::{Location, OpenError};
use clap::Subcommand;
use job::shell::quoted;
use node::initiator::{Url, enquire};
use seal::PublicKey;
use serde_json::{Value, json};

use crate::context::Context;
use crate::endpoint::Named;
use crate::error::{Exit, Failure};
use crate::trust::client::{self, Trusted};
use crate::trust::known::{KnownTargets, Place, Query};
use crate::trust::{fingerprint, identity};
use crate::{advice, output};

/// Timeout of the query for a portal's key.
const ENQUIRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Make, show, trust, list and forget keys of sealed sessions
///
/// Both sides of a sealed session know each other by their public keys: 44 characters, as WireGuard writes them. This
/// host's key lies in $XDG_CONFIG_HOME/hikyaku/identity, the targets it trusts in known-targets beside it (for root without
/// that variable /etc/hikyaku, otherwise ~/.config/hikyaku). Those in /etc/hikyaku/known-targets are trusted for all users.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Enrolment, in three lines:
  hikyaku key new                      once on both hosts; prints a public key
  hikyaku serve disk.img --peers FILE  on the target; FILE lists the initiator:
                                       [[peer]]
                                       name = \"laptop\"
                                       public-key = \"...\"
  hikyaku key trust iscsi://host       on the initiator; compare the key that is
                                       shown with the target's

Examples:
  hikyaku key new && hikyaku key public")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.action {
            Action::New(args) | Action::Public(args) => args.json,
            Action::Rotate(args) => args.of.json,
            Action::Trust(args) => args.json,
            Action::List(args) => args.json,
            Action::Forget(args) => args.json,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a key pair, keep it in a file that only its owner can read, print the public key
    ///
    /// A file that exists is never overwritten.
    #[command(after_help = "\
Examples:
  hikyaku key new
  sudo -u hikyaku hikyaku key new /etc/hikyaku/secrets/server")]
    New(OfFile),
    /// Print the public key of a file made by `key new`
    #[command(
        after_help = "Examples:\n  hikyaku key public\n  hikyaku key public /etc/hikyaku/secrets/server"
    )]
    Public(OfFile),
    Rotate(rotate::RotateArgs),
    Trust(TrustArgs),
    List(list::ListArgs),
    Forget(list::ForgetArgs),
}

#[derive(Debug, clap::Args)]
struct OfFile {
    /// The file of the key pair [default: identity in the configuration directory]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Fetch the public key of a portal and keep it among the known targets
///
/// From then on sessions with this host and port are sealed, and only the holder of that key is accepted; so are
/// sessions with each address that the host has now, under whatever name. Compare the key or its fingerprint with what the
/// target's owner gives you: the key that is accepted first stays trusted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku key trust iscsi://host          shows the key, asks for confirmation
  hikyaku key trust iscsi://host --key K  only if it is this one, even if
                                          another one is known")]
struct TrustArgs {
    /// The portal, iscsi://host or iscsi://host:port; a target or LUN in the URL is ignored
    #[arg(value_name = "URL")]
    url: String,

    /// The key that the portal must have
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    key: Option<PublicKey>,

    /// Believe whatever answers, without asking
    #[arg(long, conflicts_with = "key")]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_key(text: &str) -> Result<PublicKey, String> {
    PublicKey::parse(text).ok_or_else(|| "a public key is 44 characters of base64".to_owned())
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    match &args.action {
        Action::New(of) => {
            let (path, key) = identity::create(of.file.as_deref())?;
            context.remark(&format!("made {}; {}", path.display(), fingerprint(&key)));
            show(of, &key);
        }
        Action::Public(of) => {
            let key = identity::load(of.file.as_deref())?.public();
            context.remark(&fingerprint(&key));
            show(of, &key);
        }
        Action::Rotate(args) => rotate::rotate(context, args)?,
        Action::Trust(args) => trust(context, args)?,
        Action::List(args) => list::list(context, args)?,
        Action::Forget(args) => list::forget(context, args)?,
    }
    Ok(Exit::Done)
}

fn show(of: &OfFile, key: &PublicKey) {
    if of.json {
        output::json(&with_key(json!({ "schema": output::SCHEMA }), key));
    } else {
        output::line(&key.to_string());
    }
}

fn with_key(mut object: Value, key: &PublicKey) -> Value {
    object["public_key"] = json!(key.to_string());
    object["fingerprint"] = json!(fingerprint(key));
    object
}

fn trust(context: &Context, args: &TrustArgs) -> Result<(), Failure> {
    let named = Named::parse(context, &args.url, &[])?;
    let Location::Url(text) = &named.spec.location else {
        let url = advice::meant_url(&named.text, true).unwrap_or_else(|| "iscsi://host".to_owned());
        return Err(Failure::usage("trust", named.text, "it is not a URL")
            .hint(format!("hikyaku key trust {}", quoted(&url))));
    };
    let url = Url::parse(text).map_err(|error| Failure::usage("trust", named.text.clone(), error))?;
    let portal = client::portal(&url);
    let known = KnownTargets::read()?;
    let file = known.own()?;
    let (host, addresses) = (Place::of(&url.host, url.port), addresses(&url)?);
    let places = [std::slice::from_ref(&host), &addresses].concat();
    let before = known.find(Query { places: &places, target: None });
    let answered = enquire(&url, ENQUIRY_TIMEOUT).map_err(|error| {
        let failure = Failure::open("fetch the key of", portal.clone(), &error);
        match error {
            OpenError::Unreachable(_) => failure.hint(
                "see that the target runs (`hikyaku serve ... --peers FILE`) and listens at this address and port, and that no firewall \
                 is between",
            ),
            _ => failure.hint(
                "a target seals with `hikyaku serve ... --peers FILE`; one that has --tls is trusted by tls=FILE instead; `hikyaku ls` \
                 lists what is there",
            ),
        }
    })?;
    let replaced = before.as_ref().ok().and_then(|found| found.as_ref()).map(|found| found.key);
    let is_new = match (before, &args.key) {
        (_, Some(expected)) if *expected != answered => {
            return Err(client::changed(&url, &Trusted::Option(*expected), &answered));
        }
        (Ok(Some(found)), _) if found.key == answered => false,
        // `--key` contains a key that the user has compared: it replaces all others.
        (_, Some(_)) => true,
        (Ok(Some(found)), None) => return Err(client::changed(&url, &Trusted::Known(found), &answered)),
        (Err(disagreement), None) => return Err(disagreement),
        (Ok(None), None) => {
            if !args.yes {
                confirm(&portal, &answered)?;
            }
            true
        }
    };
    // The host may have a new address although its key was known.
    known.set(&host, &addresses, &answered)?;
    let what = match replaced {
        Some(old) if is_new => &format!("trusted from now on, instead of {old}"),
        _ if is_new => "trusted from now on",
        _ => "already trusted",
    };
    if args.json {
        let addresses: Vec<String> = addresses.iter().map(Place::to_string).collect();
        let object = json!({
            "schema": output::SCHEMA,
            "portal": portal,
            "addresses": addresses,
            "is_new": is_new,
            "file": file,
        });
        output::json(&with_key(object, &answered));
    } else {
        output::line(&answered.to_string());
        context.remark(&format!("{portal} is {what}, in {}; {}", file.display(), fingerprint(&answered)));
        if let Some(text) = client::for_every_user(file, &portal, &answered) {
            context.remark(&text);
        }
    }
    Ok(())
}

fn addresses(url: &Url) -> Result<Vec<Place>, Failure> {
    let found = url.address().to_socket_addrs();
    let found = found.map_err(|error| {
        let error = OpenError::Unreachable(format!("looking up {}: {error}", url.host));
        Failure::open("fetch the key of", client::portal(url), &error)
    })?;
    Ok(found.map(Place::at).collect())
}

fn confirm(portal: &str, key: &PublicKey) -> Result<(), Failure> {
    let refused = |cause: &str| {
        Failure::new(Exit::Authentication, "trust", portal, cause).hint(format!(
            "read the target's key on its own host or by telephone (`hikyaku key public` prints it there) and give that one: --key KEY; \
             the portal answered {key}, which proves nothing before the two were compared"
        ))
    };
    if !io::stdin().is_terminal() {
        return Err(refused("its key is not known, and there is no terminal to ask at"));
    }
    let question = format!(
        "The key of {portal} is\n  {key}\n  {}\nIs it what the target's owner told you? (yes/no) ",
        fingerprint(key)
    );
    match ask(&question, &mut io::stderr(), &mut io::stdin().lock()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(refused("you did not say yes")),
        Err(error) => Err(refused(&error.to_string())),
    }
}

/// Asks until the answer is yes or no; the end of the input is a no.
fn ask(question: &str, to: &mut impl Write, from: &mut impl BufRead) -> io::Result<bool> {
    let mut question = question;
    loop {
        to.write_all(question.as_bytes())?;
        to.flush()?;
        let mut answer = String::new();
        let read = from.read_line(&mut answer)?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "yes" => return Ok(true),
            _ if read == 0 => return Ok(false),
            "no" => return Ok(false),
            _ => question = "yes or no? ",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_and_no_answer_a_question() {
        for (typed, expected, times) in [
            ("yes\n", true, 1),
            ("no\n", false, 1),
            ("y\n\nYES\n", true, 3),
            ("n\nno\nyes\n", false, 2),
            ("y\n", false, 2),
            ("", false, 1),
        ] {
            let mut asked = Vec::new();
            assert_eq!(ask("Well? ", &mut asked, &mut typed.as_bytes()).unwrap(), expected, "{typed:?}");
            assert_eq!(asked.iter().filter(|byte| **byte == b'?').count(), times, "{typed:?}");
        }
    }
}
