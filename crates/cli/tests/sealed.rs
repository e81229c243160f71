//! Sealed sessions: keys, trust, policies of both sides (docs/SEAL.md, section 7), and the messages of refusals.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::{Place, Serving};

const MIB: usize = 1 << 20;

/// `host:port` of a server's first URL.
fn portal(serving: &Serving) -> &str {
    serving.urls[0].strip_prefix("iscsi://").unwrap().split('/').next().unwrap()
}

/// Creates a key in `file`; returns its public key.
fn new_key(place: &Place, file: &str) -> String {
    place.run(&["key", "new", file]).expect(0).stdout.trim().to_owned()
}

/// Two hosts: the target's key is in `target.key`, the initiator's at the default path.
struct Hosts {
    place: Place,
    target: String,
    initiator: String,
}

impl Hosts {
    /// With the initiator in the target's list of peers.
    fn new() -> Self {
        let place = Place::new();
        let target = new_key(&place, "target.key");
        let initiator = place.run(&["key", "new"]).expect(0).stdout.trim().to_owned();
        let hosts = Self { place, target, initiator };
        hosts.list(&hosts.initiator, "");
        hosts
    }

    fn list(&self, key: &str, more: &str) {
        let text = format!("[[peer]]\nname = \"laptop\"\npublic-key = \"{key}\"\n{more}");
        self.place.file("peers.toml", text.as_bytes());
    }

    fn serve(&self, more: &[&str]) -> Serving {
        let own = ["--identity", "target.key", "--peers", "peers.toml"];
        self.place.serve(&[&["mem:8M"], &own[..], more].concat())
    }

    fn trust(&self, serving: &Serving) {
        let url = format!("iscsi://{}", portal(serving));
        self.place.run(&["key", "trust", &url, "--key", &self.target]).expect(0);
    }
}

#[test]
fn a_key_is_made_once_and_shown() {
    let place = Place::new();
    let object = place.run(&["key", "new", "k", "--json"]).expect(0).json();
    let key = object["public_key"].as_str().unwrap();
    assert_eq!((key.len(), object["schema"].as_u64()), (44, Some(1)));
    assert!(object["fingerprint"].as_str().unwrap().starts_with("SHA256:"));
    assert_eq!(fs::metadata(place.path("k")).unwrap().permissions().mode() & 0o777, 0o600);
    let ran = place.run(&["key", "public", "k"]).expect(0);
    assert_eq!(ran.stdout, format!("{key}\n"));
    let secret = fs::read_to_string(place.path("k")).unwrap();
    assert!(!ran.stderr.contains(secret.lines().last().unwrap()));
    place.run(&["key", "new", "k"]).expect(6);
    assert_eq!(fs::read_to_string(place.path("k")).unwrap(), secret);
    fs::set_permissions(place.path("k"), fs::Permissions::from_mode(0o644)).unwrap();
    let error = place.run(&["key", "public", "k", "--json"]).expect(4).error();
    assert!(error["hint"].as_str().unwrap().contains("chmod 600 k"), "{error}");
}

#[test]
fn two_commands_and_the_session_is_sealed() {
    let hosts = Hosts::new();
    let place = &hosts.place;
    place.sample("a.img", 8 * MIB);
    let serving = hosts.serve(&[]);
    hosts.trust(&serving);
    let url = &serving.urls[0];
    let object = place.run(&["copy", "a.img", url, "--verify", "--json"]).expect(0).json();
    assert_eq!(object["verified"], true);
    place.run(&["compare", "a.img", url]).expect(0);
    let protection = place.run(&["info", url, "--json"]).expect(0).json()["protection"].clone();
    assert_eq!(protection["kind"], "seal");
    assert_eq!(protection["suite"], "AES-256-GCM");
    assert_eq!(protection["peer"], hosts.target.as_str());
    for suite in ["AEGIS-256X4", "AEGIS-128X2", "ChaCha20-Poly1305"] {
        let object = place.run(&["info", &format!("{url},suite={suite}"), "--json"]).expect(0).json();
        assert_eq!(object["protection"]["suite"], suite);
    }
    let portal = format!("iscsi://{}", portal(&serving));
    let listed = place.run(&["ls", &portal, "--json"]).expect(0).json();
    assert_eq!(listed["targets"][0]["protection"]["kind"], "seal");
    assert_eq!(listed["targets"][0]["luns"][0]["size_bytes"], 8 * MIB);
}

