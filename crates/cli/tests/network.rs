//! The binary against itself over loopback: serve, copy, ls, info, CHAP, identities, signals.

mod common;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;

use common::{Place, Ran, Serving, eventually, spawn, text};

const MIB: usize = 1 << 20;

/// The URL up to its last slash.
fn parent(url: &str) -> &str {
    url.rsplit_once('/').unwrap().0
}

fn portal(serving: &Serving) -> &str {
    parent(parent(&serving.urls[0]))
}

#[test]
fn a_failed_ls_does_not_suggest_itself() {
    let failed = Place::new().run(&["ls", "iscsi://127.0.0.1:1,timeout=1s"]).expect(5);
    failed.on_stderr("try: check the address, the port and the firewall\n");
}

#[test]
fn a_full_target_is_not_one_that_lost_power() {
    let place = Place::with_sample(64 << 20);
    File::create(place.path("lun.img")).unwrap().set_len(64 << 20).unwrap();
    let serving = place.serve(&["lun.img,fault=no-space:after=40"]);
    let ran = place.run(&["copy", "a.img", &serving.urls[0]]).expect(1);
    assert!(ran.stderr.contains("SPACE ALLOCATION FAILED"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("lost power"), "{}", ran.stderr);
}

#[test]
fn copy_to_a_lun_and_back() {
    let place = Place::new();
    let source = place.sample("a.img", 6 * MIB);
    place.file("lun.img", &vec![0; 6 * MIB]);
    let mut serving = place.serve(&["lun.img"]);
    let url = &serving.urls[0];
    let object = place.run(&["copy", "a.img", url, "--verify", "--json"]).expect(0).json();
    assert_eq!((&object["bytes"], &object["verified"]), (&(6 * MIB).into(), &true.into()));
    place.run(&["compare", "a.img", url]).expect(0);
    place.run(&["copy", url, "back.img,create,size=6M", "--verify"]).expect(0);
    assert!(fs::read(&source).unwrap() == fs::read(place.path("back.img")).unwrap());
    // The LUN now has content, but none of a known kind.
    let part = ["--size", "4K", "--dst-offset", "1M"];
    place.run(&[&["copy", "pattern:64K:9", url][..], &part].concat()).expect(0);
    let ran = place.run(&["compare", "a.img", url]).expect(3);
    assert_eq!(ran.stdout, "they differ at offset 1048576\n");
    serving.signal("-TERM");
    assert_eq!(serving.wait(), 0);
    assert!(fs::read(place.path("lun.img")).unwrap()[..MIB] == fs::read(&source).unwrap()[..MIB]);
}

#[test]
fn copy_from_lun_to_lun() {
    let place = Place::with_sample(3 * MIB);
    let serving = place.serve(&["a.img,ro", "mem:3M"]);
    place.run(&["copy", &serving.urls[0], &serving.urls[1], "--verify"]).expect(0);
    place.run(&["compare", "pattern:3M:7", &serving.urls[1]]).expect(0);
    place.run(&["copy", "pattern:3M", &serving.urls[0]]).expect(6).on_stderr("read-only");
    place.run(&["copy", &serving.urls[1], &serving.urls[1]]).expect(6).on_stderr("same storage");
}

#[test]
fn refusals_hold_for_a_lun_too() {
    let place = Place::new();
    let mut content = vec![0; 2 * MIB];
    content[..4].copy_from_slice(b"XFSB");
    place.file("lun.img", &content);
    let serving = place.serve(&["lun.img"]);
    place.run(&["copy", "pattern:1M", &serving.urls[0]]).expect(6).on_stderr("it holds: xfs filesystem");
    place.run(&["copy", "pattern:4M", &serving.urls[0], "--force"]).expect(6);
    place.run(&["copy", "pattern:1M", &serving.urls[0], "--force"]).expect(0);
}

#[test]
fn ls_and_info_tell_what_is_there() {
    let place = Place::new();
    place.file("lun.img", &vec![0; 2 * MIB]);
    let serving = place.serve(&["lun.img,serial=S3RIAL,product=shelf", "mem:1M,lun=5,ro"]);
    let object = place.run(&["ls", portal(&serving), "--json"]).expect(0).json();
    assert_eq!(object["schema"], 1);
    let target = &object["targets"][0];
    assert_eq!(target["luns"].as_array().unwrap().len(), 2, "{object}");
    assert_eq!((&target["luns"][0]["lun"], &target["luns"][0]["size_bytes"]), (&0.into(), &(2 * MIB).into()));
    assert_eq!((&target["luns"][1]["lun"], &target["luns"][1]["read_only"]), (&5.into(), &true.into()));
    assert_eq!(target["luns"][0]["serial"], "S3RIAL");
    assert!(target["portals"][0].as_str().unwrap().starts_with("127.0.0.1:"), "{object}");
    let of_target = place.run(&["ls", parent(&serving.urls[0]), "--json"]).expect(0).json();
    assert_eq!(of_target["targets"][0]["luns"], target["luns"]);
    let plain = place.run(&["ls", portal(&serving)]).expect(0).stdout;
    assert_eq!(plain.lines().count(), 3, "{plain}");
    let column = |line: usize| plain.lines().nth(line).unwrap().split('\t').nth(3);
    assert_eq!([0, 1].map(column), [Some("SIZE"), Some("2 MiB")]);
    let object = place.run(&["info", &serving.urls[0], "--json"]).expect(0).json();
    assert_eq!((&object["size_bytes"], &object["block_size"]), (&(2 * MIB).into(), &512.into()));
    let told = (&object["facts"]["serial"], &object["facts"]["product"]);
    assert_eq!(told, (&"S3RIAL".into(), &"shelf".into()));
    assert!(object["facts"]["MaxBurstLength"].is_string(), "{object}");
}

#[test]
fn chap_opens_and_its_lack_exits_4() {
    let place = Place::new();
    place.file("good", b"a good long secret\n");
    place.file("bad", b"a wrong long secret\n");
    place.file("own", b"the target's secret\n");
    let arguments = ["mem:1M", "--chap-user", "u", "--chap-secret-file", "good"];
    let mutual = ["--mutual-chap-user", "t", "--mutual-chap-secret-file", "own"];
    let serving = place.serve(&[&arguments[..], &mutual].concat());
    let url = &serving.urls[0];
    place.run(&["info", &format!("{url},chap-user=u,chap-secret-file=good")]).expect(0);
    let mutual = |file: &str| {
        let names = "chap-user=u,chap-secret-file=good,mutual-chap-user=t";
        place.run(&["info", &format!("{url},{names},mutual-chap-secret-file={file}")])
    };
    mutual("own").expect(0);
    let with_user = url.replace("iscsi://", "iscsi://u@");
    let environment = |password: &str| {
        let mut command = place.command();
        command.env("LIBISCSI_CHAP_PASSWORD", password).args(["info", &with_user]);
        Ran::from(command.output().unwrap())
    };
    environment("a good long secret").expect(0);
    environment("a wrong long secret").expect(4);
    for wrong in ["", ",chap-user=u,chap-secret-file=bad", ",chap-user=x,chap-secret-file=good"] {
        let error = place.run(&["info", &format!("{url}{wrong}"), "--json"]).expect(4).error();
        assert_eq!(error["code"], 4, "{wrong}");
    }
    mutual("bad").expect(4);
}

#[test]
fn a_password_in_a_url_is_hidden() {
    let place = Place::new();
    place.file("good", b"a good long secret\n");
    let serving = place.serve(&["mem:64M", "--chap-user", "u", "--chap-secret-file", "good"]);
    let url = serving.urls[0].replace("iscsi://", "iscsi://u%a good long secret@");
    let ran = place.run(&["info", &url]).expect(0);
    assert!(ran.stderr.contains("a password in a URL"), "{}", ran.stderr);
    assert!(!ran.stdout.contains("good long") && !ran.stderr.contains("good long"));
    let mut child = spawn(place.command().args(["copy", "pattern:64M", &url, "--rate", "4M"]));
    let line = format!("/proc/{}/cmdline", child.id());
    eventually("the command line is hidden", || {
        let line = fs::read_to_string(&line).unwrap();
        line.contains("u%****") && !line.contains("good long")
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let ran = place.run(&["copy", "none.img", &url, "--json"]).expect(1);
    assert!(!ran.stderr.contains("good long"), "{}", ran.stderr);
    let ran = place.run(&["frobnicate", &url]).expect(2);
    assert!(!ran.stderr.contains("good long"), "{}", ran.stderr);
}

#[test]
fn nobody_there_exits_5() {
    let place = Place::new();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("iscsi://{address}/iqn.2026-11.example:a/0,timeout=2s");
    let error = place.run(&["info", &url, "--json"]).expect(5).error();
    assert_eq!(error["code"], 5);
    place.run(&["ls", &format!("iscsi://{address},timeout=2s")]).expect(5);
}

#[test]
fn identities_are_stable_and_never_live_twice() {
    let place = Place::new();
    let serial = |url: &str| place.run(&["info", url, "--json"]).expect(0).json()["facts"]["serial"].clone();
    let mut first = place.serve(&["mem:1M"]);
    let (name, of_first) =
        (parent(&first.urls[0]).rsplit_once('/').unwrap().1.to_owned(), serial(&first.urls[0]));
    let second = place.serve(&["mem:1M"]);
    assert!(parent(&second.urls[0]).ends_with(&format!("{name}.2")), "{}", second.urls[0]);
    assert_ne!(serial(&second.urls[0]), of_first);
    place
        .run(&["serve", "mem:1M", "--listen", "127.0.0.1:0", "--iqn", &name])
        .expect(6)
        .on_stderr("is live in another process");
    first.signal("-TERM");
    assert_eq!(first.wait(), 0);
    let again = place.serve(&["mem:1M"]);
    assert!(parent(&again.urls[0]).ends_with(&name));
    assert_eq!(serial(&again.urls[0]), of_first);
}

#[test]
fn an_identity_goes_with_its_storage() {
    let place = Place::new();
    let file = place.file("disk.img", &vec![1; MIB]);
    let other = place.file("other.img", &vec![1; MIB]);
    let who = |words: &str| {
        let mut serving = place.serve(&[words, "--iqn", "iqn.2026-11.example:one"]);
        let facts = place.run(&["info", &serving.urls[0], "--json"]).expect(0).json()["facts"].clone();
        serving.signal("-TERM");
        assert_eq!(serving.wait(), 0);
        (facts["designator"].as_str().unwrap().to_owned(), facts["serial"].as_str().unwrap().to_owned())
    };
    let first = who("disk.img");
    assert_eq!(who("disk.img"), first);
    File::options().write(true).open(&file).unwrap().set_len(2 * MIB as u64).unwrap();
    assert_eq!(who("disk.img"), first, "it has grown");
    fs::rename(&file, place.path("moved.img")).unwrap();
    assert_eq!(who("moved.img"), first, "it has another name");
    fs::rename(other, &file).unwrap();
    let second = who("disk.img");
    assert!(second.0 != first.0 && second.1 != first.1, "{second:?}");
    let naa = first.0.strip_prefix("naa.").unwrap();
    assert_eq!(who(&format!("disk.img,naa={naa},serial={}", first.1)), first, "it is said to be that disk");
    assert_eq!(who("moved.img"), first);
    place
        .run(&["serve", "disk.img,naa=5", "--listen", "127.0.0.1:0"])
        .expect(2)
        .on_stderr("sixteen hex digits");
}

#[test]
fn storage_declared_shared_may_be_live_twice() {
    let place = Place::new();
    let name = ["--iqn", "iqn.2026-11.example:both"];
    let _first = place.serve(&[&["mem:1M,shared"][..], &name].concat());
    let _second = place.serve(&[&["mem:1M,shared"][..], &name].concat());
}

#[test]
fn exposure_needs_protection_or_consent() {
    let place = Place::new();
    place.run(&["serve", "mem:1M", "--listen", "0.0.0.0:0"]).expect(6).on_stderr("--seal off");
    place.file("good", b"a good long secret\n");
    let protected = ["--chap-user", "u", "--chap-secret-file", "good"];
    for arguments in [&["--seal", "off"][..], &protected] {
        let mut serving = place.serve(&[&["mem:1M", "--listen", "0.0.0.0:0"][..], arguments].concat());
        serving.signal("-INT");
        assert_eq!(serving.wait(), 0);
    }
}

#[test]
fn two_servers_do_not_share_a_file() {
    let place = Place::new();
    place.file("lun.img", &vec![0; MIB]);
    let _first = place.serve(&["lun.img"]);
    place.run(&["serve", "lun.img", "--listen", "127.0.0.1:0"]).expect(6).on_stderr("locked");
}

#[test]
fn a_configuration_is_served() {
    let place = Place::new();
    place.file("u.secret", b"a good long secret\n");
    let config = "[server]\nlisten = [\"127.0.0.1:0\"]\n\
        [[target]]\niqn = \"iqn.2026-11.example:one\"\n\
        [[target.lun]]\nlun = 3\nendpoint = \"mem:1M\"\nserial = \"ONE\"\n\
        [[target.acl]]\ninitiator = \"iqn.2026-11.example:me\"\nchap-user = \"u\"\nsecret-file = \"u.secret\"\n\
        [[target]]\niqn = \"iqn.2026-11.example:two\"\n\
        [[target.lun]]\nlun = 0\nendpoint = \"mem:2M\"\n";
    place.file("c.toml", config.as_bytes());
    let serving = Serving::start(place.command().args(["serve", "--config", "c.toml"]), 2);
    assert!(serving.urls[0].ends_with("/iqn.2026-11.example:one/3"));
    assert!(serving.urls[1].ends_with("/iqn.2026-11.example:two/0"));
    place.run(&["info", &serving.urls[1]]).expect(0);
    place.run(&["info", &serving.urls[0]]).expect(4);
    let login = ",initiator=iqn.2026-11.example:me,chap-user=u,chap-secret-file=u.secret";
    let object = place.run(&["info", &format!("{}{login}", serving.urls[0]), "--json"]).expect(0).json();
    assert_eq!(object["facts"]["serial"], "ONE");
}

fn left_in(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn demo_shows_everything_and_leaves_nothing() {
    let place = Place::new();
    let temporary = place.path("tmp");
    fs::create_dir(&temporary).unwrap();
    place.sample("a.img", 4 * MIB + 100);
    let run = |arguments: &[&str]| {
        Ran::from(place.command().env("TMPDIR", &temporary).arg("demo").args(arguments).output().unwrap())
    };
    let ran = run(&["a.img"]).expect(0);
    let numbers: Vec<&str> =
        ran.stdout.lines().map(|line| line.trim_start().split(' ').next().unwrap()).collect();
    assert_eq!(numbers, ["1/5", "2/5", "3/5", "4/5", "5/5"], "{}", ran.stdout);
    let object = run(&["a.img", "--json"]).expect(0).json();
    assert_eq!((&object["schema"], &object["bytes"]), (&1.into(), &(4 * MIB).into()));
    let ran = run(&["a.img", "--wan", "10ms,0.1%"]).expect(0);
    for words in ["behind a relay: 10.0 ms, 0.1 % lost, 125 MB/s", "round trips", "no congestion control"] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
    // Its reads of 4 KiB took the path's round trip.
    let object = run(&["a.img", "--wan", "10ms", "--json"]).expect(0).json();
    assert!(object["steps"][3]["p50_us"].as_u64() >= Some(10_000), "{object}");
    run(&["a.img", "--wan", "10ms,20%"]).expect(2);
    assert_eq!(left_in(&temporary), 0);
    let slow = format!("{},limit=2MB/s", text(&place.path("a.img")));
    // The target's URL is printed before the copy begins.
    let mut demo = Serving::start(place.command().env("TMPDIR", &temporary).args(["demo", &slow]), 1);
    demo.signal("-INT");
    assert_eq!(demo.wait(), 130);
    assert_eq!(left_in(&temporary), 0);
}
