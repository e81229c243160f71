//! Tunnels around a plain session: stunnel, wireguard-go, and user-space ESP (strongSwan with kernel-libipsec), between
//! the two namespaces of a link. Each has a portal at which the initiator reaches the target.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::link::{INITIATOR, Link, TARGET};
use super::rig::PORT;
use harness::process::Surroundings;
use harness::{Running, program, run, wait_until};

const COMMAND_LIMIT: Duration = Duration::from_secs(20);
const READY_LIMIT: Duration = Duration::from_secs(10);
/// Port between stunnel's two ends, and port at which the initiator reaches the near end.
const STUNNEL_PORT: u16 = 5443;
const STUNNEL_LOCAL_PORT: u16 = 3261;
const WIREGUARD_PORT: u16 = 51820;
const WIREGUARD: [&str; 2] = ["10.99.2.1", "10.99.2.2"];
/// MTU less WireGuard's headers, with IPv6 outside.
const WIREGUARD_MTU: u32 = 1500 - 80;
const ESP: [&str; 2] = ["10.99.4.1", "10.99.4.2"];
const CHARON: &str = "/usr/lib/ipsec/charon";

/// A running tunnel; dropping it ends the tunnel.
#[derive(Debug)]
pub(super) struct Tunnel {
    pub(super) portal: String,
    _processes: Vec<Running>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Stunnel,
    WireguardGo,
    Esp,
}

impl Peer {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stunnel => "stunnel",
            Self::WireguardGo => "wireguard-go",
            Self::Esp => "esp-libipsec",
        }
    }

    /// Starts the tunnel. `certificate` and `folder` are for tunnels that need files.
    pub(super) fn start(self, link: &Link, certificate: &(String, String), folder: &Path) -> Result<Tunnel> {
        let folder = folder.join(self.name());
        std::fs::create_dir_all(&folder)?;
        match self {
            Self::Stunnel => stunnel(link, certificate, &folder),
            Self::WireguardGo => wireguard(link),
            Self::Esp => esp(link, &folder),
        }
        .with_context(|| self.name())
    }
}

fn background(surroundings: &Surroundings, command: &mut Command) -> Result<Running> {
    surroundings.apply(command);
    Running::start(command)
}

/// Waits until the far address answers through the tunnel.
fn wait_for(link: &Link, address: &str, port: u16) -> Result<()> {
    let [initiator, _] = link.sides();
    let script = format!("exec 3<>/dev/tcp/{address}/{port}");
    let answers = wait_until(READY_LIMIT, || {
        let mut probe = program("timeout")?;
        initiator.apply(&mut probe);
        Ok(run(probe.args(["1", "bash", "-c", &script]), COMMAND_LIMIT)?.code == Some(0))
    });
    answers.with_context(|| format!("nothing answers at {address}:{port} through it"))
}

fn stunnel(link: &Link, (certificate, key): &(String, String), folder: &Path) -> Result<Tunnel> {
    let common = "foreground = yes\npid =\nsyslog = no\ndebug = 3\nsocket = l:TCP_NODELAY=1\n\
                  socket = r:TCP_NODELAY=1\nsslVersion = TLSv1.3\nciphersuites = TLS_AES_256_GCM_SHA384\n";
    let near = format!(
        "{common}client = yes\nCAfile = {certificate}\nverifyPeer = yes\n[iscsi]\naccept = 127.0.0.1:{STUNNEL_LOCAL_PORT}\n\
         connect = {TARGET}:{STUNNEL_PORT}\n"
    );
    let far = format!(
        "{common}cert = {certificate}\nkey = {key}\n[iscsi]\naccept = {TARGET}:{STUNNEL_PORT}\nconnect = 127.0.0.1:{PORT}\n"
    );
    let mut processes = Vec::new();
    for (side, (name, text)) in link.sides().iter().zip([("near.conf", near), ("far.conf", far)]) {
        let path = folder.join(name);
        std::fs::write(&path, text)?;
        processes.push(background(side, program("stunnel4")?.arg(&path))?);
    }
    wait_for(link, "127.0.0.1", STUNNEL_LOCAL_PORT)?;
    Ok(Tunnel { portal: format!("127.0.0.1:{STUNNEL_LOCAL_PORT}"), _processes: processes })
}

