//! Access lists by initiator name, which any initiator can send.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use seal::Suite;
use tempfile::TempDir;

use super::reload::PLAIN;
use crate::cases::Rows;
use crate::files::empty_file;
use crate::pdu::Session;
use crate::seal::Keys;
use crate::target::private_file;
use crate::{Cases, Context, Output, Server, scratch};

pub(super) const IQN: &str = "iqn.2026-11.org.example:claims";
pub(super) const LAPTOP: &str = "iqn.2026-11.org.example:laptop";
pub(super) const BACKUP: &str = "iqn.2026-11.org.example:backup";
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// The secret of the users that the configurations name.
pub(super) const SECRET: &str = "secret-of-16-byt";

#[derive(Debug)]
pub(super) struct Estate {
    pub(super) dir: TempDir,
}

impl Estate {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { dir: scratch()? })
    }

    /// An estate with `a.img` of 1 MiB and the secrets of these users.
    pub(super) fn with_users(users: &[&str]) -> Result<Self> {
        let estate = Self::new()?;
        estate.disk("a.img", 1 << 20)?;
        for user in users {
            estate.write(&format!("{user}.secret"), &format!("{SECRET}\n"))?;
        }
        Ok(estate)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<()> {
        let new = private_file(self.path(&format!("{name}.new")), text)?;
        Ok(std::fs::rename(&new, self.path(name))?)
    }

    pub(super) fn disk(&self, name: &str, bytes: u64) -> Result<()> {
        empty_file(self.path(name), bytes).map(drop)
    }

    /// Writes `hikyaku.toml` with one target: `server` and `acls` literally, a LUN for each file.
    pub(super) fn configure(&self, server: &str, luns: &[(u16, &str)], acls: &str) -> Result<()> {
        let dir = self.dir.path().display();
        let lun = |(lun, file): &(u16, &str)| {
            let endpoint = if file.contains(':') { (*file).to_owned() } else { format!("{dir}/{file}") };
            format!("[[target.lun]]\nlun = {lun}\nendpoint = \"{endpoint}\"\n")
        };
        let luns: String = luns.iter().map(lun).collect();
        let text = format!("[server]\n{server}\n[[target]]\niqn = \"{IQN}\"\n{luns}{acls}");
        self.write("hikyaku.toml", &text.replace("DIR", &dir.to_string()))
    }

    pub(super) fn check(&self, context: &Context) -> Result<Output> {
        context.ours(&[Path::new("check"), &self.path("hikyaku.toml")], LIMIT)
    }

    /// Demands that `check` and `serve` refuse the configuration with this exit code and these words.
    fn refused(&self, context: &Context, code: i32, words: &[&str]) -> Result<()> {
        let serve = [Path::new("serve"), Path::new("--config"), &self.path("hikyaku.toml")];
        let outputs = [self.check(context)?, context.ours(&serve, LIMIT)?];
        outputs.into_iter().try_for_each(|output| output.expect(code)?.says_all(words).map(drop))
    }

    pub(super) fn serve(&self, context: &Context) -> Result<Server> {
        let mut command = context.command_in(self.dir.path());
        Server::start(command.arg("serve").arg("--config").arg(self.path("hikyaku.toml")), 1)
    }
}

/// The URL of a LUN with the user and the secret in it.
pub(super) fn as_user(server: &Server, user: &str, secret: &str, lun: u16) -> String {
    format!("iscsi://{user}%{secret}@{}/{IQN}/{lun}", server.url.portal)
}

pub(super) fn refused(login: Result<Session>, status: &str) -> Result<()> {
    match login {
        Ok(_) => bail!("the login succeeds"),
        Err(error) => {
            let text = format!("{error:#}");
            let words = [format!("refused with {status}"), format!("status {status}")];
            demand!(words.iter().any(|words| text.contains(words)), "{text}")
        }
    }
}

pub(super) fn isid(number: u8) -> [u8; 6] {
    [0x80, 0, 0, 0, 1, number]
}

/// An ACL by name alone does not protect a listener that every host can reach: `check` and `serve` refuse it.
fn exposed(context: &Context, acls: &str) -> Result<()> {
    let estate = Estate::with_users(&["u"])?;
    estate.configure("listen = [\"0.0.0.0:0\"]", &[(0, "a.img")], acls)?;
    estate.refused(context, 6, &["neither CHAP nor a key"])
}

