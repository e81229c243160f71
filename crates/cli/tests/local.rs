//! The binary on local storage: copies, refusals, exit codes, JSON.

mod common;

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::process::Stdio;

use common::{Place, Ran, kill, text, until_written, wait};

const MIB: usize = 1 << 20;

#[test]
fn copy_verifies_and_tells() {
    let place = Place::new();
    let source = place.sample("a.img", 5 * MIB);
    place.run(&["copy", "a.img", "b.img,create,size=5M", "--verify"]).expect(0);
    assert!(fs::read(&source).unwrap() == fs::read(place.path("b.img")).unwrap());

    let ran = place.run(&["copy", "a.img", "b.img", "--verify", "--json"]).expect(0);
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
    let object = ran.json();
    assert_eq!(object["schema"], 1);
    assert_eq!(object["bytes"], 5 * MIB);
    assert_eq!(object["verified"], true);
    assert_eq!(object["source_consistent"], true);
    for field in ["seconds", "mb_per_s"] {
        assert!(object[field].as_f64().unwrap() > 0.0, "{field}");
    }
    for field in ["user", "system"] {
        assert!(object["cpu_s_per_gb"][field].is_f64(), "{field}");
    }
    assert!(object["read"].is_object() && object["write"].is_object() && object["limited_by"].is_string());
}

#[test]
fn copy_of_a_part() {
    let place = Place::new();
    let source = place.sample("a.img", 2 * MIB);
    place.file("b.img", &vec![0; 2 * MIB]);
    let range = ["--src-offset", "4K", "--dst-offset", "1M", "--size", "64K"];
    place.run(&[&["copy", "a.img", "b.img", "--verify"][..], &range].concat()).expect(0);
    let (source, copy) = (fs::read(source).unwrap(), fs::read(place.path("b.img")).unwrap());
    assert!(copy[MIB..MIB + 65536] == source[4096..4096 + 65536]);
    assert!(copy[..MIB].iter().all(|byte| *byte == 0) && copy[MIB + 65536..].iter().all(|byte| *byte == 0));
    place.run(&[&["compare", "a.img", "b.img"][..], &range].concat()).expect(0);
}

#[test]
fn copy_from_pattern_memory_and_to_null() {
    let place = Place::new();
    place.run(&["copy", "pattern:3M:7", "b.img,create,size=3M", "--verify"]).expect(0);
    place.run(&["compare", "pattern:3M:7", "b.img"]).expect(0);
    place.run(&["copy", "mem:1M", "null:1M"]).expect(0);
    place
        .run(&["copy", "pattern:2M", "null:2M", "--verify"])
        .expect(3)
        .on_stderr("it differs from what was read");
}

#[test]
fn verification_that_fails_is_told_in_json() {
    let place = Place::new();
    let ran = place.run(&["copy", "pattern:2M", "null:2M", "--verify", "--json"]).expect(3);
    assert_eq!(ran.json()["verified"], false);
    assert_eq!(ran.error()["code"], 3);
}

