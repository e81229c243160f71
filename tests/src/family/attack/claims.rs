//! Access lists by initiator name, which any initiator can send.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use seal::{Identity, PublicKey, Suite};
use tempfile::TempDir;

use super::reload::PLAIN;
use crate::files::empty_file;
use crate::pdu::Session;
use crate::seal::Who;
use crate::{Cases, Context, Output, Running, Url, scratch};

pub(super) const IQN: &str = "iqn.2026-11.org.example:claims";
pub(super) const LAPTOP: &str = "iqn.2026-11.org.example:laptop";
pub(super) const BACKUP: &str = "iqn.2026-11.org.example:backup";
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// Time limit of a line of the log, and of an event that the target starts by itself.
const LINE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Estate {
    pub(super) dir: TempDir,
}

#[derive(Debug)]
pub(super) struct Keys {
    file: PathBuf,
    pub(super) public: String,
}

impl Keys {
    /// The parameters for the harness's own initiator against `target`.
    pub(super) fn who(&self, target: &Keys) -> Result<Who> {
        let text = std::fs::read_to_string(&self.file)?;
        let line = text.lines().map(str::trim).find(|line| line.len() == 44 && !line.starts_with('#'));
        let identity = Identity::parse(line.context("no key in the file")?).context("the key")?;
        let target = PublicKey::parse(&target.public).context("the target's key")?;
        Ok(Who { identity, target, suite: Suite::ALL[0] })
    }
}

impl Estate {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { dir: scratch()? })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn keys(&self, context: &Context, name: &str) -> Result<Keys> {
        let file = self.path(&format!("{name}.key"));
        let output = context.ours(&[Path::new("key"), Path::new("new"), &file], LIMIT)?.success()?;
        Ok(Keys { file, public: output.stdout.trim().to_owned() })
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let new = self.path(&format!("{name}.new"));
        std::fs::write(&new, text)?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
        Ok(std::fs::rename(&new, self.path(name))?)
    }

    pub(super) fn disk(&self, name: &str, bytes: u64) -> Result<()> {
        empty_file(&self.path(name), bytes)
    }

    /// Writes `hikyaku.toml` with one target: `server` and `acls` literally, a LUN for each file.
    pub(super) fn configure(&self, server: &str, luns: &[(u16, &str)], acls: &str) -> Result<()> {
        let dir = self.dir.path().display();
        let lun = |(lun, file): &(u16, &str)| {
            let endpoint = if file.contains(':') { (*file).to_owned() } else { format!("{dir}/{file}") };
            format!("[[target.lun]]\nlun = {lun}\nendpoint = \"{endpoint}\"\n")
        };
        let luns: String = luns.iter().map(lun).collect();
        self.write(
            "hikyaku.toml",
            &format!("[server]\n{server}\n[[target]]\niqn = \"{IQN}\"\n{luns}{acls}")
                .replace("DIR", &dir.to_string()),
        )
    }

    pub(super) fn check(&self, context: &Context) -> Result<Output> {
        context.ours(&[Path::new("check"), &self.path("hikyaku.toml")], LIMIT)
    }

    pub(super) fn serve(&self, context: &Context) -> Result<Server> {
        let mut command = context.command_in(self.dir.path());
        command.arg("serve").arg("--config").arg(self.path("hikyaku.toml"));
        let mut running = Running::start(&mut command)?;
        let url = running.wait_stdout("a URL", LIMIT, |text| text.lines().next().map(str::to_owned))?;
        Ok(Server { running, url: Url::parse(&url)? })
    }
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) running: Running,
    pub(super) url: Url,
}

impl Server {
    pub(super) fn logs(&self, from: usize, words: &str) -> Result<String> {
        let until = Instant::now() + LINE;
        loop {
            let log = self.running.stderr();
            if let Some(line) = log.get(from..).unwrap_or_default().lines().find(|line| line.contains(words))
            {
                return Ok(line.to_owned());
            }
            ensure!(Instant::now() < until, "no line with {words:?} in its log:\n{log}");
            std::thread::sleep(POLL);
        }
    }

    pub(super) fn as_user(&self, user: &str, secret: &str, lun: u16) -> String {
        format!("iscsi://{user}%{secret}@{}/{IQN}/{lun}", self.url.portal)
    }
}

pub(super) fn refused(login: Result<Session>, status: &str) -> Result<()> {
    match login {
        Ok(_) => bail!("the login succeeds"),
        Err(error) => {
            let text = format!("{error:#}");
            ensure!(
                text.contains(&format!("refused with {status}"))
                    || text.contains(&format!("status {status}")),
                "{text}"
            );
            Ok(())
        }
    }
}

pub(super) fn isid(number: u8) -> [u8; 6] {
    [0x80, 0, 0, 0, 1, number]
}

