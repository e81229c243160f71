//! `serve --tls` and the endpoint option `tls=`.

mod common;

use std::io::Read;

use common::{Place, eventually, text};
use rcgen::generate_simple_self_signed;

/// Files of a self-signed certificate and its key.
fn certificate(place: &Place, name: &str) -> (String, String) {
    let made = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = place.file(&format!("{name}.pem"), made.cert.pem().as_bytes());
    let key = place.file(&format!("{name}.key"), made.signing_key.serialize_pem().as_bytes());
    (text(&certificate).to_owned(), text(&key).to_owned())
}

#[test]
fn a_copy_through_tls() {
    let place = Place::new();
    let (ours, key) = certificate(&place, "ours");
    let (other, _) = certificate(&place, "other");
    let serving = place.serve(&["mem:3M", "--tls", &format!("{ours},{key}")]);
    let trusting = format!("{},tls={ours}", serving.urls[0]);
    place.run(&["copy", "pattern:3M", &trusting, "--verify"]).expect(0);
    place.run(&["compare", "pattern:3M", &trusting]).expect(0);
    let protection = place.run(&["info", &trusting, "--json"]).expect(0).json()["protection"].clone();
    assert_eq!(protection["kind"], "tls");
    assert!(protection["suite"].as_str().unwrap().starts_with("TLS13_"), "{protection}");

    let error = place.run(&["info", &format!("{},tls={other}", serving.urls[0]), "--json"]).expect(4).error();
    assert!(error["cause"].as_str().unwrap().contains("not trusted"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("tls=FILE"), "{error}");
}

#[test]
fn a_reload_shows_the_certificate_that_the_files_hold_now() {
    let place = Place::new();
    let (shown, key) = certificate(&place, "shown");
    let serving = place.serve(&["mem:1M", "--tls", &format!("{shown},{key}")]);
    let (new, new_key) = certificate(&place, "new");
    let old = place.file("old.pem", &std::fs::read(&shown).unwrap());
    std::fs::copy(&new, &shown).unwrap();
    std::fs::copy(&new_key, &key).unwrap();
    let trusting = |file: &str| format!("{},tls={file}", serving.urls[0]);
    place.run(&["info", &trusting(text(&old))]).expect(0);
    serving.signal("-HUP");
    eventually("the new certificate is shown", || place.run(&["info", &trusting(&new)]).code == 0);
    place.run(&["info", &trusting(text(&old))]).expect(4);
}

#[test]
fn the_log_says_why_a_plain_initiator_is_turned_away() {
    let place = Place::new();
    let (ours, key) = certificate(&place, "ours");
    let mut command = place.command();
    command.args(["serve", "--listen", "127.0.0.1:0", "mem:1M", "--tls", &format!("{ours},{key}")]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut url = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut url)
        .unwrap();
    place.run(&["info", url.trim()]).expect(5);
    child.kill().unwrap();
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    child.wait().unwrap();
    assert!(log.contains("does not speak TLS"), "{log}");
}

#[test]
fn files_that_hold_no_certificate_are_named() {
    let place = Place::new();
    let (ours, key) = certificate(&place, "ours");
    let nothing = text(&place.file("nothing.pem", b"nothing\n")).to_owned();
    for pair in [format!("{nothing},{key}"), format!("{ours},{nothing}"), format!("{nothing}.none,{key}")] {
        place
            .run(&["serve", "mem:1M", "--listen", "127.0.0.1:0", "--tls", &pair])
            .expect(2)
            .on_stderr("nothing.pem");
    }
    place.run(&["serve", "mem:1M", "--tls", &ours]).expect(2);
    place
        .run(&["info", &format!("iscsi://127.0.0.1:1/iqn.2026-11.x:a/0,tls={nothing}")])
        .expect(2)
        .on_stderr("no certificate");
}