#[test]
fn a_missing_file_is_made_and_anything_else_that_is_missing_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::with_sample(3 * MIB);
    for (destination, more, bytes) in [
        ("b.img", &[][..], 3 * MIB),
        ("c.img,create", &[][..], 3 * MIB),
        ("./d,,.img,size=4M", &[][..], 4 * MIB),
        ("e.img", &["--src-offset", "1M", "--dst-offset", "512"][..], 2 * MIB + 512),
        ("f.img", &["--size", "1M", "--json"][..], MIB),
    ] {
        let ran = place.run(&[&["copy", "a.img", destination], more].concat()).expect(0);
        let name = destination.replace(",,", "\0").split(',').next().unwrap().replace('\0', ",");
        let made = fs::metadata(place.path(&name)).unwrap();
        assert_eq!((made.len(), made.permissions().mode() & 0o777), (bytes as u64, 0o600), "{destination}");
        let larger =
            ran.stderr.contains("will be larger than the source by 1 MiB: 4194304 bytes, 3145728 are");
        assert_eq!(larger, bytes == 4 * MIB, "{destination}: {}", ran.stderr);
    }
    std::os::unix::fs::symlink("nowhere", place.path("link.img")).unwrap();
    for (destination, code, words) in [
        ("no/b.img", 6, "its directory no does not exist"),
        ("no/b.img,create", 1, "its directory no does not exist"),
        ("/dev/hikyaku-test", 6, "no plain file is made under /dev"),
        ("/dev/hikyaku-test,create,size=1M", 6, "no plain file is made under /dev"),
        ("link.img", 6, "symbolic link to what does not exist"),
        ("new.img/", 6, "it does not exist"),
        ("new.img,ro", 6, "it does not exist"),
        ("new.img,create,size=1M", 6, "it would have 1048576 bytes; 3145728 are needed"),
        ("b.img,create", 6, "it exists"),
        ("new.img --since b.img", 2, "holds nothing of the source yet"),
    ] {
        for more in [&[][..], &["--dry-run"]] {
            let typed: Vec<_> = ["copy", "a.img"].into_iter().chain(destination.split(' ')).collect();
            let ran = place.run(&[&typed[..], more].concat()).expect(code);
            assert!((ran.stdout + &ran.stderr).contains(words), "{destination}: {}", ran.stderr);
        }
    }
    assert!(!place.path("new.img").exists() && !place.path("nowhere").exists());
}

#[test]
fn a_file_made_for_nothing_is_removed() {
    let place = Place::with_sample(MIB);
    // The first read fails: nothing was written.
    for (source, code) in [("a.img,fault=read-error", 1), ("a.img,block-size=4096", 6)] {
        place.run(&["copy", source, "b.img"]).expect(code);
        assert!(!place.path("b.img").exists(), "{source}");
    }
    // Holes are data of the source, too.
    File::create(place.path("hole.img")).unwrap().set_len(MIB as u64).unwrap();
    place.run(&["copy", "hole.img", "b.img"]).expect(0);
    assert_eq!(fs::metadata(place.path("b.img")).unwrap().len(), MIB as u64);
}

#[test]
fn holes_are_not_counted_as_moved() {
    let place = Place::with_sample(MIB);
    File::options().write(true).open(place.path("a.img")).unwrap().set_len(64 << 20).unwrap();
    let told = place.run(&["copy", "a.img", "b.img"]).expect(0).stdout;
    assert!(told.starts_with("copied 1 MiB data of 64 MiB in "), "{told}");
    let object = place.run(&["copy", "a.img", "c.img", "--offload", "off", "--json"]).expect(0).json();
    let rates = ["mb_per_s", "data_mb_per_s"].map(|name| object[name].as_f64().unwrap());
    let ratio = rates[0] / rates[1];
    assert!(
        object["data_bytes"] == MIB && object["bytes"] == 64 << 20 && (60.0..68.0).contains(&ratio),
        "{object}"
    );
}

#[test]
fn a_file_system_with_too_little_space_is_refused() {
    let place = Place::new();
    File::create(place.path("huge.img")).unwrap().set_len(1 << 42).unwrap();
    // 4 TiB of holes fit; as zeroes they do not.
    place.run(&["copy", "huge.img", "b.img", "--dry-run"]).expect(0);
    let words = ["copy", "huge.img", "b.img", "--sparse", "off", "--json"];
    let cause = place.run(&words).expect(6).error()["cause"].to_string();
    assert!(cause.contains(" free, and the source has 4 TiB of data"), "{cause}");
    assert!(!place.path("b.img").exists());
    place.run(&[&words[..], &["--allow", "space", "--dry-run"]].concat()).expect(0);
    let told = place.run(&["copy", "pattern:4T", "b.img", "--dry-run"]).expect(0).stderr;
    assert!(told.contains("warning: b.img: its file system is too small"), "{told}");
}