/// An ACL by name alone does not protect a listener that every host can reach: `check` and `serve` refuse it.
fn exposed(context: &Context, acls: &str, message: &str) -> Result<()> {
    let estate = Estate::new()?;
    estate.write("u.secret", "secret-of-16-byt\n")?;
    estate.disk("a.img", 1 << 20)?;
    estate.configure("listen = [\"0.0.0.0:0\"]", &[(0, "a.img")], acls)?;
    let checked = estate.check(context)?.expect(6)?;
    ensure!(checked.stderr.contains(message), "{}", checked.stderr);
    let served =
        context.ours(&[Path::new("serve"), Path::new("--config"), &estate.path("hikyaku.toml")], LIMIT)?;
    let served = served.expect(6)?;
    ensure!(served.stderr.contains(message), "{}", served.stderr);
    Ok(())
}

/// The log has the reason of each refused login, and the identity of each successful one.
fn logged(context: &Context) -> Result<()> {
    let estate = Estate::new()?;
    estate.write("u.secret", "secret-of-16-byt\n")?;
    estate.disk("a.img", 1 << 20)?;
    let acl =
        "[[target.acl]]\nchap-user = \"u\"\nsecret-file = \"DIR/u.secret\"\nluns = [0]\nmode = \"ro\"\n";
    estate.configure(PLAIN, &[(0, "a.img")], acl)?;
    let server = estate.serve(context)?;
    let other = |url: String| url.replace(IQN, "iqn.2026-11.org.example:mistyped");
    let info = |url: &str| context.ours(&["info", url], LIMIT);
    for (url, reason) in [
        (server.as_user("u", "another-of-16-by", 0), "wrong secret of CHAP user \\\"u\\\""),
        (server.as_user("v", "secret-of-16-byt", 0), "CHAP user \\\"v\\\" has no account here"),
        (
            other(server.as_user("u", "secret-of-16-byt", 0)),
            "iqn.2026-11.org.example:mistyped, which is no target here",
        ),
        (format!("{}", server.url), "CHAP is required, and the initiator does not offer it"),
    ] {
        // At most four refusals in a second are logged in full.
        std::thread::sleep(Duration::from_millis(1100));
        let from = server.running.stderr().len();
        info(&url)?.expect(4)?;
        server.logs(from, reason)?;
    }
    let from = server.running.stderr().len();
    info(&server.as_user("u", "secret-of-16-byt", 0))?.success()?;
    let line = server.logs(from, "logged in")?;
    for part in ["chap_user=\"u\"", "protection=\"chap\"", "luns=\"0,ro\""] {
        ensure!(line.contains(part), "no {part} in {line}");
    }
    Ok(())
}

/// `--seal off` makes a list of peers ineffective, which is reported.
fn contradiction(context: &Context) -> Result<()> {
    let estate = Estate::new()?;
    estate.write("peers.toml", "")?;
    let peers = estate.path("peers.toml").display().to_string();
    let arguments = ["serve", "mem:1M", "--listen", "127.0.0.1:0", "--seal", "off", "--peers", &peers];
    let mut running = Running::start(context.command().args(arguments))?;
    running.wait_stdout("a URL", LIMIT, |text| text.contains('\n').then_some(()))?;
    let said = running.stderr();
    ensure!(said.contains("no session is sealed") && said.contains(&peers), "{said}");
    Ok(())
}

/// The same configuration passes if every row requires a proof.
fn protected(context: &Context) -> Result<()> {
    let estate = Estate::new()?;
    estate.write("u.secret", "secret-of-16-byt\n")?;
    estate.disk("a.img", 1 << 20)?;
    let acl = format!(
        "[[target.acl]]\ninitiator = \"{LAPTOP}\"\nchap-user = \"u\"\nsecret-file = \"DIR/u.secret\"\n"
    );
    estate.configure("listen = [\"0.0.0.0:0\"]", &[(0, "a.img")], &acl)?;
    estate.check(context)?.success().map(|_| ())
}

/// Two peers and their keys; if `bound`, `laptop` is bound to its name.
fn peers(context: &Context, estate: &Estate, bound: bool) -> Result<[Keys; 3]> {
    let [target, laptop, backup] = ["target", "laptop", "backup"].map(|name| estate.keys(context, name));
    let (target, laptop, backup) = (target?, laptop?, backup?);
    let bound = if bound { format!("initiator = \"{LAPTOP}\"\n") } else { String::new() };
    let text = format!(
        "[[peer]]\nname = \"laptop\"\npublic-key = \"{}\"\n{bound}[[peer]]\nname = \"backup\"\npublic-key = \"{}\"\n",
        laptop.public, backup.public
    );
    estate.write("peers.toml", &text)?;
    Ok([target, laptop, backup])
}