/// The log has the reason of each refused login, and the identity of each successful one.
fn logged(context: &Context) -> Result<()> {
    let estate = Estate::with_users(&["u"])?;
    let acl =
        "[[target.acl]]\nchap-user = \"u\"\nsecret-file = \"DIR/u.secret\"\nluns = [0]\nmode = \"ro\"\n";
    estate.configure(PLAIN, &[(0, "a.img")], acl)?;
    let server = estate.serve(context)?;
    let url = |user, secret| as_user(&server, user, secret, 0);
    let info = |url: &str| context.ours(&["info", url], LIMIT);
    let mistyped = "iqn.2026-11.org.example:mistyped";
    for (url, reason) in [
        (url("u", "another-of-16-by"), "wrong secret of CHAP user \\\"u\\\""),
        (url("v", SECRET), "CHAP user \\\"v\\\" has no account here"),
        (url("u", SECRET).replace(IQN, mistyped), &format!("{mistyped}, which is no target here")),
        (server.url.to_string(), "CHAP is required, and the initiator does not offer it"),
    ] {
        // At most four refusals in a second are logged in full.
        std::thread::sleep(Duration::from_millis(1100));
        let from = server.running.stderr().len();
        info(&url)?.expect(4)?;
        server.logs(from, reason)?;
    }
    let bound = format!(
        "[[target.acl]]\ninitiator = \"{LAPTOP}\"\nchap-user = \"u\"\nsecret-file = \"DIR/u.secret\"\n"
    );
    let other = Estate::with_users(&["u"])?;
    other.configure(PLAIN, &[(0, "a.img")], &bound)?;
    let another = other.serve(context)?;
    info(&as_user(&another, "u", SECRET, 0))?.expect(4)?;
    another.logs(0, "has an account here, but not for this initiator")?;
    let from = server.running.stderr().len();
    info(&url("u", SECRET))?.success()?;
    let line = server.logs(from, "logged in")?;
    let parts = ["chap_user=\"u\"", "protection=\"chap\"", "luns=\"0,ro\""];
    parts.iter().try_for_each(|part| demand!(line.contains(part), "no {part} in {line}"))
}

/// `--seal off` makes a list of peers ineffective, which is reported.
fn contradiction(context: &Context) -> Result<()> {
    let estate = Estate::new()?;
    estate.write("peers.toml", "")?;
    let peers = estate.path("peers.toml").display().to_string();
    let arguments = ["serve", "mem:1M", "--listen", "127.0.0.1:0", "--seal", "off", "--peers", &peers];
    let said = Server::start(context.command().args(arguments), 1)?.running.stderr();
    demand!(said.contains("no session is sealed") && said.contains(&peers), "{said}")
}

/// The same configuration passes if every row requires a proof.
fn protected(context: &Context) -> Result<()> {
    let estate = Estate::with_users(&["u"])?;
    let acl = format!(
        "[[target.acl]]\ninitiator = \"{LAPTOP}\"\nchap-user = \"u\"\nsecret-file = \"DIR/u.secret\"\n"
    );
    estate.configure("listen = [\"0.0.0.0:0\"]", &[(0, "a.img")], &acl)?;
    estate.check(context)?.success().map(|_| ())
}

/// Two peers and their keys; if `bound`, `laptop` is bound to its name.
fn peers(context: &Context, estate: &Estate, bound: bool) -> Result<[Keys; 3]> {
    let keys = ["target", "laptop", "backup"].map(|name| Keys::new(context, estate.dir.path(), name));
    let [target, laptop, backup] = keys;
    let (target, laptop, backup) = (target?, laptop?, backup?);
    let bound = if bound { format!("initiator = \"{LAPTOP}\"") } else { String::new() };
    estate.write("peers.toml", &(laptop.peer("laptop", &bound) + &backup.peer("backup", "")))?;
    Ok([target, laptop, backup])
}

pub(super) const SEALED: &str =
    "listen = [\"127.0.0.1:0\"]\nidentity = \"DIR/target.key\"\npeers = \"DIR/peers.toml\"";