#[test]
fn a_dry_run_counts_the_chunks_that_there_are() {
    let place = Place::new();
    let one = place.run(&["copy", "pattern:192K", "null:192K", "--dry-run"]).expect(0);
    assert!(one.stdout.contains(", 1 chunk of "), "{}", one.stdout);
}

#[test]
fn the_command_of_a_report_can_be_repeated() {
    let place = Place::with_sample(MIB);
    place.run(&["copy", "a.img", "rep.img,create,size=1M", "--report", "r.html"]).expect(0);
    let page = fs::read_to_string(place.path("r.html")).unwrap();
    let command = page.split_once("<pre>hikyaku ").unwrap().1.split_once("</pre>").unwrap().0;
    assert_eq!(command, "copy a.img rep.img --report r.html");
    place.run(&command.split(' ').collect::<Vec<_>>()).expect(0);
}

#[test]
fn a_source_is_never_made() {
    let place = Place::new();
    place.file("b.img", &vec![7; MIB]);
    let missing = place.run(&["copy", "no.img", "b.img"]).expect(1);
    assert_eq!(missing.stderr, "error: cannot copy from no.img: it does not exist\n  try: check the name\n");
    assert_eq!(fs::read(place.path("b.img")).unwrap(), vec![7; MIB]);
    place.run(&["copy", "no.img", "new.img", "--dry-run"]).expect(1).on_stderr("copy from no.img");
    assert!(!place.path("new.img").exists());
    for words in
        [&["copy", "no.img,create,size=1M", "b.img"][..], &["compare", "no.img,create,size=1M", "b.img"]]
    {
        let ran = place.run(words).expect(2);
        assert!(ran.stderr.contains("create makes an empty file"), "{words:?}: {}", ran.stderr);
    }
    assert!(!place.path("no.img").exists());
    assert_eq!(fs::read(place.path("b.img")).unwrap(), vec![7; MIB]);
}

#[test]
fn a_missing_directory_gets_no_hint_to_create() {
    let place = Place::with_sample(MIB);
    let ran = place.run(&["copy", "a.img", "nodir/x.img,create,size=1M"]).expect(1);
    assert!(!ran.stderr.contains("to make a new file"), "{}", ran.stderr);
    place.run(&["serve", "no.img"]).expect(1).on_stderr("to make a new file say no.img,create,size=SIZE");
}

#[test]
fn destination_too_small_is_refused() {
    let place = Place::with_sample(2 * MIB);
    place.file("b.img", &vec![0; MIB]);
    let error = place.run(&["copy", "a.img", "b.img", "--json", "--force"]).expect(6).error();
    assert_eq!(error["code"], 6);
    assert_eq!(error["object"], "b.img");
    // A file that would be too small is not created.
    place.run(&["copy", "a.img", "c.img,create,size=1M"]).expect(6);
    assert!(!place.path("c.img").exists());
    place.run(&["copy", "a.img", "b.img,grow,size=2M"]).expect(0);
}

#[test]
fn destination_that_is_the_source_is_refused() {
    let place = Place::new();
    let source = place.sample("a.img", MIB);
    fs::hard_link(&source, place.path("hard.img")).unwrap();
    std::os::unix::fs::symlink(&source, place.path("soft.img")).unwrap();
    for same in ["a.img", "./a.img", "hard.img", "soft.img"] {
        place
            .run(&["copy", "a.img", same, "--force", "--allow", "in-use"])
            .expect(6)
            .on_stderr("same storage");
    }
}

#[test]
fn destination_with_a_signature_is_refused_unless_forced() {
    let place = Place::with_sample(MIB);
    let mut content = vec![0; MIB];
    content[..4].copy_from_slice(b"XFSB");
    place.file("b.img", &content);
    place.run(&["copy", "a.img", "b.img"]).expect(6).on_stderr("it holds: xfs filesystem");
    assert!(fs::read(place.path("b.img")).unwrap() == content, "nothing was written");
    place.run(&["copy", "a.img", "b.img", "--force"]).expect(0);
    content[..4].copy_from_slice(b"QFI\xfb");
    place.file("b.img", &content);
    place.run(&["copy", "a.img", "b.img"]).expect(6).on_stderr("it holds: qcow2 image");
    place.run(&["copy", "a.img", "b.img", "--force"]).expect(0);
}