fn through(mut command: Command, input: &str) -> Result<String> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("piped above")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Starts wireguard-go: Debian's build, or the one that `WGGO` names. Newer ones pass large frames to the kernel.
fn wireguard(link: &Link) -> Result<Tunnel> {
    let daemon = std::env::var("WGGO").unwrap_or_else(|_| "wireguard-go".to_owned());
    let names = [0, 1].map(|side| format!("hkwg{}{side}", std::process::id() % 100_000));
    let (mut private, mut public) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let mut command = program("wg")?;
        let key = run(command.arg("genkey"), COMMAND_LIMIT)?.success()?.stdout.trim().to_owned();
        let mut command = program("wg")?;
        command.arg("pubkey");
        public.push(through(command, &key)?);
        private.push(key);
    }
    let folder = harness::scratch()?;
    let mut processes = Vec::new();
    let outer = [INITIATOR, TARGET];
    for (side, surroundings) in link.sides().iter().enumerate() {
        let (name, other) = (&names[side], 1 - side);
        let mut command = program(&daemon)?;
        command.args(["-f", name]).env("WG_PROCESS_FOREGROUND", "1");
        let mut running = background(surroundings, &mut command)?;
        let socket = PathBuf::from(format!("/var/run/wireguard/{name}.sock"));
        wait_until(READY_LIMIT, || running.alive().map(|()| socket.exists()))
            .with_context(|| format!("{daemon} does not start: {}", running.stderr_tail()))?;
        let key = folder.path().join(format!("key{side}"));
        std::fs::write(&key, &private[side])?;
        let mut command = program("wg")?;
        command.args(["set", name, "listen-port", &WIREGUARD_PORT.to_string(), "private-key"]).arg(&key);
        command.args(["peer", &public[other], "endpoint", &format!("{}:{WIREGUARD_PORT}", outer[other])]);
        surroundings.apply(&mut command);
        run(command.args(["allowed-ips", &format!("{}/32", WIREGUARD[other])]), COMMAND_LIMIT)?.success()?;
        link.ip(side, &format!("addr add {}/32 peer {}/32 dev {name}", WIREGUARD[side], WIREGUARD[other]))?;
        link.ip(side, &format!("link set {name} mtu {WIREGUARD_MTU} up"))?;
        processes.push(running);
    }
    wait_for(link, WIREGUARD[1], PORT)?;
    Ok(Tunnel { portal: format!("{}:{PORT}", WIREGUARD[1]), _processes: processes })
}

const PLUGINS: &str = "random nonce aes sha1 sha2 hmac kdf gcm curve25519 openssl kernel-libipsec kernel-netlink \
                       socket-default vici updown";

fn esp(link: &Link, folder: &Path) -> Result<Tunnel> {
    let outer = [INITIATOR, TARGET];
    let socket = |side: usize| format!("unix://{}", folder.join(format!("vici{side}")).display());
    let mut processes = Vec::new();
    for (side, surroundings) in link.sides().iter().enumerate() {
        let (other, log) = (1 - side, folder.join(format!("charon{side}.log")));
        link.ip(side, &format!("addr add {}/32 dev lo", ESP[side]))?;
        let daemon = format!(
            "charon {{\n load_modular = no\n load = {PLUGINS}\n install_virtual_ip = no\n plugins {{\n  vici {{ socket = {} \
             }}\n  kernel-libipsec {{ load = yes }}\n }}\n filelog {{ l {{\n path = {}\n default = 1\n }} }}\n}}\n",
            socket(side),
            log.display()
        );
        let conf = folder.join(format!("strongswan{side}.conf"));
        std::fs::write(&conf, daemon)?;
        // charon has one fixed path for its pid file, so each process gets its own /run.
        let script = format!("mount -t tmpfs none /run && exec {CHARON}");
        let mut command = program("unshare")?;
        command.args(["-m", "sh", "-c", &script]).env("STRONGSWAN_CONF", &conf);
        processes.push(background(surroundings, &mut command)?);
        let connection = format!(
            "connections {{ c {{\n local_addrs = {}\n remote_addrs = {}\n version = 2\n proposals = \
             aes256gcm16-prfsha256-x25519\n local {{\n auth = psk\n id = h{side}\n }}\n remote {{\n auth = psk\n id = \
             h{other}\n }}\n children {{ d {{\n local_ts = {}/32\n remote_ts = {}/32\n esp_proposals = aes256gcm16\n }} }}\n}} \
             }}\nsecrets {{ ike-1 {{\n id-1 = h0\n id-2 = h1\n secret = \"only for this measurement\"\n}} }}\n",
            outer[side], outer[other], ESP[side], ESP[other]
        );
        std::fs::write(folder.join(format!("swanctl{side}.conf")), connection)?;
    }
    let swanctl = |side: usize, arguments: &[&str]| -> Result<()> {
        let mut command = program("swanctl")?;
        command.args(arguments).args(["--uri", &socket(side)]).env("SWANCTL_DIR", folder);
        run(&mut command, COMMAND_LIMIT)?.success().map(|_| ())
    };
    for side in [0, 1] {
        let path = folder.join(format!("vici{side}"));
        wait_until(READY_LIMIT, || Ok(path.exists())).with_context(|| {
            let log = std::fs::read_to_string(folder.join(format!("charon{side}.log"))).unwrap_or_default();
            format!("charon does not start: {} {log}", processes[side].stderr_tail())
        })?;
        let file: PathBuf = folder.join(format!("swanctl{side}.conf"));
        swanctl(side, &["--load-all", "--file", &file.display().to_string()])?;
    }
    swanctl(0, &["--initiate", "--child", "d", "--timeout", "8"])?;
    wait_for(link, ESP[1], PORT)?;
    Ok(Tunnel { portal: format!("{}:{PORT}", ESP[1]), _processes: processes })
}
