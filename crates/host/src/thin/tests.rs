use super::*;

const K: u64 = 1 << 10;

/// Output of thin-provisioning-tools 0.9.0 on Linux 6.1: 64 MiB were written, a snapshot made, and six blocks written.
const RECORDED: &str = r#"<superblock uuid="" time="1" transaction="2" data_block_size="128" nr_data_blocks="0">
  <diff left="1" right="2">
    <same begin="0" length="5"/>
    <different begin="5" length="3"/>
    <same begin="8" length="1016"/>
    <left_only begin="1500" length="3"/>
  </diff>
</superblock>
"#;

fn volume(id: u32, kib: u64) -> Volume {
    Volume { size_bytes: kib * K, pool: libc::makedev(254, 2), id, has_external_origin: false }
}

/// The changed ranges in KiB that `answer` yields for volumes of 128 MiB.
fn told(answer: &str) -> Result<Vec<(u64, u64)>, DeltaError> {
    told_of(answer, 128 << 10, 128 << 10)
}

fn told_of(answer: &str, new: u64, old: u64) -> Result<Vec<(u64, u64)>, DeltaError> {
    let ranges = changed(answer.as_bytes(), [&volume(1, new), &volume(2, old)], 64 * K)?;
    Ok(ranges.iter().map(|range| (range.start / K, range.end / K)).collect())
}

/// An answer with `inner` between its first and last elements.
fn answer(inner: &str) -> String {
    let head = RECORDED.split("    <same").next().unwrap();
    format!("{head}{inner}</diff></superblock>")
}

#[test]
fn tables_as_dmsetup_prints_them() {
    let expected = Volume { size_bytes: 128 << 20, ..volume(1, 0) };
    assert_eq!(Volume::parse("0 262144 thin 254:2 1\n"), Ok(expected));
    let expected = Volume { has_external_origin: true, ..expected };
    assert_eq!(Volume::parse("0 262144 thin 254:2 1 254:7\n"), Ok(expected));
    let pool = Pool { metadata: libc::makedev(254, 0), block_bytes: 64 << 10 };
    assert_eq!(Pool::parse("0 819200 thin-pool 254:0 254:1 128 0 0 \n"), Ok(pool));
    assert_eq!(Pool::parse("0 819200 thin-pool 254:0 254:1 128 0 1 skip_block_zeroing"), Ok(pool));
    let error = Volume::parse("0 32768 linear 8:0 839680\n").unwrap_err();
    assert!(error.to_string().contains("no thin volume") && error.to_string().contains("0 32768 linear"));
    assert!(matches!(Pool::parse("0 262144 thin 254:2 1"), Err(TableError::Other("thin pool", _))));
}

#[test]
fn tables_that_make_no_sense() {
    for table in [
        "",
        "0 262144",
        "0 x thin 254:2 1",
        "0 262144 thin",
        "0 262144 thin 254:2",
        "0 262144 thin 254 1",
        "0 262144 thin 254:2 -1",
        "0 262144 thin 254:2 4294967296",
        "0 262144 thin 254:2 1 254:7 8",
        "8 262144 thin 254:2 1",
        "0 18446744073709551615 thin 254:2 1",
        "0 262144 thin 254:2 1\n262144 8 thin 254:2 2\n",
    ] {
        assert!(matches!(Volume::parse(table), Err(TableError::Malformed(_))), "{table}");
    }
    for table in ["0 8 thin-pool 254:0 254:1", "0 8 thin-pool 254:0 254:1 0 0", "0 8 thin-pool x 254:1 128 0"]
    {
        assert!(matches!(Pool::parse(table), Err(TableError::Malformed(_))), "{table}");
    }
}

#[test]
fn versions_that_call_other_blocks_the_same() {
    for sound in ["0.9.0", "0.9.0\n", "0.7.5-3", "thin_delta 1.0.6", "1.0.12", "1.1.0", "1.1", "2.0.0"] {
        assert!(is_delta_sound(sound), "{sound}");
    }
    for unsound in ["", "?", "1", "0.6.3", "1.0.0", "1.0", "thin_delta 1.0.5", "1.0.5-2", "v1.1.0"] {
        assert!(!is_delta_sound(unsound), "{unsound}");
    }
}