#[test]
fn qcow2_source_is_not_interpreted() {
    let place = Place::new();
    let mut content = vec![0; MIB];
    content[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    place.file("a.qcow2", &content);
    place.file("b.img", &vec![0; MIB]);
    place.run(&["copy", "a.qcow2", "b.img"]).expect(6).on_stderr("format=raw");
    place.run(&["copy", "a.qcow2,format=raw", "b.img"]).expect(0);
}

#[test]
fn different_block_sizes_are_refused_unless_allowed() {
    let place = Place::with_sample(MIB);
    place.file("b.img", &vec![0; MIB]);
    place.run(&["copy", "a.img", "b.img,block-size=4096"]).expect(6).on_stderr("--allow sector-size");
    place.run(&["copy", "a.img", "b.img,block-size=4096", "--allow", "sector-size"]).expect(0);
}

#[test]
fn dry_run_tells_everything_and_changes_nothing() {
    let place = Place::with_sample(2 * MIB);
    let mut content = vec![0; MIB];
    content[..4].copy_from_slice(b"XFSB");
    place.file("b.img", &content);
    let object = place.run(&["copy", "a.img", "b.img", "--dry-run", "--json"]).expect(6).json();
    assert_eq!(object["dry_run"], true);
    assert_eq!(object["refused"].as_array().unwrap().len(), 2, "{object}");
    let object =
        place.run(&["copy", "a.img", "c.img,create,size=2M", "--dry-run", "--json"]).expect(0).json();
    assert_eq!((&object["bytes"], object["refused"].as_array().unwrap().len()), (&(2 * MIB).into(), 0));
    assert!(!place.path("c.img").exists());
    let estimate = &object["estimate"];
    assert!(estimate["data_bytes"] == 2 * MIB && estimate["seconds_at_least"].is_number(), "{object}");
    let told = place.run(&["copy", "a.img", "b.img,grow,size=2M", "--dry-run", "--force"]).expect(0).stdout;
    let says = told.contains("at least") && told.contains("not known: how fast the destination writes");
    assert!(says, "{told}");
    assert_eq!(fs::metadata(place.path("b.img")).unwrap().len(), MIB as u64);
}

#[test]
fn compare_tells_the_first_difference() {
    let place = Place::with_sample(3 * MIB);
    let other = place.sample("b.img", 3 * MIB);
    assert!(place.run(&["compare", "a.img", "b.img"]).expect(0).stdout.starts_with("equal: 3 MiB"));
    let mut file = fs::OpenOptions::new().write(true).open(other).unwrap();
    file.seek(SeekFrom::Start(2_000_000)).unwrap();
    file.write_all(b"\x55\xaa\x55\xaa").unwrap();
    assert_eq!(place.run(&["compare", "a.img", "b.img"]).expect(3).stdout, "they differ at offset 2000000\n");
    let object = place.run(&["compare", "a.img", "b.img", "--json"]).expect(3).json();
    let told = (&object["schema"], &object["equal"], &object["offset"]);
    assert_eq!(told, (&1.into(), &false.into(), &2_000_000.into()));
    place.run(&["compare", "a.img", "b.img", "--size", "1M"]).expect(0);
    place.sample("short.img", MIB);
    let object = place.run(&["compare", "a.img", "short.img", "--json"]).expect(3).json();
    assert_eq!(object["offset"], MIB);
}

#[test]
fn usage_errors_exit_2() {
    let place = Place::with_sample(MIB);
    let wrong: &[&[&str]] = &[
        &["copy", "a.img"],
        &["copy", "a.img", "b.img", "--size", "1X"],
        &["copy", "a.img", "b.img", "--depth", "0"],
        &["copy", "a.img", "b.img", "--allow", "anything"],
        &["copy", "a.img,frobnicate", "b.img"],
        &["copy", "-", "b.img", "--resume", "x"],
        &["copy", "-", "b.img", "--since", "hash"],
        &["copy", "-", "b.img", "--offload", "require"],
        &["serve", "-"],
        &["info", "-"],
        &["copy", "ftp://host/x", "b.img"],
        &["copy", "iscsi://host/disks/0", "null:1M"],
        &["info", "iscsi://host/iqn.2026-11.example:a/0,frobnicate=1"],
        &["info", "iscsi://host/iqn.2026-11.example:a/0,chap-user=u"],
        &["serve"],
        &["serve", "mem:1M,cache=none"],
        &["serve", "mem:1M,lun=0", "mem:1M,lun=0"],
        &["serve", "mem:1M", "--iqn", "disks"],
        &["serve", "mem:1M", "--seal", "require"],
        &["frobnicate"],
        &[],
    ];
    for arguments in wrong {
        place.run(arguments).expect(2);
    }
    let ran = place.run(&["copy", "a.img,frobnicate", "b.img", "--json"]).expect(2);
    assert!(ran.error()["cause"].as_str().unwrap().contains("unknown option 'frobnicate'; known here: ro,"));
    let ran = place.run(&["copy", "a.img", "--json"]).expect(2);
    assert_eq!(ran.error()["code"], 2);
    assert!(place.run(&["--version"]).expect(0).stdout.starts_with("hikyaku "));
}

#[test]
fn missing_source_fails() {
    let place = Place::new();
    place.file("b.img", &[0; 4096]);
    let error = place.run(&["copy", "none.img", "b.img", "--json"]).expect(1).error();
    for field in ["attempted", "object", "cause", "hint"] {
        assert!(error[field].is_string(), "{field}");
    }
    assert_eq!(error["code"], 1);
}

#[test]
fn interrupted_copy_says_what_is_safe() {
    let place = Place::new();
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let destination = format!("{code}.img,create,size=64M");
        let mut command = place.command();
        command.args(["copy", "pattern:64M", &destination, "--rate", "4M", "--chunk", "64K"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until_written(&place.path(&format!("{code}.img")), 1, &mut child);
        kill(signal, child.id());
        assert_eq!(wait(&mut child), code);
        let stderr = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert!(stderr.contains("bytes are copied and durable"), "{stderr}");
        assert!(stderr.contains("--src-offset"), "{stderr}");
    }
}

#[test]
fn progress_is_json_lines() {
    let place = Place::new();
    let ran = place.run(&["copy", "pattern:8M", "null:8M", "--rate", "4M", "--json"]).expect(0);
    let line = ran.stderr.lines().next().unwrap();
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    let progress = &value["progress"];
    for field in ["bytes", "total", "mb_per_s", "retries"] {
        assert!(progress[field].is_number(), "{field}: {line}");
    }
    assert_eq!(progress["limited_by"], "rate");
    assert_eq!(place.run(&["-q", "copy", "pattern:1M", "null:1M"]).expect(0).stderr, "");
}

#[test]
fn info_tells_size_and_blocks() {
    let place = Place::with_sample(3 * MIB);
    place.run(&["info", "a.img"]).expect(0).on_stdout("3 MiB (3145728 bytes)");
    let object = place.run(&["info", "a.img", "--json"]).expect(0).json();
    assert_eq!((&object["schema"], &object["size_bytes"]), (&1.into(), &(3 * MIB).into()));
}

#[test]
fn check_names_the_line() {
    let place = Place::with_sample(MIB);
    let good = "[[target]]\niqn = \"iqn.2026-11.example:a\"\n[[target.lun]]\nlun = 0\nendpoint = \"a.img\"\n";
    let file = place.file("good.toml", good.as_bytes());
    let expected = format!(
        "{}: good: 1 target, 1 LUN\n  line 2: iqn.2026-11.example:a, 0 access rules\n  line 5:   LUN 0  a.img\n",
        file.display()
    );
    assert_eq!(place.run(&["check", text(&file)]).expect(0).stdout, expected);
    assert_eq!(place.run(&["check", "good.toml", "--json"]).expect(0).json()["ok"], true);
    place.file("bad.toml", good.replace("lun = 0", "lon = 0").as_bytes());
    place
        .run(&["check", "bad.toml"])
        .expect(2)
        .on_stderr("line 4, column 1: target iqn.2026-11.example:a: unknown key lon; did you mean lun?");
    assert_eq!(place.run(&["check", "bad.toml", "--json"]).expect(2).error()["code"], 2);
    place.file("open.toml", format!("[server]\nlisten = [\"0.0.0.0\"]\n{good}").as_bytes());
    place.run(&["check", "open.toml"]).expect(6);
    place.file("missing.toml", good.replace("a.img", "none.img").as_bytes());
    place.run(&["check", "missing.toml"]).expect(2);
}

#[test]
fn manual_and_completions_are_generated() {
    let place = Place::new();
    place.run(&["man", "man1"]).expect(0);
    let page = fs::read_to_string(place.path("man1/hikyaku-copy.1")).unwrap();
    assert!(page.contains("dry\\-run"), "{page}");
    assert!(place.path("man1/hikyaku.1").exists());
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.run(&["completions", shell]).expect(0).stdout.contains("compare"), "{shell}");
    }
}

