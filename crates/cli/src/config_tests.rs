use super::*;
use crate::command::serve::access::check_exposure;

const GOOD: &str = r#"
[server]
listen = ["127.0.0.1:3261"]
drain-timeout = "5s"
identity = "/etc/hikyaku/key"
peers = "/etc/hikyaku/peers.toml"

[[target]]
iqn = "iqn.2026-11.example.com:disks"

[[target.lun]]
lun = 0
endpoint = "/srv/a.img,cache=writethrough"
serial = "A1"

[[target.lun]]
lun = 7
endpoint = "mem:64M,ro"

[[target.portal]]
address = "127.0.0.1:3262"
tpgt = 1

[[target.acl]]
initiator = "iqn.2026-11.example.com:host"
chap-user = "u"
secret-file = "/etc/hikyaku/u.secret"
luns = [0]
mode = "ro"

[[target.acl]]
chap-user = "any"
secret-file = "/etc/hikyaku/any.secret"

[[target.acl]]
peer = "laptop"
luns = [7]
mode = "ro"
"#;

fn parse(text: &str) -> Result<Config, Wrong> {
    Config::parse(&Context::default(), text)
}

#[test]
fn everything_is_read() {
    let config = parse(GOOD).unwrap();
    let listen: Vec<String> = config.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["127.0.0.1:3261", "127.0.0.1:3262"]);
    assert_eq!(config.drain_timeout, Some(Duration::from_secs(5)));
    let [target] = &config.targets[..] else { panic!("one target") };
    assert_eq!(target.iqn.as_deref(), Some("iqn.2026-11.example.com:disks"));
    let luns: Vec<(u16, &str, Option<&str>)> =
        target.luns.iter().map(|lun| (lun.lun, lun.endpoint.text.as_str(), lun.serial.as_deref())).collect();
    assert_eq!(luns, [(0, "/srv/a.img,cache=writethrough", Some("A1")), (7, "mem:64M,ro", None)]);
    assert_eq!(target.acls.len(), 3);
    assert_eq!((target.acls[2].peer.as_deref(), &target.acls[2].initiator), (Some("laptop"), &None));
    assert!(target.acls[2].read_only && target.acls[0].peer.is_none());
    assert_eq!(config.identity.as_deref(), Some(Path::new("/etc/hikyaku/key")));
    assert_eq!(config.peers.as_deref(), Some(Path::new("/etc/hikyaku/peers.toml")));
    assert_eq!((config.seal, config.seal_policy()), (None, SealPolicy::Require));
    assert_eq!(target.acls[0].luns, Some(vec![0]));
    assert!(target.acls[0].read_only && target.acls[0].chap.is_some());
    assert!(target.acls[1].initiator.is_none());
}

