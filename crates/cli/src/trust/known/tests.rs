use std::os::unix::fs::PermissionsExt;

use super::*;

fn key(byte: u8) -> PublicKey {
    PublicKey([byte; 32])
}

fn place(text: &str) -> Place {
    Place::parse(text).unwrap()
}

/// A user's and a host's file in a temporary directory.
struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new(own: &str, host: &str) -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap() };
        fs::write(files.path("own"), own).unwrap();
        fs::write(files.path("host"), host).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self) -> KnownTargets {
        KnownTargets::read_files(Some(self.path("own")), self.path("host")).unwrap()
    }

    /// The file without the remarks on dates.
    fn text(&self, name: &str) -> String {
        let text = fs::read_to_string(self.path(name)).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with(SINCE));
        lines.map(|line| format!("{line}\n")).collect()
    }

    fn key_of(&self, places: &[&str], target: Option<&str>) -> Result<Option<(usize, PublicKey)>, Failure> {
        let places: Vec<Place> = places.iter().map(|text| place(text)).collect();
        let found = self.read().find(Query { places: &places, target })?;
        Ok(found.map(|found| (found.line, found.key)))
    }
}

#[test]
fn one_place_in_every_form() {
    for text in ["127.0.0.1:1", "[::ffff:127.0.0.1]:1", "[::ffff:7f00:1]:1"] {
        assert_eq!(place(text), place("127.0.0.1:1"), "{text}");
    }
    assert_eq!(place("Host.Example.:1"), place("host.example:1"));
    assert_eq!(place("[fe80::1%eth0]:1"), place("[fe80::1]:1"));
    assert_eq!(place("xn--bcher-kva.example:1"), place("XN--bcher-kva.example.:1"));
    assert_eq!(place("[2001:DB8::0:1]:1"), place("[2001:db8::1]:1"));
    assert_ne!(place("h:1"), place("h:2"));
    assert_eq!(Place::of("::1", 1), place("[::1]:1"));
    for text in ["0.0.0.0:1", "[::ffff:0.0.0.0]:1"] {
        assert_eq!(place(text), place("127.0.0.1:1"), "{text}");
    }
    assert_eq!(Place::at(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 1))), place("[::1]:1"));
    assert_eq!(Place::of("::", 1), place("[::1]:1"));
    for wrong in ["", "h", "h:", ":1", "h:0", "h:65536", "[::1:1", "h:x"] {
        assert_eq!(Place::parse(wrong), None, "{wrong}");
    }
    for host in [
        "iscsi://127.0.0.1",
        "me@127.0.0.1",
        "\u{feff}127.0.0.1",
        "\u{200b}127.0.0.1",
        "127.0.0.1\u{200b}",
        "10.0.0.1:1;127.0.0.1",
        "127.0.0.0/8",
        "*",
        "*.example",
        "127%2e0.0.1",
        "127.0.0.1%eth0",
        "::1",
        "[h]",
        "[::1%]",
        "[::1]%eth0",
        "b\u{fc}cher.example",
        "127.0.0\u{ff0e}1",
        ".",
    ] {
        assert_eq!(Place::parse(&format!("{host}:7005")), None, "{host}");
    }
}