#[test]
fn bench_tells_a_row_for_each_shape() {
    let place = Place::new();
    let object =
        place.run(&["bench", "copy", "pattern:4M", "null:4M", "--size", "4M", "--json"]).expect(0).json();
    assert_eq!(object["schema"], 1);
    assert_eq!(object["rows"].as_array().unwrap().len(), 9);
    assert!(object["rows"][0]["mb_per_s"].as_f64().unwrap() > 0.0);
    place.sample("a.img", MIB);
    place.run(&["bench", "copy", "pattern:1M", "a.img", "--size", "1M"]).expect(6);
}

#[test]
fn bench_path_tells_a_row_for_each_shape() {
    let place = Place::new();
    let arguments =
        ["bench", "path", "pattern:4M:3", "--verify", "--pattern", "3", "--operations", "50", "--json"];
    let object = place.run(&arguments).expect(0).json();
    assert_eq!((&object["schema"], &object["write"]), (&1.into(), &false.into()));
    let rows = object["rows"].as_array().unwrap();
    // 1 MiB at depth 32 exceeds the 4 MiB; reads have no such limit, and their row is measured.
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert_eq!((&row["operations"], &row["verified"]), (&50.into(), &true.into()), "{row}");
        assert!(row["operations_per_s"].as_f64().unwrap() > 0.0 && row["target"].is_null(), "{row}");
    }
    place.run(&["bench", "path", "pattern:4M:3", "--verify", "--operations", "5", "--depth", "1"]).expect(3);
}