#[test]
fn what_is_not_the_same_has_changed() {
    assert_eq!(told(RECORDED).unwrap(), [(5 * 64, 8 * 64), (1500 * 64, 1503 * 64)]);
    let all = r#"<right_only begin="0" length="2"/><different begin="2" length="1"/>
        <left_only begin="3" length="1"/> <same begin="4" length="1"/><right_only begin="7" length="1"/>"#;
    assert_eq!(told(&answer(all)).unwrap(), [(0, 256), (448, 512)]);
    assert_eq!(told(&answer("")).unwrap(), [], "neither has a block");
    // The format of 1.x, with additional attributes.
    let newer = RECORDED.replace(r#"time="1""#, r#"time="1" flags="1" version="2""#);
    assert_eq!(told(&newer).unwrap(), told(RECORDED).unwrap());
}

#[test]
fn what_lies_behind_an_end() {
    let blocks = answer(r#"<different begin="1" length="9"/><left_only begin="90" length="10"/>"#);
    assert_eq!(told_of(&blocks, 500, 500).unwrap(), [(64, 500)], "blocks of a volume that was made smaller");
    assert_eq!(told_of(&blocks, 500, 600).unwrap(), [(64, 500)]);
    assert_eq!(told_of(&blocks, 700, 600).unwrap(), [(64, 700)]);
    assert_eq!(told_of(&blocks, 800, 700).unwrap(), [(64, 640), (700, 800)], "never there before");
    let same = answer(r#"<same begin="0" length="100"/>"#);
    assert_eq!(told_of(&same, 800, 700).unwrap(), [(700, 800)], "the last block holds more than it did");
}

#[test]
fn every_answer_that_is_cut_short_is_refused() {
    for length in 0..RECORDED.trim_end().len() {
        assert!(told(&RECORDED[..length]).is_err(), "{}", &RECORDED[..length]);
    }
    assert!(matches!(told(&RECORDED[..200]), Err(DeltaError::Truncated)));
}

#[test]
fn answers_about_something_else() {
    for (was, is) in [
        (r#"data_block_size="128""#, r#"data_block_size="256""#),
        (r#"left="1""#, r#"left="2""#),
        (r#"right="2""#, r#"right="1""#),
    ] {
        assert!(matches!(told(&RECORDED.replace(was, is)), Err(DeltaError::Other(_))), "{is}");
    }
}

#[test]
fn hostile_answers() {
    for (what, inner) in [
        ("overlap", r#"<same begin="0" length="5"/><different begin="4" length="1"/>"#),
        ("order", r#"<different begin="9" length="1"/><same begin="0" length="1"/>"#),
        ("nothing", r#"<different begin="9" length="0"/>"#),
        ("sum", r#"<different begin="18446744073709551615" length="1"/>"#),
        ("bytes", r#"<different begin="281474976710656" length="1"/>"#),
        ("number", r#"<different begin="+1" length="1"/>"#),
        ("negative", r#"<different begin="-1" length="1"/>"#),
        ("hexadecimal", r#"<different begin="0x1" length="1"/>"#),
        ("no quotes", r#"<different begin=1 length=1/>"#),
        ("twice", r#"<different begin="1" begin="2" length="1"/>"#),
        ("no length", r#"<different begin="1"/>"#),
        ("unknown", r#"<maybe begin="1" length="1"/>"#),
        ("open", r#"<same begin="1" length="1">"#),
        ("verbose", r#"<same><range begin="0" data_begin="0" length="5"/></same>"#),
        ("words", "warning: <same begin=\"0\" length=\"5\"/>"),
        ("another", "</diff><diff left=\"1\" right=\"2\">"),
        ("no bracket", r#"<same begin="0" length="5"/ <same begin="5" length="1"/>"#),
        ("brackets", "<<same>>"),
    ] {
        assert!(matches!(told(&answer(inner)), Err(DeltaError::Unexpected(_))), "{what}");
    }
    let long = format!("<same begin=\"0\" length=\"{}5\"/>", "0".repeat(5000));
    assert!(matches!(told(&answer(&long)), Err(DeltaError::Unexpected(_))), "long");
    assert!(
        matches!(told(&format!("{RECORDED}{RECORDED}")), Err(DeltaError::Unexpected(_))),
        "behind the end"
    );
    assert!(changed(&[0xff; 4000][..], [&volume(1, 1), &volume(2, 1)], 512).is_err());
    let shown = told("<\u{1b}[2J>").unwrap_err().to_string();
    assert!(!shown.contains('\u{1b}'), "{shown}");
}