/// A name counts only together with the key that it is bound to.
fn name_of_another(context: &Context) -> Result<()> {
    let estate = Estate::new()?;
    let [target, laptop, backup] = peers(context, &estate, true)?;
    estate.disk("laptop.img", 1 << 20)?;
    estate.disk("backup.img", 1 << 20)?;
    let acls = format!(
        "[[target.acl]]\ninitiator = \"{LAPTOP}\"\nluns = [0]\n[[target.acl]]\npeer = \"backup\"\nluns = [1]\n"
    );
    estate.configure(SEALED, &[(0, "laptop.img"), (1, "backup.img")], &acls)?;
    let server = estate.serve(context)?;
    let mut own = Session::login_sealed(&server.url, LAPTOP, isid(1), &laptop.who(&target, Suite::ALL[0])?)?;
    own.write(0, 0, &[0xaa; 512])?;
    // The peer `backup` sends the name of `laptop`, and gets the rights of its own row.
    let mut typed =
        Session::login_sealed(&server.url, LAPTOP, isid(2), &backup.who(&target, Suite::ALL[0])?)?;
    ensure!(typed.read(0, 0, 1).is_err(), "peer `backup` reads the LUN of `laptop` by its name");
    demand!(typed.read(1, 0, 1)? == [0; 512], "its own LUN")
}

/// A row by a name without a bound key is an error in the configuration, reported with its line.
fn unbound(context: &Context) -> Result<()> {
    let estate = Estate::with_users(&[])?;
    peers(context, &estate, false)?;
    let acl = format!("[[target.acl]]\ninitiator = \"{LAPTOP}\"\n");
    estate.configure(SEALED, &[(0, "a.img")], &acl)?;
    estate.refused(context, 2, &["line 10", "peer ="])
}

/// Rows by CHAP user alone: each user gets the LUNs and the mode of its row.
fn user_decides(context: &Context) -> Result<()> {
    let estate = Estate::new()?;
    for user in ["a", "b", "c"] {
        estate.write(&format!("{user}.secret"), &format!("secret-of-{user}-16-b\n"))?;
    }
    estate.disk("0.img", 1 << 20)?;
    estate.disk("1.img", 1 << 20)?;
    let row = |user: &str, more: &str| {
        format!("[[target.acl]]\nchap-user = \"{user}\"\nsecret-file = \"DIR/{user}.secret\"\n{more}\n")
    };
    let acls = row("a", "luns = [0]\nmode = \"ro\"") + &row("b", "luns = [1]") + &row("c", "");
    estate.configure(PLAIN, &[(0, "0.img"), (1, "1.img")], &acls)?;
    estate.check(context)?.success()?;
    let server = estate.serve(context)?;
    let url = |user: &str, lun| as_user(&server, user, &format!("secret-of-{user}-16-b"), lun);
    let copy =
        |to: String| context.ours(&["copy", "pattern:64K", &format!("{to},timeout=5s"), "--force"], LIMIT);
    let info = |url: &str| context.ours(&["info", url], LIMIT);
    copy(url("b", 1))?.success().context("user b writes LUN 1")?;
    copy(url("c", 0))?.success().context("user c writes LUN 0")?;
    ensure!(copy(url("a", 0))?.code != Some(0), "user a writes LUN 0, which is read-only for it");
    ensure!(copy(url("b", 0))?.code != Some(0), "user b writes LUN 0, which it does not see");
    info(&url("a", 0))?.success().context("user a reads LUN 0")?;
    ensure!(info(&url("a", 1))?.code != Some(0), "user a sees LUN 1");
    // The secret of one user does not give the rights of another.
    info(&as_user(&server, "b", "secret-of-a-16-b", 1))?.expect(4)?;
    // Discovery lists the LUNs that the user may use.
    let portal = format!("iscsi://a%secret-of-a-16-b@{}", server.url.portal);
    let listed = context.ours(&["ls", &portal], LIMIT)?.success()?;
    demand!(listed.stdout.contains(IQN), "{}", listed.stdout)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let by_name = format!("[[target.acl]]\ninitiator = \"{LAPTOP}\"\n");
    cases.check("claims-name-alone-is-no-protection", || exposed(context, &by_name));
    let beside = format!(
        "[[target.acl]]\ninitiator = \"{LAPTOP}\"\nchap-user = \"u\"\nsecret-file = \"DIR/u.secret\"\n\
         [[target.acl]]\ninitiator = \"{BACKUP}\"\n"
    );
    cases.check("claims-name-beside-chap-is-no-protection", || exposed(context, &beside));
    let rows: Rows<'_> = &[
        ("claims-chap-in-every-row-is-protection", protected),
        ("claims-name-of-another-key", name_of_another),
        ("claims-name-without-a-key", unbound),
        ("claims-user-decides", user_decides),
        ("claims-refused-logins-are-logged", logged),
        ("claims-peers-that-nothing-asks-for", contradiction),
    ];
    cases.check_each(context, rows);
}