const SEALED: &str = "listen = [\"127.0.0.1:0\"]\nidentity = \"DIR/target.key\"\npeers = \"DIR/peers.toml\"";

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
    let mut own = Session::login_sealed(&server.url, LAPTOP, isid(1), &laptop.who(&target)?)?;
    own.write(0, 0, &[0xaa; 512])?;
    // The peer `backup` sends the name of `laptop`, and gets the rights of its own row.
    let mut typed = Session::login_sealed(&server.url, LAPTOP, isid(2), &backup.who(&target)?)?;
    ensure!(typed.read(0, 0, 1).is_err(), "peer `backup` reads the LUN of `laptop` by its name");
    ensure!(typed.read(1, 0, 1)? == [0; 512], "its own LUN");
    Ok(())
}

/// A row by a name without a bound key is an error in the configuration, reported with its line.
fn unbound(context: &Context) -> Result<()> {
    let estate = Estate::new()?;
    peers(context, &estate, false)?;
    estate.disk("a.img", 1 << 20)?;
    let acl = format!("[[target.acl]]\ninitiator = \"{LAPTOP}\"\n");
    estate.configure(SEALED, &[(0, "a.img")], &acl)?;
    for output in [
        estate.check(context)?,
        context.ours(&[Path::new("serve"), Path::new("--config"), &estate.path("hikyaku.toml")], LIMIT)?,
    ] {
        output.expect(2)?.says("line 10")?.says("peer =")?;
    }
    Ok(())
}

/// Rows by CHAP user alone: each user gets the LUNs and the mode of its row.
fn user_decides(context: &Context) -> Result<()> {
    let estate = Estate::new()?;
    for (name, secret) in [("a", "secret-of-a-16-b"), ("b", "secret-of-b-16-b"), ("c", "secret-of-c-16-b")] {
        estate.write(&format!("{name}.secret"), &format!("{secret}\n"))?;
    }
    estate.disk("0.img", 1 << 20)?;
    estate.disk("1.img", 1 << 20)?;
    let row = |user: &str, more: &str| {
        format!("[[target.acl]]\nchap-user = \"{user}\"\nsecret-file = \"DIR/{user}.secret\"\n{more}\n")
    };
    let acls = row("a", "luns = [0]\nmode = \"ro\"") + &row("b", "luns = [1]") + &row("c", "");
    estate.configure("listen = [\"127.0.0.1:0\"]", &[(0, "0.img"), (1, "1.img")], &acls)?;
    estate.check(context)?.success()?;
    let server = estate.serve(context)?;
    let url = |user: &str, lun| server.as_user(user, &format!("secret-of-{user}-16-b"), lun);
    let copy =
        |to: String| context.ours(&["copy", "pattern:64K", &format!("{to},timeout=5s"), "--force"], LIMIT);
    copy(url("b", 1))?.success().context("user b writes LUN 1")?;
    copy(url("c", 0))?.success().context("user c writes LUN 0")?;
    ensure!(copy(url("a", 0))?.code != Some(0), "user a writes LUN 0, which is read-only for it");
    ensure!(copy(url("b", 0))?.code != Some(0), "user b writes LUN 0, which it does not see");
    context.ours(&["info", &url("a", 0)], LIMIT)?.success().context("user a reads LUN 0")?;
    ensure!(context.ours(&["info", &url("a", 1)], LIMIT)?.code != Some(0), "user a sees LUN 1");
    // The secret of one user does not give the rights of another.
    context.ours(&["info", &server.as_user("b", "secret-of-a-16-b", 1)], LIMIT)?.expect(4)?;
    // Discovery lists the LUNs that the user may use.
    let listed = context
        .ours(&["ls", &format!("iscsi://a%secret-of-a-16-b@{}", server.url.portal)], LIMIT)?
        .success()?;
    ensure!(listed.stdout.contains(IQN), "{}", listed.stdout);
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let by_name = format!("[[target.acl]]\ninitiator = \"{LAPTOP}\"\n");
    cases
        .check("claims-name-alone-is-no-protection", || exposed(context, &by_name, "neither CHAP nor a key"));
    let beside = format!(
        "[[target.acl]]\ninitiator = \"{LAPTOP}\"\nchap-user = \"u\"\nsecret-file = \"DIR/u.secret\"\n\
         [[target.acl]]\ninitiator = \"{BACKUP}\"\n"
    );
    cases.check("claims-name-beside-chap-is-no-protection", || {
        exposed(context, &beside, "neither CHAP nor a key")
    });
    cases.check("claims-chap-in-every-row-is-protection", || protected(context));
    cases.check("claims-name-of-another-key", || name_of_another(context));
    cases.check("claims-name-without-a-key", || unbound(context));
    cases.check("claims-user-decides", || user_decides(context));
    cases.check("claims-refused-logins-are-logged", || logged(context));
    cases.check("claims-peers-that-nothing-asks-for", || contradiction(context));
}
