//! `lab`: becomes `hikyaku-lab` from beside the program or from PATH, and says what to type where there is none.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use common::{Place, Ran};

#[test]
fn the_other_program_is_found_beside_this_one_then_in_path() {
    let place = Place::new();
    let program = place.path("hikyaku");
    std::fs::copy(env!("CARGO_BIN_EXE_hikyaku"), &program).unwrap();
    let stand_in = |name: &str, says: &str| {
        let path = place.file(name, format!("#!/bin/sh\necho {says} \"$@\"\nexit 6\n").as_bytes());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let lab = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        Ran::from(command.env("PATH", place.path("bin")).args(arguments).output().unwrap())
    };
    std::fs::create_dir(place.path("bin")).unwrap();
    lab(&["lab", "list"]).expect(1).on_stderr("cargo build --release -p hikyaku-lab");
    stand_in("bin/hikyaku-lab", "path");
    assert_eq!(lab(&["lab", "list"]).expect(6).stdout, "path list\n");
    stand_in("hikyaku-lab", "beside");
    let ran = lab(&["--quiet", "lab", "secure-read", "--json", "--help"]).expect(6);
    assert_eq!(ran.stdout, "beside --quiet secure-read --json --help\n");
}