#[test]
fn bench_path_writes_only_where_it_may() {
    let place = Place::new();
    let image = place.sample("a.img", 4 * MIB);
    let before = fs::read(&image).unwrap();
    let shape = ["--block-size", "64K", "--depth", "4", "--operations", "300"];
    let run = |more: &[&str]| place.run(&[&["bench", "path", "a.img", "--json"], &shape[..], more].concat());
    let error = run(&["--write"]).expect(6).error();
    assert!(error["hint"].as_str().unwrap().contains("--destroy"), "{error}");
    run(&["--destroy"]).expect(2);
    run(&[]).expect(0);
    assert!(fs::read(&image).unwrap() == before, "it was written to");
    let row = run(&["--write", "--destroy", "--verify", "--random"]).expect(0).json()["rows"][0].clone();
    assert_eq!((&row["operations"], &row["verified"]), (&300.into(), &true.into()));
    assert!(row["bytes_compared"].as_u64().unwrap() > 0 && row["flush_s"].as_f64().is_some(), "{row}");
    assert!(fs::read(&image).unwrap() != before, "it was not written to");
    place.run(&["bench", "path", "a.img,ro", "--write", "--destroy", "--depth", "1"]).expect(2);
    place.run(&["bench", "path", "null:4M", "--write", "--operations", "9", "--depth", "1"]).expect(0);
}