/// (defect, replaced part of the valid text, replacement, line, part of the message)
const DEFECTS: &[(&str, &str, &str, usize, &str)] = &[
    ("unknown_key", "drain-timeout", "drain-time", 4, "unknown key drain-time; did you mean drain-timeout?"),
    ("unknown_table", "[server]", "[serve]", 2, "unknown key serve; did you mean server?"),
    ("unknown_lun_key", "serial =", "serials =", 14, "unknown key serials; did you mean serial?"),
    ("not_toml", "lun = 0", "lun = ", 12, "value"),
    (
        "lun_is_text",
        "lun = 0",
        "lun = \"zero\"",
        12,
        "lun: \"zero\" is text in quotes, and a number from 0 to 65535 is needed; write for example lun = 0",
    ),
    ("lun_too_large", "lun = 7", "lun = 16384", 17, "beyond 16383"),
    ("lun_twice", "lun = 7", "lun = 0", 17, "LUN 0 is there twice"),
    ("listen_wrong", "127.0.0.1:3261", "127.0.0.1:326100", 3, "is not an address"),
    ("timeout_wrong", "\"5s\"", "\"soon\"", 4, "not a duration"),
    ("iqn_wrong", "iqn.2026-11.example.com:disks", "disks", 9, "iSCSI name begins with"),
    ("endpoint_option_unknown", "cache=writethrough", "cash=no", 13, "unknown option 'cash'"),
    ("endpoint_cache_wrong", "cache=writethrough", "cache=none", 12, "cache=writeback or"),
    ("endpoint_lun_option", "mem:64M,ro", "mem:64M,lun=7", 18, "by the key lun"),
    ("serial_empty", "\"A1\"", "\"\"", 12, "not a serial number"),
    ("tpgt_unknown", "tpgt = 1", "tpgt = 2", 22, "one portal group"),
    ("mode_unknown", "mode = \"ro\"", "mode = \"r\"", 29, "is not a mode"),
    ("acl_lun_unknown", "luns = [0]", "luns = [3]", 24, "which the target does not have"),
    ("acl_without_secret", "secret-file = \"/etc/hikyaku/u.secret\"\n", "", 24, "need each other"),
    ("acl_initiator_wrong", "iqn.2026-11.example.com:host", "host", 25, "iSCSI name begins with"),
    ("seal_unknown", "drain-timeout = \"5s\"", "seal = \"on\"", 4, "'on' is not \"off\", \"offer\" or"),
    (
        "unknown_key_named",
        "serial =",
        "serials =",
        14,
        "target iqn.2026-11.example.com:disks, LUN 0: unknown key",
    ),
    (
        "unknown_acl_key",
        "mode = \"ro\"",
        "mod = 1",
        29,
        "target iqn.2026-11.example.com:disks: unknown key mod; did you mean mode?",
    ),
    ("tls_without_key", "drain-timeout = \"5s\"", "tls-certificate = \"c\"", 4, "need each other"),
    ("sealed_and_tls", "drain-timeout = \"5s\"", "tls-certificate = \"c\"\ntls-key = \"k\"", 4, "not both"),
    ("target_named", "lun = 7", "lun = 0", 17, "target iqn.2026-11.example.com:disks: LUN 0: LUN 0 is there"),
    ("acl_names_nobody", "peer = \"laptop\"\n", "", 35, "needs an initiator, a peer or"),
    (
        "acl_peer_wrong",
        "peer = \"laptop\"",
        "peer = 7",
        36,
        "peer: 7 is a number, and text in quotes is needed; write for example peer = \"laptop\"",
    ),
];

#[test]
fn every_defect_is_named_with_its_line() {
    for (defect, part, instead, line, message) in DEFECTS {
        assert!(GOOD.contains(part), "{defect}");
        let text = GOOD.replacen(part, instead, 1);
        let (range, cause) = parse(&text).expect_err(defect);
        assert_eq!(position(&text, range.start).0, *line, "{defect}: {cause}");
        assert!(cause.contains(message), "{defect}: {cause}");
    }
}

fn problems(text: &str) -> Vec<(usize, String)> {
    let (_, found) = explain::problems(text, |text| Config::examine(&Context::default(), text));
    found.into_iter().map(|(at, cause)| (position(text, at.start).0, cause)).collect()
}

/// Changes of the valid text that apply together: (replaced part, replacement, line and part of the message; line 0 if the
/// change has no message of its own)
type Changes = &'static [(&'static str, &'static str, usize, &'static str)];