#[test]
fn a_link_is_followed_and_stays_and_must_lead_somewhere() {
    let files = Files::new("", "");
    let (own, elsewhere) = (files.path("own"), files.path("elsewhere/known"));
    fs::remove_file(&own).unwrap();
    fs::create_dir(files.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &own).unwrap();
    let read = || KnownTargets::read_files(Some(own.clone()), files.path("host"));
    let failure = read().unwrap_err();
    assert!(failure.object.ends_with("own") && failure.cause.contains("link"), "{failure}");
    fs::write(&elsewhere, "# remark\n").unwrap();
    read().unwrap().set(&place("h:1"), &[], &key(1)).unwrap();
    assert!(fs::symlink_metadata(&own).unwrap().is_symlink());
    let text = fs::read_to_string(&elsewhere).unwrap();
    assert!(text.starts_with(&format!("# remark\nh:1 {}\n{SINCE}20", key(1))), "{text}");
    // The directory may be the link, too.
    fs::remove_dir_all(files.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("/nonexistent", files.path("elsewhere")).unwrap();
    let below = KnownTargets::read_files(Some(elsewhere.clone()), files.path("host"));
    assert!(below.unwrap_err().cause.contains("link"));
}

#[test]
fn keys_are_kept_and_replaced_and_remarks_stay() {
    let files = Files::new("", "");
    let set = |host: &str, addresses: &[&str], byte: u8| {
        let addresses: Vec<Place> = addresses.iter().map(|text| place(text)).collect();
        files.read().set(&place(host), &addresses, &key(byte)).unwrap();
    };
    assert_eq!(files.key_of(&["h:3260"], None).unwrap(), None);
    set("h:3260", &["10.0.0.1:3260"], 1);
    set("[::1]:3260", &["[::1]:3260"], 2);
    assert_eq!(files.text("own"), format!("h:3260,10.0.0.1:3260 {}\n[::1]:3260 {}\n", key(1), key(2)));
    assert_eq!(files.key_of(&["H:3260"], None).unwrap(), Some((1, key(1))));
    assert_eq!(files.key_of(&["other:3260", "10.0.0.1:3260"], None).unwrap(), Some((1, key(1))));
    assert_eq!(files.key_of(&["10.0.0.1:3261"], None).unwrap(), None);
    fs::write(files.path("own"), format!("# remark\n\n{}", files.text("own"))).unwrap();
    // The address now belongs to another name too: both lines match one target.
    set("new:3260", &["10.0.0.1:3260"], 4);
    assert_eq!(files.key_of(&["h:3260"], None).unwrap(), Some((3, key(4))));
    // Below the line of h its new date.
    assert_eq!(files.key_of(&["new:3260"], None).unwrap(), Some((6, key(4))));
    assert!(files.text("own").starts_with("# remark\n\n"), "{}", files.text("own"));
    assert_eq!(fs::metadata(files.path("own")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_line_of_an_older_release_gets_addresses_by_trusting_it_again() {
    let files = Files::new(&format!("h:1 {}\n", key(1)), "");
    files.read().set(&place("h:1"), &[place("10.0.0.1:1")], &key(1)).unwrap();
    assert_eq!(files.text("own"), format!("h:1,10.0.0.1:1 {}\n", key(1)));
}

#[test]
fn lines_that_disagree_are_both_named() {
    let (one, two) = (key(1), key(2));
    let files = Files::new(
        &format!("a:1 {one} iqn.2026-11.example:x\nb:1 {two}\nc:1,10.0.0.1:1 {one}\n"),
        &format!("a:1 {one}\nd:1 {two} iqn.2026-11.example:y\n"),
    );
    // Two lines with one key agree.
    assert_eq!(files.key_of(&["a:1", "10.0.0.1:1"], None).unwrap(), Some((1, one)));
    for (places, target, lines) in [
        (&["a:1", "b:1"][..], None, ["line 1 of", "line 2 of"]),
        (&["b:1", "10.0.0.1:1"], None, ["line 2 of", "line 3 of"]),
        (&["b:1"], Some("iqn.2026-11.example:x"), ["line 1 of", "line 2 of"]),
        (&["a:1"], Some("iqn.2026-11.example:y"), ["line 1 of", "line 2 of"]),
    ] {
        let failure = files.key_of(places, target).unwrap_err();
        assert_eq!(failure.ending, Exit::Authentication);
        assert!(lines.iter().all(|line| failure.cause.contains(line)), "{failure}");
        assert!(failure.cause.contains(&one.to_string()) && failure.cause.contains(&two.to_string()));
    }
    // Matched by the target's name alone, at any address.
    let by_name = files.key_of(&["elsewhere:9"], Some("iqn.2026-11.example:y")).unwrap();
    assert_eq!(by_name, Some((2, two)));
    assert_eq!(files.key_of(&["elsewhere:9"], Some("iqn.2026-11.example:z")).unwrap(), None);
}

#[test]
fn a_targets_name_is_noted_once_where_its_key_stands() {
    let files = Files::new(&format!("a:1 {}\nb:1 {}\n", key(1), key(2)), &format!("c:1 {}\n", key(3)));
    let note = |host: &str, target: &str| {
        let known = files.read();
        let found = known.find(Query { places: &[place(host)], target: None }).unwrap().unwrap();
        known.note(&found, &place(host), target).unwrap();
    };
    for _ in 0..2 {
        note("b:1", "iqn.2026-11.example:x");
    }
    note("b:1", "iqn.2026-11.example:y");
    let expected = format!("a:1 {}\nb:1 {} iqn.2026-11.example:x iqn.2026-11.example:y\n", key(1), key(2));
    assert_eq!(files.text("own"), expected);
    // The host's file is changed if it is writable, otherwise the user's.
    note("c:1", "iqn.2026-11.example:z");
    assert_eq!(files.text("host"), format!("c:1 {} iqn.2026-11.example:z\n", key(3)));
    let known = files.read();
    let mut found = known.find(Query { places: &[place("a:1")], target: None }).unwrap().unwrap();
    found.path = PathBuf::from("/proc/no-such/known-targets");
    known.note(&found, &place("a:1"), "iqn.2026-11.example:w").unwrap();
    assert!(files.text("own").starts_with(&format!("a:1 {} iqn.2026-11.example:w\n", key(1))));
}

#[test]
fn the_hosts_lines_are_changed_there() {
    let files = Files::new("", &format!("h:1,10.0.0.1:1 {}\n", key(1)));
    let failure = files.read().set(&place("other:1"), &[place("10.0.0.1:1")], &key(2)).unwrap_err();
    assert!(failure.cause.contains("line 1 of") && failure.ending == Exit::Authentication, "{failure}");
    assert_eq!(files.text("own"), "");
    files.read().set(&place("other:1"), &[place("10.0.0.1:1")], &key(1)).unwrap();
    assert_eq!(files.key_of(&["other:1"], None).unwrap(), Some((1, key(1))));
}

#[test]
fn every_defect_is_named_with_its_line() {
    let good = key(1);
    let all = [
        ("h:1".to_owned(), "line 1 is not of the form"),
        (format!("h {good}"), "line 1 is not of the form"),
        (format!("h:1, {good}"), "line 1 is not of the form"),
        (format!("h:1 {good} more"), "line 1: 'more'"),
        (format!("a:1 {good}\nb:1 x"), "line 2: 'x' is not a public key"),
        (format!("a:1 {good},"), "line 1: '' is not a public key"),
        (format!("a:1 {good},{good},{good}"), "is not a public key"),
        (format!("a:1{} {good}", ",10.0.0.1:1".repeat(17)), "line 1 has more than 16 addresses"),
    ];
    for (text, cause) in all {
        let error = parse(&text).expect_err(cause);
        assert!(error.contains(cause), "{error}");
    }
}

#[test]
fn what_is_written_reads_the_same() {
    let text = format!("H:1,[::1]:1 {} iqn.2026-11.example:x\n# remark\n[fe80::1%2]:1 {}\n", key(1), key(2));
    assert_eq!(reads_back(&text), Some(true));
    assert_eq!(reads_back("x"), None);
}

#[test]
fn a_rotation_changes_every_line_with_the_key_and_no_other() {
    let files = Files::new(&format!("a:1 {}\nb:1 {}\nc:1 {}\n", key(1), key(2), key(1)), "");
    let own = files.path("own");
    KnownTargets::rotate(&own, &key(1), Change::Next(Some(key(3)))).unwrap();
    let [one, two, three, four] = [1, 2, 3, 4].map(key);
    assert_eq!(files.text("own"), format!("a:1 {one},{three}\nb:1 {two}\nc:1 {one},{three}\n"));
    let found = files.read().find(Query { places: &[place("a:1")], target: None }).unwrap().unwrap();
    assert_eq!((found.key, found.next), (one, Some(three)));
    // Another process has stored another announcement: this one is not accepted.
    KnownTargets::rotate(&own, &key(1), Change::Replaced(four)).unwrap();
    assert!(!files.text("own").contains(&four.to_string()));
    KnownTargets::rotate(&own, &key(1), Change::Replaced(three)).unwrap();
    assert_eq!(files.text("own"), format!("a:1 {three}\nb:1 {two}\nc:1 {three}\n"));
    KnownTargets::rotate(&own, &key(3), Change::Next(Some(four))).unwrap();
    KnownTargets::rotate(&own, &key(3), Change::Next(None)).unwrap();
    assert_eq!(files.text("own"), format!("a:1 {three}\nb:1 {two}\nc:1 {three}\n"));
    // Trust in another key ends both.
    KnownTargets::rotate(&own, &key(3), Change::Next(Some(four))).unwrap();
    files.read().set(&place("a:1"), &[], &one).unwrap();
    assert!(files.text("own").starts_with(&format!("a:1 {one}\n")), "{}", files.text("own"));
}