#[test]
fn a_report_is_written_however_it_ends() {
    let place = Place::with_sample(8 << 20);
    let page = |name: &str| fs::read_to_string(place.path(name)).unwrap();
    place.run(&["copy", "a.img", "b.img,create,size=8M", "--verify", "--report", "r.html"]).expect(0);
    let done = page("r.html");
    let says = done.contains("<h1>Copied a.img to b.img,create,size=8M</h1>") && done.contains("Limited by");
    assert!(says, "{done}");
    let words = ["<svg", "copy", "verify", "Reads", "s/GB", "8388608 (8 MiB)"];
    assert!(words.iter().all(|word| done.contains(word)), "{done}");
    // The file exists now: `create` would refuse it.
    assert!(done.contains("hikyaku copy a.img b.img --verify --report r.html"), "{done}");
    // An earlier report is replaced, even if the copy did not begin; any other file is not.
    place.run(&["copy", "a.img", "no/none.img", "--report", "r.html"]).expect(6);
    assert!(page("r.html").contains("<h1>Refused: the copy of a.img to no/none.img</h1>"));
    let broken = "c.img,create,size=8M,fault=write-error:after=3";
    place.run(&["copy", "a.img", broken, "--chunk", "1M", "--depth", "1", "--report", "r.html"]).expect(1);
    let failed = page("r.html");
    assert!(
        failed.contains("<h1>Failed: the copy of") && failed.contains("Cannot write 1048576 bytes at offset"),
        "{failed}"
    );
    place.run(&["copy", "a.img", "d.img,create,size=8M", "--report", "b.img"]).expect(6);
    place.run(&["copy", "a.img", "e.html,create,size=8M", "--report", "e.html"]).expect(6);
    place.run(&["compare", "a.img", "b.img"]).expect(0);
    place.run(&["compare", "a.img", "e.html"]).expect(0);
    let link = place.path("link.html");
    std::os::unix::fs::symlink("nothing", &link).unwrap();
    place.run(&["copy", "a.img", "f.img", "--report", "link.html"]).expect(6);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "a link is not replaced");
}

fn piped(place: &Place, arguments: &[&str], input: Vec<u8>) -> Ran {
    let mut command = place.command();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The program may close its input early.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output.into()
}

#[test]
fn copy_from_standard_input() {
    let place = Place::new();
    let bytes = fs::read(place.sample("a.img", 5 * MIB + 777)).unwrap();
    let run = |arguments: &[&str], input: &[u8]| piped(&place, arguments, input.to_vec());
    let words = ["copy", "-", "b.img,create,size=8M", "--verify", "--json", "--report", "r.html"];
    let ran = run(&words, &bytes);
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
    let object = ran.json();
    assert!(object["bytes"] == bytes.len() && object["verified"] == true, "{object}");
    let there = fs::read(place.path("b.img")).unwrap();
    let (copied, behind) = there.split_at(bytes.len());
    assert!(there.len() == 8 * MIB && copied == bytes && behind.iter().all(|byte| *byte == 0));
    assert!(fs::read_to_string(place.path("r.html")).unwrap().contains("<h1>Copied - to b.img"));
    // Too much input, too little, and a part of it.
    run(&["copy", "-", "c.img,create,size=5M"], &bytes).expect(1).on_stderr("longer than the 5242880 bytes");
    let short = run(&["copy", "-", "d.img,create,size=8M", "--size", "6M"], &bytes).expect(1);
    short.on_stderr("ended after 5243657 of 6291456 bytes");
    let part = ["--size", "1M", "--src-offset", "1000", "--dst-offset", "4K"];
    run(&[&["copy", "-", "e.img,create,size=8M"], &part[..]].concat(), &bytes).expect(0);
    assert!(fs::read(place.path("e.img")).unwrap()[4096..4096 + MIB] == bytes[1000..1000 + MIB]);
    // Refusals apply to streams too.
    let mut disk = vec![0; MIB];
    disk[..8].copy_from_slice(b"XFSBXFSB");
    place.file("xfs.img", &disk);
    run(&["copy", "-", "xfs.img"], &bytes[..1000]).expect(6);
    run(&["copy", "-", "none.img"], &bytes[..1000]).expect(6);
    run(&["copy", "-", "b.img", "--resume", "x"], &bytes[..1000]).expect(2);
    run(&["copy", "-", "-"], &bytes[..1000]).expect(2);
    run(&["compare", "-", "b.img"], &bytes[..1000]).expect(2);
    let mut onto_itself = place.command();
    onto_itself.args(["copy", "-", "b.img", "--force"]).stdin(File::open(place.path("b.img")).unwrap());
    assert_eq!(onto_itself.output().unwrap().status.code(), Some(6));
}