const TOGETHER: &[(&str, Changes)] = &[
    (
        "of-the-parser-and-of-values",
        &[
            ("drain-timeout = \"5s\"", "drain-timeout = 5", 4, "text in quotes is needed"),
            ("cache=writethrough", "cash=no", 13, "unknown option 'cash'"),
            ("serial =", "serials =", 14, "did you mean serial?"),
            ("tpgt = 1", "tpgt = 2", 22, "one portal group"),
            ("mode = \"ro\"", "mode = \"r\"", 29, "is not a mode"),
        ],
    ),
    (
        "keys-that-are-missing",
        &[
            ("iqn = \"iqn.2026-11.example.com:disks\"\n", "# no iqn\n", 8, "the key iqn is missing"),
            ("lun = 7\n", "# no number\n", 16, "the key lun is missing"),
            ("address = \"127.0.0.1:3262\"\n", "# no address\n", 20, "the key address is missing"),
            ("secret-file = \"/etc/hikyaku/u.secret\"\n", "# no secret\n", 24, "need each other"),
        ],
    ),
    (
        "misspelt-keys-are-not-missing-too",
        &[
            ("lun = 0", "lum = 0", 12, "did you mean lun?"),
            ("endpoint = \"mem:64M,ro\"", "endpont = \"mem:64M,ro\"", 18, "did you mean endpoint?"),
            (
                "secret-file = \"/etc/hikyaku/u",
                "secretfile = \"/etc/hikyaku/u",
                27,
                "did you mean secret-file?",
            ),
            ("\"iqn.2026-11.example.com:disks\"", "5", 9, "text in quotes is needed"),
            ("peer = \"laptop\"", "peer = 7", 36, "text in quotes is needed"),
        ],
    ),
    (
        "a-number-in-quotes-is-the-number-of-its-rules",
        &[
            ("lun = 0", "lun = \"0\"", 12, "a number from 0"),
            ("cache=writethrough", "cache=none", 12, "LUN 0: cache=none"),
        ],
    ),
    (
        "several-in-one-rule",
        &[
            ("iqn.2026-11.example.com:host", "host", 25, "iSCSI name begins with"),
            ("secret-file = \"/etc/hikyaku/u.secret\"\n", "\n", 24, "need each other"),
            ("luns = [0]", "luns = [3]", 24, "LUN 3, which the target does not have"),
            ("mode = \"ro\"", "mode = \"r\"", 29, "is not a mode"),
        ],
    ),
    (
        "tables-that-are-unknown",
        &[
            ("[server]\n", "[serve]\n", 2, "did you mean server?"),
            ("[[target.portal]]", "[[target.portals]]", 20, "did you mean portal?"),
            ("mode = \"ro\"", "mode = \"r\"", 29, "is not a mode"),
        ],
    ),
    (
        "no-target-of-the-right-name",
        &[
            ("[[target]]", "[[targets]]", 8, "did you mean target?"),
            ("drain-timeout = \"5s\"", "seal = 1", 4, "text in"),
        ],
    ),
];

#[test]
fn all_problems_of_a_file_are_found_in_the_order_of_its_lines() {
    for (name, changes) in TOGETHER {
        let mut text = GOOD.to_owned();
        let mut expected = Vec::new();
        for (part, instead, line, message) in *changes {
            assert!(text.contains(part), "{name}: {part}");
            text = text.replacen(part, instead, 1);
            expected.push((*line, *message));
        }
        expected.sort_by_key(|(line, _)| *line);
        let found = problems(&text);
        let lines = |all: &[(usize, String)]| all.iter().map(|(line, _)| *line).collect::<Vec<_>>();
        let wanted: Vec<usize> = expected.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines(&found), wanted, "{name}: {found:#?}");
        for (line, message) in expected {
            let is_it = |(at, cause): &(usize, String)| *at == line && cause.contains(message);
            assert!(found.iter().any(is_it), "{name}: {message}: {found:#?}");
        }
        assert!(
            !format!("{found:?}").contains("missing-0") && !format!("{found:?}").contains("LUN 163"),
            "{found:#?}"
        );
    }
}

#[test]
fn peers_require_sealing_unless_something_else_is_said_seal1_7() {
    for (said, policy) in
        [("off", SealPolicy::Off), ("offer", SealPolicy::Offer), ("require", SealPolicy::Require)]
    {
        let text = GOOD.replacen("drain-timeout = \"5s\"", &format!("seal = \"{said}\""), 1);
        assert_eq!(parse(&text).unwrap().seal_policy(), policy);
    }
    let without = GOOD.replacen("peers = \"/etc/hikyaku/peers.toml\"\n", "", 1);
    assert_eq!(parse(&without).unwrap().seal_policy(), SealPolicy::Off);
}