/// The README's commands as they stand, with the host, address and key of this machine inserted.
#[test]
fn the_lines_of_the_readme_work_as_typed() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let section =
        readme.split("\n## Sealed in two commands\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let lines: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let [new, list, serve, trust, copy] = lines[..] else { panic!("{lines:?}") };
    let (target, initiator) = (Place::new(), Place::new());
    initiator.sample("disk.img", MIB);
    target.file("disk.img", &vec![0; MIB]);
    let words = |line: &str| -> Vec<String> {
        let words = line.strip_prefix("hikyaku ").unwrap().split(' ');
        words.map(|word| word.replace("0.0.0.0", "127.0.0.1:0")).collect()
    };
    let run = |place: &Place, line: &str| {
        let words = words(line);
        place.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    run(&target, new).expect(0);
    let key = run(&initiator, new).expect(0).stdout;
    let mut shell = std::process::Command::new("sh");
    let listed = shell.current_dir(target.path("")).args(["-c", &list.replace("KEY", key.trim())]).status();
    assert!(listed.unwrap().success());
    let serving = target.serve_words(&words(serve));
    let here = |line: &str| line.replace("iscsi://host", &format!("iscsi://{}", portal(&serving)));
    run(&initiator, &format!("{} --yes", here(trust))).expect(0);
    run(&initiator, &here(copy)).expect(0);
    assert!(fs::read(target.path("disk.img")).unwrap() == fs::read(initiator.path("disk.img")).unwrap());
}

#[test]
fn a_plain_initiator_is_refused_where_sealing_is_required_and_told_what_to_type() {
    let hosts = Hosts::new();
    let serving = hosts.serve(&["--seal", "require"]);
    let error = hosts.place.run(&["info", &serving.urls[0], "--json"]).expect(4).error();
    let trust = format!("hikyaku key trust iscsi://{}", portal(&serving));
    assert!(error["hint"].as_str().unwrap().contains(&trust), "{error}");
    hosts.place.run(&["ls", &format!("iscsi://{}", portal(&serving))]).expect(4);
    // The command of the hint works.
    let ran = hosts.place.run(&["key", "trust", &format!("iscsi://{}", portal(&serving)), "--yes"]).expect(0);
    assert_eq!(ran.stdout.trim(), hosts.target);
    hosts.place.run(&["info", &serving.urls[0]]).expect(0);
    hosts.place.run(&["info", &format!("{},seal=off", serving.urls[0])]).expect(4);
}

#[test]
fn offer_takes_both_and_off_only_what_is_plain() {
    let hosts = Hosts::new();
    let key = format!(",peer-key={}", hosts.target);
    let kind = |url: String| {
        hosts.place.run(&["info", &url, "--json"]).expect(0).json()["protection"]["kind"].clone()
    };
    let serving = hosts.serve(&["--seal", "offer"]);
    let url = &serving.urls[0];
    assert_eq!(kind(url.clone()), "none");
    assert_eq!(kind(format!("{url}{key}")), "seal");
    assert_eq!(kind(format!("{url}{key},seal=offer")), "seal");
    assert_eq!(kind(format!("{url}{key},seal=off")), "none");
    drop(serving);
    let serving = hosts.serve(&["--seal", "off"]);
    let url = &serving.urls[0];
    assert_eq!(kind(url.clone()), "none");
    assert_eq!(kind(format!("{url}{key},seal=off")), "none");
    let error = hosts.place.run(&["info", &format!("{url}{key}"), "--json"]).expect(4).error();
    assert!(error["cause"].as_str().unwrap().contains("does not seal"), "{error}");
    for policy in ["offer", "require"] {
        hosts.place.run(&["info", &format!("{url}{key},seal={policy}")]).expect(4);
    }
}

#[test]
fn wrong_revoked_and_own_keys_exit_4() {
    let hosts = Hosts::new();
    let serving = hosts.serve(&[]);
    let url = &serving.urls[0];
    let with = |key: &str, more: &str| format!("{url},peer-key={key}{more}");
    new_key(&hosts.place, "other.key");
    let other = hosts.place.run(&["key", "public", "other.key"]).expect(0).stdout.trim().to_owned();
    hosts.place.run(&["info", &with(&hosts.target, "")]).expect(0);
    let error = |endpoint: &str| hosts.place.run(&["info", endpoint, "--json"]).expect(4).error();
    // Not in the list: the message contains its own key, to be added.
    let unlisted = error(&with(&hosts.target, ",identity=other.key"));
    assert!(unlisted["hint"].as_str().unwrap().contains(&other), "{unlisted}");
    // The portal proves a key other than the expected one.
    for wrong in [&other, &hosts.initiator] {
        let changed = error(&with(wrong, ""));
        assert!(changed["cause"].as_str().unwrap().contains("NOT THE ONE WE KNOW"), "{changed}");
        assert!(changed["cause"].as_str().unwrap().contains(&hosts.target), "{changed}");
    }
    // The target's own key is not in the list either.
    error(&with(&hosts.target, ",identity=target.key"));
    drop(serving);
    // Revoked: removed from the list before the next start.
    hosts.list(&other, "");
    let serving = hosts.serve(&[]);
    let endpoint = format!("{},peer-key={}", serving.urls[0], hosts.target);
    error(&endpoint);
    hosts.place.run(&["info", &format!("{endpoint},identity=other.key")]).expect(0);
}

#[test]
fn a_pre_shared_key_must_be_the_same() {
    let hosts = Hosts::new();
    let key = |byte: char| format!("{}=\n", byte.to_string().repeat(42) + "A");
    for (name, byte) in [("a.psk", 'B'), ("b.psk", 'C')] {
        let path = hosts.place.file(name, key(byte).as_bytes());
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    hosts.list(&hosts.initiator, "psk-file = \"a.psk\"\n");
    let serving = hosts.serve(&[]);
    let url = format!("{},peer-key={}", serving.urls[0], hosts.target);
    hosts.place.run(&["info", &format!("{url},psk-file=a.psk")]).expect(0);
    for other in [",psk-file=b.psk", ""] {
        let refused = hosts.place.run(&["info", &format!("{url}{other}")]).expect(4);
        refused
            .on_stderr("the pre-shared keys (psk-file=) of the two sides differ")
            .on_stderr("try: compare psk-file= here");
    }
}

#[test]
fn a_key_sees_its_luns_under_its_name() {
    let hosts = Hosts::new();
    let more = "luns = [1]\ninitiator = \"iqn.2026-11.example:laptop\"\n";
    hosts.list(&hosts.initiator, more);
    let own = ["--identity", "target.key", "--peers", "peers.toml"];
    let serving = hosts.place.serve(&[&["mem:1M", "mem:2M"], &own[..]].concat());
    let options = format!(",peer-key={},initiator=iqn.2026-11.example:laptop", hosts.target);
    hosts.place.run(&["info", &format!("{}{options}", serving.urls[1])]).expect(0);
    hosts.place.run(&["info", &format!("{}{options}", serving.urls[0])]).expect(1);
    let endpoint = format!("iscsi://{}{options}", portal(&serving));
    let listed = hosts.place.run(&["ls", &endpoint, "--json"]).expect(0).json();
    let luns = listed["targets"][0]["luns"].as_array().unwrap();
    assert_eq!((luns.len(), &luns[0]["lun"]), (1, &1.into()));
    // The same key under another initiator name.
    let other = format!("{},peer-key={}", serving.urls[1], hosts.target);
    hosts.place.run(&["info", &other]).expect(4);
}

#[test]
fn chap_within_the_seal_is_required_too() {
    let hosts = Hosts::new();
    hosts.place.file("secret", b"a good long secret\n");
    let serving = hosts.serve(&["--chap-user", "u", "--chap-secret-file", "secret"]);
    hosts.trust(&serving);
    let url = &serving.urls[0];
    hosts.place.run(&["info", url]).expect(4);
    hosts.place.run(&["info", &format!("{url},chap-user=u,chap-secret-file=secret")]).expect(0);
    // A mistyped secret gets no advice on keys, sealed or not.
    hosts.place.file("other", b"another long secret\n");
    let plain = hosts.serve(&["--chap-user", "u", "--chap-secret-file", "secret", "--seal", "offer"]);
    for (command, url) in
        [("info", url), ("info", &plain.urls[0]), ("ls", &format!("iscsi://{}", portal(&plain)))]
    {
        let refused =
            hosts.place.run(&[command, &format!("{url},chap-user=u,chap-secret-file=other")]).expect(4);
        let refused =
            refused.on_stderr("the target rejects the CHAP name or secret\n  try: compare the CHAP name");
        assert!(
            !refused.stderr.contains("key trust") && !refused.stderr.contains("peers"),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn trust_asks_keeps_and_shouts_when_a_key_changes() {
    let hosts = Hosts::new();
    let serving = hosts.serve(&[]);
    let portal = portal(&serving).to_owned();
    let url = format!("iscsi://{portal}");
    let place = &hosts.place;
    // Without the remarks on dates.
    let known = || -> String {
        let text = fs::read_to_string(place.path("config/hikyaku/known-targets")).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.starts_with("# since 20"));
        lines.map(|line| format!("{line}\n")).collect()
    };
    // Without a terminal there is no confirmation.
    let error = place.run(&["key", "trust", &url, "--json"]).expect(4).error();
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains(&format!("the portal answered {}", hosts.target)), "{error}");
    assert!(
        !hint.contains(&format!("--key {}", hosts.target)),
        "nothing to paste before the comparison: {error}"
    );
    place.run(&["key", "trust", &url, "--key", &hosts.initiator]).expect(4);
    assert_eq!(known(), "");
    let object = place.run(&["key", "trust", &url, "--yes", "--json"]).expect(0).json();
    let made = (object["public_key"].as_str(), &object["is_new"]);
    assert_eq!(made, (Some(hosts.target.as_str()), &true.into()));
    let line = format!("{portal} {}\n", hosts.target);
    assert_eq!(known(), line);
    let object = place.run(&["key", "trust", &url, "--json"]).expect(0).json();
    assert_eq!(object["is_new"], false);
    place.run(&["info", &serving.urls[0]]).expect(0);
    drop(serving);
    // The same portal with another key.
    let new = new_key(place, "new.key");
    let own = ["mem:8M", "--identity", "new.key", "--peers", "peers.toml"];
    let serving = place.serve_at(&portal, &own);
    for arguments in
        [vec!["key", "trust", &url], vec!["key", "trust", &url, "--yes"], vec!["info", &serving.urls[0]]]
    {
        let ran = place.run(&arguments).expect(4);
        for text in ["NOT THE ONE WE KNOW", &hosts.target, &new, "known-targets"] {
            assert!(ran.stderr.contains(text), "{arguments:?} {text}: {}", ran.stderr);
        }
    }
    // The session has added the target's name to the line.
    let iqn = serving.urls[0].split('/').nth(3).unwrap();
    assert_eq!(known(), format!("{} {iqn}\n", line.trim_end()));
    place.run(&["key", "trust", &url, "--key", &new]).expect(0);
    assert_eq!(known(), format!("{portal} {new} {iqn}\n"));
    place.run(&["info", &serving.urls[0]]).expect(0);
}

#[test]
fn what_is_configured_wrongly_is_said_before_anything_is_served() {
    let hosts = Hosts::new();
    let place = &hosts.place;
    let serve = |arguments: &[&str]| {
        place.run(&[&["serve", "mem:1M", "--listen", "127.0.0.1:0"], arguments].concat())
    };
    assert!(serve(&["--seal", "require"]).expect(2).stderr.contains("--peers FILE"));
    serve(&["--seal", "maybe", "--peers", "peers.toml"]).expect(2);
    serve(&["--identity", "target.key"]).expect(2);
    let none = serve(&["--peers", "peers.toml", "--identity", "none.key"]);
    none.expect(1).on_stderr("key new none.key");
    place.file("bad.toml", b"[[peer]]\nname = \"a\"\npublic-key = \"short\"\n");
    serve(&["--peers", "bad.toml"]).expect(2).on_stderr("line 3");
    let config = "[server]\npeers = \"bad.toml\"\n[[target]]\niqn = \"iqn.2026-11.example:a\"\n[[target.lun]]\nlun = 0\nendpoint = \"mem:1M\"\n";
    place.file("c.toml", config.as_bytes());
    assert!(place.run(&["check", "c.toml"]).expect(2).stderr.contains("line 3"));
    let named = config.replace("bad.toml", "peers.toml") + "[[target.acl]]\npeer = \"nobody\"\n";
    place.file("c.toml", named.as_bytes());
    assert!(place.run(&["check", "c.toml"]).expect(2).stderr.contains("peer 'nobody'"));
    place.file("c.toml", named.replace("nobody", "laptop").as_bytes());
    let object = place.run(&["check", "c.toml", "--json"]).expect(0).json();
    assert_eq!((&object["seal"], &object["peers"]), (&"require".into(), &1.into()));
    // Beyond loopback: required sealing is accepted, offered sealing is refused.
    let exposed = |seal: &str| {
        place.run(&["serve", "mem:1M", "--listen", "0.0.0.0:0", "--peers", "peers.toml", "--seal", seal])
    };
    assert!(exposed("offer").expect(6).stderr.contains("--seal offer also admits initiators"));
    // The initiator's side.
    let endpoint = "iscsi://127.0.0.1:1/iqn.2026-11.example:a/0";
    for (option, code) in
        [("seal=require", 4), ("seal=maybe", 2), ("peer-key=short", 2), ("identity=target.key", 4)]
    {
        place.run(&["info", &format!("{endpoint},{option}")]).expect(code);
    }
    place.file("config/hikyaku/known-targets", b"127.0.0.1:1 short\n");
    assert!(place.run(&["info", endpoint]).expect(1).stderr.contains("line 1"));
}

#[test]
fn a_targets_key_is_rotated_without_trusting_it_again_seal1_9() {
    let hosts = Hosts::new();
    let place = &hosts.place;
    let known = || fs::read_to_string(place.path("config/hikyaku/known-targets")).unwrap();
    let line = || known().lines().next().unwrap().to_owned();
    let serve = || hosts.serve(&["--iqn", "iqn.2026-11.example:disks"]);
    let info = |serving: &Serving| place.run(&["info", &serving.urls[0]]);
    let first = serve();
    hosts.trust(&first);
    info(&first).expect(0);
    let before = known();
    let place_of = portal(&first).to_owned();
    drop(first);

    let made = place.run(&["key", "rotate", "target.key", "--json"]).expect(0).json();
    let next = made["next_public_key"].as_str().unwrap().to_owned();
    assert_eq!(
        (made["public_key"].as_str(), made["finished"].as_bool()),
        (Some(&*hosts.target), Some(false))
    );
    assert_eq!(fs::metadata(place.path("target.key.next")).unwrap().permissions().mode() & 0o777, 0o600);
    place.run(&["key", "rotate", "target.key"]).expect(6).on_stderr("it has a next key already");

    // The server announces, the initiator accepts both keys.
    let serving = serve();
    info(&serving).expect(0).on_stderr("announces its next key SHA256:");
    assert_eq!(line(), format!("{place_of} {},{next} iqn.2026-11.example:disks", hosts.target));
    assert!(!info(&serving).expect(0).stderr.contains("key"), "an announcement is logged once");
    let listed = place.run(&["key", "list", "--json"]).expect(0).json();
    assert_eq!(listed["targets"][0]["next_public_key"].as_str(), Some(&*next));
    let announced = known();
    drop(serving);

    // The next key was given up: the holder of the present key decides.
    fs::rename(place.path("target.key.next"), place.path("kept")).unwrap();
    let serving = serve();
    info(&serving).expect(0).on_stderr("is not accepted any more");
    assert_eq!(line(), before.lines().next().unwrap());
    drop(serving);
    place.run(&["key", "rotate", "target.key", "--finish"]).expect(6).on_stderr("it has no next key");
    fs::rename(place.path("kept"), place.path("target.key.next")).unwrap();
    place.file("config/hikyaku/known-targets", announced.as_bytes());

    // The server has ended: whether a login has learnt the key is not known any more.
    place
        .run(&["key", "rotate", "target.key", "--finish"])
        .expect(6)
        .on_stderr("no running server has announced")
        .on_stderr("--force");
    assert_eq!(place.run(&["key", "public", "target.key"]).expect(0).stdout.trim(), hosts.target);
    place.run(&["key", "rotate", "target.key", "--finish", "--force"]).expect(0);
    assert_eq!(place.run(&["key", "public", "target.key"]).expect(0).stdout.trim(), next);
    let serving = serve();
    info(&serving).expect(0).on_stderr("has changed to the key SHA256:");
    assert_eq!(line(), format!("{place_of} {next} iqn.2026-11.example:disks"));
    info(&serving).expect(0);
    // An initiator that has missed the announcement.
    place.file("config/hikyaku/known-targets", before.as_bytes());
    info(&serving).expect(4).on_stderr("ITS KEY IS NOT THE ONE WE KNOW");
}

/// The reload, `status` and the end of a rotation say what the server announces, and since which login.
#[test]
fn a_reload_says_that_the_next_key_is_announced_from_now_on() {
    let hosts = Hosts::new();
    let place = &hosts.place;
    let serving = hosts.serve(&[]);
    hosts.trust(&serving);
    let reload = || place.run(&["ctl", "reload"]).expect(0).stdout;
    let status =
        || place.run(&["status", "--json", "--interval", "0s"]).expect(0).json()["processes"][0].clone();
    let finish = |code: i32| place.run(&["key", "rotate", "target.key", "--finish"]).expect(code);
    assert_eq!(reload(), "nothing differs: 0 sessions ended\n");
    assert_eq!(
        (status()["public_key"].as_str(), status()["next_key"].is_null()),
        (Some(&*hosts.target), true)
    );
    let begun = place.run(&["key", "rotate", "target.key"]).expect(0);
    begun.on_stderr("hikyaku key rotate target.key --finish").on_stderr("add a second [[peer]]");
    finish(6)
        .on_stderr("has this key and does not announce the next one")
        .on_stderr("hikyaku ctl reload --pid");
    let print =
        |key: &str| place.run(&["key", "public", key, "--json"]).expect(0).json()["fingerprint"].clone();
    let fingerprint = print("target.key.next");
    let said = reload();
    let expected = format!(
        "next key changed: 0 sessions ended; the next key {} is announced",
        fingerprint.as_str().unwrap()
    );
    assert!(said.starts_with(&expected), "{said}");
    assert_eq!(reload(), "nothing differs: 0 sessions ended\n");
    assert_eq!(
        (&status()["next_key"]["fingerprint"], &status()["next_key"]["sealed_logins"]),
        (&fingerprint, &0.into())
    );
    finish(6).on_stderr("no initiator has logged in sealed since then").on_stderr("--force");
    place.run(&["info", &serving.urls[0]]).expect(0).on_stderr("announces its next key");
    // A reload keeps the count.
    assert_eq!(reload(), "nothing differs: 0 sessions ended\n");
    assert_eq!(status()["next_key"]["sealed_logins"], 1);
    place.run(&["status", "--interval", "0s"]).expect(0).on_stdout("; 1 sealed login since then");
    // Given up, and begun again.
    fs::rename(place.path("target.key.next"), place.path("kept")).unwrap();
    assert!(reload().contains(" is not announced any more"));
    fs::rename(place.path("kept"), place.path("target.key.next")).unwrap();
    reload();
    finish(6);
    place.run(&["info", &serving.urls[0]]).expect(0);
    finish(0).on_stderr(", in 1 sealed login");
    assert_eq!(print("target.key"), fingerprint);
    let refused = place.run(&["ctl", "reload"]).expect(2);
    refused.on_stderr("another identity");
}

/// The steps that `key rotate` prints for an initiator.
#[test]
fn the_key_of_an_initiator_is_replaced_through_the_peers_file() {
    let hosts = Hosts::new();
    let place = &hosts.place;
    let serving = hosts.serve(&[]);
    hosts.trust(&serving);
    let url = &serving.urls[0];
    let reload = || place.run(&["ctl", "reload"]).expect(0).stdout;
    let begun = place.run(&["key", "rotate"]).expect(0);
    let next = begun.stdout.lines().last().unwrap().split(' ').nth(1).unwrap().to_owned();
    begun.on_stderr(&format!("public-key = \"{next}\"")).on_stderr("hikyaku key rotate --finish --force");
    let trial = format!("{url},identity={}", place.path("config/hikyaku/identity.next").display());
    place.run(&["info", &trial]).expect(4);
    let entry = |name: &str, key: &str| format!("[[peer]]\nname = \"{name}\"\npublic-key = \"{key}\"\n");
    let both = entry("laptop", &hosts.initiator) + &entry("laptop-2", &next);
    place.file("peers.toml", both.as_bytes());
    assert!(reload().starts_with("1 peer added: "));
    place.run(&["info", &trial]).expect(0);
    place.run(&["key", "rotate", "--finish"]).expect(6).on_stderr("listed in the peers file of each target");
    place.run(&["key", "rotate", "--finish", "--force"]).expect(0);
    hosts.list(&next, "");
    assert!(reload().contains("1 peer removed"));
    place.run(&["info", url]).expect(0);
}

#[test]
fn an_announcement_that_cannot_be_stored_does_not_end_the_session() {
    let hosts = Hosts::new();
    let place = &hosts.place;
    place.run(&["key", "rotate", "target.key"]).expect(0);
    let serving = hosts.serve(&[]);
    hosts.trust(&serving);
    // The lock file is a directory: no process can change the list.
    let lock = place.path("config/hikyaku/known-targets.lock");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    let before = fs::read_to_string(place.path("config/hikyaku/known-targets")).unwrap();
    place.run(&["info", &serving.urls[0]]).expect(0).on_stderr("This holds until the command ends");
    assert_eq!(fs::read_to_string(place.path("config/hikyaku/known-targets")).unwrap(), before);
}
