//! Builds the program of a package: profile `dist`, paths remapped, one linkage.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use steps::{cargo, must, repository, target_directory};

use super::Release;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linkage {
    /// Against the C library of this machine: for its release of Debian and later ones.
    Dynamic,
    /// With the C library inside, for any Linux; names resolve by files and DNS only.
    Static,
}

/// Where the sources seem to lie, for messages of panics.
const SOURCES: &str = "/usr/src/hikyaku";
const CRATES: &str = "/usr/src/cargo";

/// Flags of rustc for code that is the same in any folder.
fn rust_flags(linkage: Linkage, remaps: &[(String, &str)]) -> Vec<String> {
    let mut flags: Vec<String> =
        remaps.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}")).collect();
    if linkage == Linkage::Static {
        flags.push("-Ctarget-feature=+crt-static".to_owned());
        // The system call itself: dlsym(3) finds nothing in a static program, and /dev/urandom may be absent.
        flags.push("--cfg=getrandom_backend=\"linux_getrandom\"".to_owned());
    }
    flags
}

/// Builds and returns the path of the program.
///
/// The target is named, so that build scripts and procedural macros, which cannot be static, get none of the flags; both
/// linkages share them.
pub(super) fn build(release: &Release, linkage: Linkage) -> Result<PathBuf> {
    let directory = target_directory()?.join("package-build");
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home =
        home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).context("no CARGO_HOME")?;
    // A later flag wins: the target directory lies in the repository unless CARGO_TARGET_DIR says otherwise.
    let remaps = [
        (home.display().to_string(), CRATES),
        (directory.display().to_string(), "/usr/src/build"),
        (repository().display().to_string(), SOURCES),
    ];
    let c_flags: Vec<String> =
        remaps.iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}")).collect();
    let c_flags = c_flags.join(" ");
    let mut command = cargo(&["build", "--locked", "--profile", "dist", "--package", "hikyaku"]);
    command.args(["--target", &release.triple]);
    command.env("CARGO_TARGET_DIR", &directory).env("CARGO_INCREMENTAL", "0");
    command.env("SOURCE_DATE_EPOCH", release.time.to_string());
    command.env("CARGO_ENCODED_RUSTFLAGS", rust_flags(linkage, &remaps).join("\x1f")).env_remove("RUSTFLAGS");
    command.env("CFLAGS", &c_flags).env("CXXFLAGS", &c_flags);
    must(&mut command)?;
    let built = directory.join(&release.triple).join("dist/hikyaku");
    let kept = directory.join(format!("hikyaku-{linkage:?}").to_lowercase());
    // The next build, of the other linkage, replaces the first path.
    std::fs::copy(&built, &kept).with_context(|| format!("copy {}", built.display()))?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_static_program_has_the_c_library_inside() {
        let remaps = [("/home/a/src".to_owned(), SOURCES)];
        let remap = "--remap-path-prefix=/home/a/src=/usr/src/hikyaku";
        assert_eq!(rust_flags(Linkage::Dynamic, &remaps), [remap]);
        let flags = rust_flags(Linkage::Static, &remaps);
        assert_eq!(flags[..2], [remap, "-Ctarget-feature=+crt-static"]);
    }
}