#[test]
fn a_target_needs_luns_and_a_config_targets() {
    assert_eq!(parse("").unwrap_err().1, "there is no [[target]]");
    assert!(parse("[client]\nseal = \"require\"\n").unwrap().targets.is_empty(), "an initiator's file");
    let text = "[[target]]\niqn = \"iqn.2026-11.example.com:a\"\n";
    assert!(parse(text).unwrap_err().1.contains(":a: it has no [[target.lun]]"));
}

#[test]
fn targets_at_different_portals_are_refused() {
    let target = |name: &str, portal: &str| {
        format!(
            "[[target]]\niqn = \"iqn.2026-11.example.com:{name}\"\n[[target.lun]]\nlun = 0\nendpoint = \"mem:1M\"\n\
             [[target.portal]]\naddress = \"{portal}\"\n"
        )
    };
    let two = target("a", "127.0.0.1:1") + &target("b", "127.0.0.1:2");
    assert!(parse(&two).unwrap_err().1.contains("every target at every portal"));
    let two = target("a", "127.0.0.1:1") + &target("b", "127.0.0.1:1");
    assert_eq!(parse(&two).unwrap().listen.len(), 1);
    let two = target("a", "127.0.0.1:1") + &target("a", "127.0.0.1:1");
    assert!(parse(&two).unwrap_err().1.contains("there twice"));
}

#[test]
fn positions_count_from_one() {
    assert_eq!(position("ab\ncd", 0), (1, 1));
    assert_eq!(position("ab\ncd", 4), (2, 2));
    assert_eq!(position("ä\nb", 3), (2, 1));
    assert_eq!(position("", 9), (1, 1));
}

#[test]
fn the_clients_part_is_read_alone() {
    for (text, line) in [
        ("", None),
        ("[client]\n", None),
        ("[server]\nlisten = 7\n[[target]]\niqn = 1\n", None),
        ("# this host's\n[client]\nseal = \"require\"\n[server]\nnew-key = 1\n", Some(3)),
    ] {
        assert_eq!(client_seal_of(text), Ok(line), "{text}");
    }
    for (text, cause) in [
        ("[client]\nseal = \"off\"", "'off' is not \"require\""),
        ("[client]\nseal = \"offer\"", "'offer' is not \"require\""),
        ("[client]\nsael = \"require\"", "unknown key sael; did you mean seal?"),
        ("[clinet]\nseal = \"require\"", "unknown key clinet; did you mean client?"),
        ("[client", ""),
    ] {
        let (_, told) = client_seal_of(text).expect_err(text);
        assert!(told.contains(cause), "{told}");
        // `serve` and `check` apply the same rules to the file.
        assert!(Config::parse(&Context::default(), text).is_err(), "{text}");
    }
    let whole = format!("[client]\nseal = \"require\"\n{GOOD}");
    assert!(Config::parse(&Context::default(), &whole).is_ok());
}

