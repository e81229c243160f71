//! `check`, `config`, `paths` and `doctor`: the configuration, and what is said of this machine.

mod common;

use std::fs;
use std::net::TcpListener;

use common::{Place, Serving, text};

const MIB: u64 = 1 << 20;

fn contrib(name: &str) -> String {
    let path = format!("{}/../../contrib/{name}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The example with all files that it names. Images are in the place, listeners on loopback ports that are free.
fn example() -> (Place, String) {
    let place = Place::new();
    for directory in ["secrets", "tls", "disks"] {
        fs::create_dir(place.path(directory)).unwrap();
    }
    for (name, secret) in
        [("kvm1", "one long secret"), ("storage", "another long one"), ("backup", "a third secret")]
    {
        place.file(&format!("secrets/{name}"), secret.as_bytes());
    }
    place.run(&["key", "new", "secrets/server"]).expect(0);
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    place.file("tls/server.pem", made.cert.pem().as_bytes());
    place.file("secrets/server-tls.key", made.signing_key.serialize_pem().as_bytes());
    for name in ["vm-system", "vm-data", "archive"] {
        let image = fs::File::create(place.path(&format!("disks/{name}.img"))).unwrap();
        image.set_len(MIB).unwrap();
    }
    place.file("peers.toml", contrib("peers.toml").as_bytes());
    let text = contrib("hikyaku.toml")
        .replace("/srv/hikyaku", "disks")
        .replace("[\"0.0.0.0:3260\", \"[::]:3260\"]", "[\"127.0.0.1:0\"]");
    place.file("hikyaku.toml", text.as_bytes());
    (place, text)
}

#[test]
fn the_example_is_accepted_checked_deep_shown_and_served() {
    let (place, _) = example();
    let ran = place.run(&["check", "hikyaku.toml"]).expect(0);
    ran.on_stdout("good: 3 targets, 4 LUNs").on_stdout("line 31:   LUN 0  disks/vm-system.img\n");
    let object = place.run(&["check", "hikyaku.toml", "--deep", "--json"]).expect(0).json();
    assert_eq!((&object["ok"], &object["deep"], &object["peers"]), (&true.into(), &true.into(), &2.into()));
    assert_eq!(object["targets"][0]["luns"][1]["line"], 36);

    let shown = place.run(&["config", "show", "hikyaku.toml"]).expect(0).stdout;
    assert!(!shown.contains("one long secret"), "{shown}");
    place.file("shown.toml", shown.as_bytes());
    let again = place.run(&["config", "show", "shown.toml"]).expect(0).stdout;
    assert_eq!(again, shown, "what is shown means the same");
    // From another directory: paths are relative to the file.
    let mut command = place.command();
    command.current_dir("/").args(["serve", "--config", text(&place.path("hikyaku.toml"))]);
    let serving = Serving::start(&mut command, 4);
    let object = place.run(&["check", "hikyaku.toml", "--deep", "--json"]).expect(0).json();
    let held = object["in_use"].to_string();
    assert!(held.contains("line 31: LUN 0 is not opened: its server is running, process "), "{held}");
    assert!(serving.urls[0].ends_with("/iqn.2026-11.example.com:vm/0"), "{:?}", serving.urls);
}

#[test]
fn the_example_with_tls_instead_of_seals_is_accepted_and_served() {
    let (place, text) = example();
    let (start, end) = (text.find("identity =").unwrap(), text.find("# Standard TLS").unwrap());
    let text = format!("{}{}", &text[..start], &text[end..]).replace("#tls-", "tls-");
    let (start, end) = (text.find("# 2.").unwrap(), text.find("# 3.").unwrap());
    let text = format!("{}{}", &text[..start], &text[end..]);
    place.file("tls.toml", text.as_bytes());
    place.run(&["check", "tls.toml", "--deep"]).expect(0).on_stdout("good: 2 targets, 3 LUNs");
    let serving = Serving::start(place.command().args(["serve", "--config", "tls.toml"]), 3);
    let login = "initiator=iqn.2026-11.example.com:x,chap-user=backup,chap-secret-file=secrets/backup";
    let url = format!("{},tls=tls/server.pem,{login}", serving.urls[0]);
    let protection = place.run(&["info", &url, "--json"]).expect(0).json()["protection"].clone();
    assert_eq!(protection["kind"], "tls");
    place.file("bad.toml", text.replace("tls/server.pem", "tls/sever.pem").as_bytes());
    place.run(&["check", "bad.toml"]).expect(2).on_stderr("tls/sever.pem");
}

#[test]
fn the_example_is_what_is_printed() {
    let place = Place::new();
    assert_eq!(place.run(&["config", "example"]).expect(0).stdout, contrib("hikyaku.toml"));
}

/// (defect, replaced part of the example, replacement, exit code, parts of the message)
const DEFECTS: &[(&str, &str, &str, i32, &[&str])] = &[
    ("unknown_key", "serial =", "seriall =", 2, &["bad.toml", "line 32", "example.com:vm, LUN 0", "seriall"]),
    (
        "endpoint_wrong",
        "vm-data.img,cache=",
        "vm-data.img,cash=",
        2,
        &["line 36", "example.com:vm", "LUN 1", "cash"],
    ),
    (
        "image_missing",
        "vm-data.img",
        "vm-date.img",
        2,
        &["vm-date.img", "line 36", "example.com:vm", "LUN 1", "create"],
    ),
    (
        "secret_missing",
        "\"secrets/kvm1\"",
        "\"secrets/kvm2\"",
        1,
        &["secrets/kvm2", "line 38", "example.com:vm"],
    ),
    ("tls_beside_seals", "#tls-", "tls-", 2, &["line 18", "need each other"]),
    ("identity_missing", "secrets/server\"", "secrets/serve\"", 1, &["secrets/serve", "key new"]),
    ("peer_unknown", "peer = \"auditor\"", "peer = \"editor\"", 2, &["line 63", "editor", "peers.toml"]),
    ("user_unknown", "storage = [", "allow-user = [\"nobody-here\"]\nstorage = [", 2, &["nobody-here"]),
];

#[test]
fn each_defect_is_named_with_its_file_line_target_and_lun() {
    let (place, good) = example();
    for (defect, part, instead, code, messages) in DEFECTS {
        assert!(good.contains(part), "{defect}");
        place.file("bad.toml", good.replacen(part, instead, 1).as_bytes());
        let ran = place.run(&["check", "bad.toml"]);
        assert_eq!(ran.code, *code, "{defect}: {}", ran.stderr);
        for message in *messages {
            assert!(ran.stderr.contains(message), "{defect}: no {message} in {}", ran.stderr);
        }
    }
}

#[test]
fn every_mistake_of_a_file_is_reported() {
    let (place, good) = example();
    let bad =
        good.replacen("vm-data.img", "vm-date.img", 1).replacen("\"secrets/kvm1\"", "\"secrets/kvm2\"", 1);
    place.file("bad.toml", bad.as_bytes());
    place.run(&["check", "bad.toml"]).expect(2).on_stderr("secrets/kvm2").on_stderr("vm-date.img");

    let bad = good
        .replacen("secrets/kvm1", "secrets/a", 1)
        .replacen("secrets/storage", "secrets/b", 1)
        .replace("secrets/backup", "secrets/c");
    place.file("bad.toml", bad.as_bytes());
    let ran = place.run(&["check", "bad.toml"]).expect(1);
    let lines = |of: &str| ran.stderr.matches(of).count();
    assert_eq!(lines("error: cannot read the secret file"), 3, "{}", ran.stderr);
    assert_eq!(lines("  try: (umask 077; head -c 12 /dev/urandom | base64 > "), 3, "{}", ran.stderr);

    let bad = good.replacen("drain-timeout = \"20s\"", "drain-timeout = 20", 1).replace("mode =", "mod =");
    place.file("bad.toml", bad.as_bytes());
    let ran = place.run(&["check", "bad.toml"]).expect(2);
    let text = "drain-timeout: 20 is a number, and text in quotes is needed; write for example drain-timeout = \"10s\"";
    let ran = ran.on_stderr(text);
    assert_eq!(
        ran.stderr.matches("unknown key mod; did you mean mode?").count(),
        bad.matches("mod =").count()
    );

    let bad = good.replacen("storage = [\"", "storage = [\"/nowhere/", 1);
    assert_ne!(bad, good);
    place.file("bad.toml", bad.as_bytes());
    place.run(&["check", "bad.toml"]).expect(2).on_stderr("try: mkdir -p /nowhere");
    place
        .run(&["check", "none.toml"])
        .expect(2)
        .on_stderr("try: hikyaku config example > none.toml; `hikyaku paths`");
}

#[test]
fn deep_finds_what_only_opening_finds() {
    let (place, good) = example();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    place.file("taken.toml", good.replacen("127.0.0.1:0", &taken, 1).as_bytes());
    place.run(&["check", "taken.toml"]).expect(0);
    place.run(&["check", "taken.toml", "--deep"]).expect(1).on_stderr(&taken);

    place.file("disks/archive.img", b"QFI\xfb\0\0\0\x03");
    place.run(&["check", "hikyaku.toml"]).expect(0);
    let ran = place.run(&["check", "hikyaku.toml", "--deep"]);
    assert_ne!(ran.code, 0);
    let ran = ran.on_stderr("qcow2");
    ran.on_stderr("line 58").on_stderr("example.com:archive, LUN 0");
}

#[test]
fn a_user_finds_the_own_file_first() {
    let (place, _) = example();
    fs::create_dir_all(place.path("config/hikyaku")).unwrap();
    let own =
        "[[target]]\niqn = \"iqn.2026-11.example:own\"\n[[target.lun]]\nlun = 0\nendpoint = \"mem:1M\"\n";
    place.file("config/hikyaku/hikyaku.toml", own.as_bytes());
    place.run(&["check"]).expect(0).on_stdout("iqn.2026-11.example:own");
    place.run(&["config", "show"]).expect(0).on_stdout("endpoint = \"mem:1M\"");
    let serving = Serving::start(place.command().args(["serve", "--listen", "127.0.0.1:0"]), 1);
    assert!(serving.urls[0].ends_with("/iqn.2026-11.example:own/0"));
}

#[test]
fn paths_follow_the_environment_and_create_nothing() {
    let place = Place::new();
    let object = place.run(&["paths", "--json"]).expect(0).json();
    let path = |name: &str| {
        let all = object["paths"].as_array().unwrap();
        let found = all.iter().find(|path| path["name"] == name).unwrap();
        (found["path"].as_str().unwrap().to_owned(), found["exists"].as_bool().unwrap())
    };
    assert_eq!(path("identity"), (text(&place.path("config/hikyaku/identity")).to_owned(), false));
    assert_eq!(path("journals"), (text(&place.path("state/hikyaku/copies")).to_owned(), false));
    assert!(!place.path("config").exists() && !place.path("state").exists());
    place.run(&["key", "new"]).expect(0);
    place.run(&["paths"]).expect(0).on_stdout("config/hikyaku/identity\tyes");
}

#[test]
fn doctor_says_what_is_lacking_and_what_it_costs() {
    let place = Place::new();
    let object = place.run(&["doctor", "--json"]).expect(0).json();
    let checks = object["checks"].as_array().unwrap();
    for name in
        ["kernel", "io_uring", "memlock", "landlock", "seccomp", "sock_diag", "cipher", "tcp_wmem", "linkage"]
    {
        let check = checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}"));
        let lacks = check["state"] != "good";
        assert_eq!(check["cost"] != "", lacks, "{check}");
    }
    place.run(&["doctor"]).expect(0).on_stdout("linkage");
}

#[test]
fn an_imported_configuration_is_accepted_and_its_secrets_are_files() {
    let place = Place::new();
    place.sample("a.img", 1 << 20);
    let image = text(&place.path("a.img")).to_owned();
    let conf = format!(
        "<target iqn.2026-11.example:a>\nbacking-store {image}\nincominguser u the-first-secret\nMaxConnections 4\n</target>\n"
    );
    place.file("targets.conf", conf.as_bytes());
    let saved = format!(
        r#"{{"storage_objects":[{{"plugin":"fileio","name":"a","dev":"{image}"}}],"targets":[{{"fabric":"iscsi","wwn":"iqn.2026-11.example:a","tpgs":[{{"attributes":{{"authentication":1}},"luns":[{{"index":0,"storage_object":"/backstores/fileio/a"}}],"node_acls":[{{"node_wwn":"iqn.2026-11.example:i","chap_userid":"u","chap_password":"the-second-secret","mapped_luns":[{{"index":0,"tpg_lun":0}}]}}],"portals":[{{"ip_address":"0.0.0.0","port":3260}}]}}]}}]}}"#
    );
    place.file("saveconfig.json", saved.as_bytes());
    for (from, file, secret) in
        [("tgt", "targets.conf", "the-first-secret"), ("lio", "saveconfig.json", "the-second-secret")]
    {
        let ran = place.run(&["import", from, file, "--secrets", from]).expect(0);
        assert!(!ran.stdout.contains(secret) && !ran.stderr.contains(secret), "{}", ran.stdout);
        assert_eq!(fs::read_to_string(place.path(from).join("u")).unwrap(), format!("{secret}\n"));
        place.file("imported.toml", ran.stdout.as_bytes());
        place.run(&["check", "imported.toml"]).expect(0).on_stdout("1 target, 1 LUN");
        place.run(&["import", from, file, "--secrets", from]).expect(0);
    }
    place.run(&["import", "tgt", "none.conf"]).expect(2).on_stderr("none.conf").on_stderr("tgt-admin --dump");
}