#[test]
fn copy_to_standard_output() {
    let place = Place::new();
    let bytes = fs::read(place.sample("a.img", 5 * MIB + 777)).unwrap();
    let output = place.command().args(["copy", "a.img", "-", "--json"]).output().unwrap();
    assert!(output.status.success() && output.stdout == bytes, "{}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8(output.stderr).unwrap();
    let object: serde_json::Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!(object["bytes"], bytes.len());
    let part = ["copy", "a.img", "-", "--src-offset", "1001", "--size", "70K"];
    let output = place.command().args(part).output().unwrap();
    assert!(output.stdout == bytes[1001..1001 + 70 * 1024]);
    assert_eq!(place.run(&["copy", "a.img", "-", "--verify"]).code, 2);
    // A reader that closes the pipe early.
    let mut command = place.command();
    command.args(["copy", "a.img", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Broken pipe"), "{output:?}");
}

#[test]
fn since_hash_moves_what_differs() {
    let place = Place::new();
    let source = place.sample("a.img", 5 * MIB + 17);
    fs::copy(&source, place.path("b.img")).unwrap();
    let ran = place.run(&["copy", "a.img", "b.img", "--since", "hash", "--json"]).expect(0).json();
    assert_eq!((&ran["write"]["bytes"], &ran["unchanged_bytes"]), (&0.into(), &(5 * MIB + 17).into()));
    assert!(ran["blake3"].is_null(), "nothing was hashed");
    let mut bytes = fs::read(&source).unwrap();
    bytes[3 * MIB] ^= 1;
    fs::write(&source, &bytes).unwrap();
    let ran =
        place.run(&["copy", "a.img", "b.img", "--since", "hash", "--json", "--verify"]).expect(0).json();
    assert!(fs::read(place.path("b.img")).unwrap() == bytes);
    assert_eq!((&ran["write"]["bytes"], &ran["compared_bytes"]), (&4096.into(), &(5 * MIB + 17).into()));
    assert_eq!(ran["blake3"].as_str().unwrap().len(), 64);
    let ran = place.run(&["copy", "a.img", "b.img", "--since=hash", "--verify"]).expect(0);
    for words in ["0 B moved", "unchanged as both ends were compared", ", BLAKE3 "] {
        assert!(ran.stdout.contains(words), "{}", ran.stdout);
    }
    place
        .run(&["copy", "a.img", "b.img", "--since=hash", "--dry-run"])
        .expect(0)
        .on_stdout("when both ends have been read");
}

#[test]
fn since_what_the_source_does_not_have_is_usage() {
    let place = Place::with_sample(MIB);
    place.sample("b.img", MIB);
    for (source, since) in [
        ("a.img", "bitmap:b0"),
        ("a.img", "none.img"),
        ("a.img", "."),
        ("pattern:1M", "a.img"),
        ("a.img", "bitmap:"),
    ] {
        let ran = place.run(&["copy", source, "b.img", "--since", since]).expect(2);
        assert!(!ran.stderr.is_empty(), "{source} {since}");
    }
    place.run(&["copy", "a.img", "c.img,create,size=1M", "--since", "b.img"]).expect(2);
    assert!(!place.path("c.img").exists(), "it was not made");
}