#[test]
fn rows_by_user_carry_luns_and_mode() {
    let text = GOOD.replacen("peer = \"laptop\"\n", "chap-user = \"u\"\nsecret-file = \"/etc/u\"\n", 1);
    let config = parse(&text).unwrap();
    let acls = &config.targets[0].acls;
    assert!(acls[2].read_only && acls[2].luns == Some(vec![7]) && acls[2].peer.is_none());
    assert_eq!(acls.iter().map(Acl::is_account).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(acls.iter().map(|acl| acl.line).collect::<Vec<_>>(), [24, 31, 35]);
}

#[test]
fn users_and_directories_of_the_server() {
    let of = |keys: &str| parse(&GOOD.replacen("drain-timeout = \"5s\"", keys, 1));
    let config = of("allow-user = [\"backup\", \"1000\"]\nstorage = [\"/srv\"]").unwrap();
    let allowed = (config.allow_users, config.storage);
    assert_eq!(allowed, (vec!["backup".into(), "1000".into()], vec!["/srv".into()]));
}

/// (key or endpoint in the file, path after the file was placed in /etc/hikyaku)
#[test]
fn relative_paths_lie_beside_the_file() {
    let text = GOOD
        .replace(
            "\"/etc/hikyaku/key\"",
            "\"key\"\nstorage = [\"disks\", \"/srv\"]\ntls-certificate = \"c\"\ntls-key = \"k\"\nseal = \"off\"",
        )
        .replace("/etc/hikyaku/u.secret", "../u.secret")
        .replace("/srv/a.img", "disks/a,,b.img")
        .replace("mem:64M,ro", "iscsi://h/iqn.2026-11.example:x/0,chap-user=u,chap-secret-file=s,ro");
    let mut config = parse(&text).unwrap();
    config.place(Path::new("/etc/hikyaku"));
    let at = |path: &str| PathBuf::from("/etc/hikyaku").join(path);
    assert_eq!(config.identity, Some(at("key")));
    assert_eq!(config.storage, [at("disks"), "/srv".into()]);
    assert_eq!(config.tls, Some((at("c"), at("k"))));
    assert_eq!(config.peers, Some(at("peers.toml")), "absolute ones stay");
    let target = &config.targets[0];
    assert_eq!(target.acls[0].chap.as_ref().unwrap().secret_file, at("../u.secret"));
    let [file, remote] = &target.luns[..] else { panic!("two LUNs") };
    assert_eq!(file.endpoint.path(), Some(&*at("disks/a,b.img")));
    assert_eq!(file.endpoint.text, "disks/a,,b.img,cache=writethrough", "messages quote the file");
    assert_eq!(remote.endpoint.spec.get("chap-secret-file"), Some("/etc/hikyaku/s"));
}

#[test]
fn targets_and_luns_know_their_lines() {
    let config = parse(GOOD).unwrap();
    let target = &config.targets[0];
    assert_eq!((target.line, target.luns[0].line, target.luns[1].line), (9, 13, 18));
}

/// The beginnings of a file that is being written: refused with a place, or a part of the whole.
#[test]
fn half_a_file_is_refused_or_a_part() {
    let whole = parse(GOOD).unwrap();
    let (mut refused, mut parts) = (0, 0);
    for end in 0..GOOD.len() {
        let text = &GOOD[..end];
        let config = match parse(text) {
            Ok(config) => config,
            Err((at, cause)) => {
                assert!(at.start <= end && !cause.is_empty(), "{text}: {at:?} {cause}");
                let (line, column) = position(text, at.start);
                assert!(line <= GOOD.lines().count() && column > 0, "{text}: line {line}, column {column}");
                refused += 1;
                continue;
            }
        };
        parts += 1;
        assert!(config.listen.iter().all(|address| whole.listen.contains(address)), "{text}");
        for (target, known) in config.targets.iter().zip(&whole.targets) {
            assert_eq!(target.iqn, known.iqn, "{text}");
            let lun = |lun: &Lun| (lun.lun, lun.endpoint.text.clone());
            let known: Vec<_> = known.luns.iter().map(lun).collect();
            assert!(target.luns.iter().all(|part| known.contains(&lun(part))), "{text}");
        }
    }
    assert!(refused > 400 && parts > 20, "{refused} refused, {parts} accepted");
}

/// A target whose access list has not been written yet is not offered beyond loopback.
#[test]
fn half_a_file_opens_no_target_to_others() {
    let mut lines: Vec<&str> =
        GOOD.lines().filter(|line| !line.starts_with("identity") && !line.starts_with("peers")).collect();
    lines.truncate(lines.iter().position(|line| line.starts_with("peer =")).unwrap() - 1);
    let text = lines.join("\n").replace("127.0.0.1", "192.0.2.1");
    assert!(check_exposure(&Context::default(), &parse(&text).unwrap()).is_ok());
    let mut exposed = 0;
    for end in 0..text.len() {
        let Ok(config) = parse(&text[..end]) else { continue };
        let is_open = config.targets.iter().any(|target| target.acls.is_empty());
        if is_open && !config.listen.is_empty() {
            check_exposure(&Context::default(), &config).expect_err(&text[..end]);
            exposed += 1;
        }
    }
    assert!(exposed > 10, "{exposed}");
}
