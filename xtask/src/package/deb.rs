//! The Debian package: a tree of files with fixed owners, modes and times, and `dpkg-deb`.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use steps::{must, repository};

use super::dependencies::{self, Dependency};
use super::{Release, answer};

const DOCUMENTS: &str = "usr/share/doc/hikyaku";

/// Files of the repository and their places in the package; compressed where the name ends in `.gz`.
const FILES: &[(&str, &str)] = &[
    ("packaging/systemd/hikyaku.service", "usr/lib/systemd/system/hikyaku.service"),
    ("packaging/systemd/hikyaku.socket", "usr/lib/systemd/system/hikyaku.socket"),
    ("packaging/systemd/devices.conf", "usr/share/doc/hikyaku/examples/devices.conf"),
    ("contrib/hikyaku.toml", "usr/share/doc/hikyaku/examples/hikyaku.toml"),
    ("contrib/peers.toml", "usr/share/doc/hikyaku/examples/peers.toml"),
    ("contrib/prometheus.yml", "usr/share/doc/hikyaku/examples/prometheus.yml"),
    ("contrib/alerts.yml", "usr/share/doc/hikyaku/examples/alerts.yml"),
    ("contrib/grafana-dashboard.json", "usr/share/doc/hikyaku/examples/grafana-dashboard.json"),
    ("README.md", "usr/share/doc/hikyaku/README.md.gz"),
    ("CHANGELOG.md", "usr/share/doc/hikyaku/changelog.gz"),
    ("docs/INSTALL.md", "usr/share/doc/hikyaku/README.Debian.gz"),
    ("docs/LIMITS.md", "usr/share/doc/hikyaku/LIMITS.md.gz"),
    ("docs/SEAL.md", "usr/share/doc/hikyaku/SEAL.md.gz"),
    ("packaging/debian/lintian-overrides", "usr/share/lintian/overrides/hikyaku"),
];

/// Shells, and the places of their completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/hikyaku"),
    ("zsh", "usr/share/zsh/vendor-completions/_hikyaku"),
    ("fish", "usr/share/fish/vendor_completions.d/hikyaku.fish"),
];

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Xz,
    /// For emulated machines, which unpack slowly.
    None,
}

/// Makes the package in `output` and returns its path.
pub(super) fn make(
    release: &Release,
    program: &Path,
    crates: &[Dependency],
    output: &Path,
    compression: Compression,
) -> Result<PathBuf> {
    let scratch = output.join("work");
    let _ = fs::remove_dir_all(&scratch);
    let tree = Tree { root: scratch.join("tree") };
    let installed = tree.place("usr/bin/hikyaku")?;
    must(Command::new("strip").arg("-o").arg(&installed).arg(program))?;
    for (from, to) in FILES {
        tree.write(to, &fs::read(repository().join(from)).with_context(|| format!("read {from}"))?)?;
    }
    for (shell, to) in COMPLETIONS {
        let text = answer(Command::new(program).args(["completions", shell]))?;
        tree.write(to, (text + "\n").as_bytes())?;
    }
    manual(&tree, program, &scratch.join("man"))?;
    tree.write(&format!("{DOCUMENTS}/dependencies.tsv"), dependencies::table(crates).as_bytes())?;
    tree.write(&format!("{DOCUMENTS}/licences.txt.gz"), dependencies::licence_texts(crates)?.as_bytes())?;
    tree.write(&format!("{DOCUMENTS}/copyright"), copyright()?.as_bytes())?;
    tree.write(&format!("{DOCUMENTS}/changelog.Debian.gz"), changelog(release)?.as_bytes())?;
    // Modes before the digests and the size, which are those of the installed files.
    tree.fix(&tree.root, release)?;
    let files = tree.files(&tree.root)?;
    let size: u64 =
        files.iter().map(|file| fs::metadata(file).map_or(0, |found| found.len().div_ceil(1024))).sum();
    let depends = libraries(&installed, &scratch)?;
    let control = read("packaging/debian/control")?
        .replace("@VERSION@", &release.debian_version())
        .replace("@ARCHITECTURE@", &release.architecture)
        .replace("@SIZE@", &size.to_string())
        .replace("@DEPENDS@", &depends);
    tree.write("DEBIAN/md5sums", tree.md5sums()?.as_bytes())?;
    tree.write("DEBIAN/control", control.as_bytes())?;
    for script in SCRIPTS {
        tree.write(&format!("DEBIAN/{script}"), read(&format!("packaging/debian/{script}"))?.as_bytes())?;
    }
    tree.fix(&tree.root, release)?;
    let name = format!("hikyaku_{}_{}.deb", release.debian_version(), release.architecture);
    let package = output.join(name);
    let mut build = Command::new("dpkg-deb");
    let compression = match compression {
        Compression::Xz => "-Zxz",
        Compression::None => "-Znone",
    };
    build.args(["--root-owner-group", "--threads-max=1", compression, "--build"]);
    build.arg(&tree.root).arg(&package);
    must(build.env("SOURCE_DATE_EPOCH", release.time.to_string()))?;
    fs::remove_dir_all(&scratch)?;
    Ok(package)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(repository().join(path)).with_context(|| format!("read {path}"))
}

/// The pages that the program writes, compressed.
fn manual(tree: &Tree, program: &Path, scratch: &Path) -> Result<()> {
    must(Command::new(program).arg("man").arg(scratch))?;
    for entry in fs::read_dir(scratch)? {
        let page = entry?.path();
        let name = page.file_name().context("a page's name")?.to_string_lossy().into_owned();
        let section = name.rsplit('.').next().context("a page's section")?;
        tree.write(&format!("usr/share/man/man{section}/{name}.gz"), &fs::read(&page)?)?;
    }
    Ok(())
}

fn copyright() -> Result<String> {
    let licence = read("LICENSE-MIT")?;
    let lines = licence.trim_end().lines().map(|line| match line.trim() {
        "" => " .".to_owned(),
        text => format!(" {text}"),
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    Ok(read("packaging/debian/copyright")?.replace("@MIT@", &text))
}

fn changelog(release: &Release) -> Result<String> {
    let date = answer(
        Command::new("date").args(["-u", "-R", "-d", &format!("@{}", release.time)]).env("LC_ALL", "C"),
    )?;
    Ok(format!(
        "hikyaku ({}) unstable; urgency=medium\n\n  * Package of release {}; changelog.gz lists the changes.\n\n -- hikyaku \
         <hikyaku@example.com>  {date}\n",
        release.debian_version(),
        release.version,
    ))
}

/// `Depends` for the shared libraries of the program, from the symbols that it uses.
fn libraries(program: &Path, scratch: &Path) -> Result<String> {
    let debian = scratch.join("debian");
    fs::create_dir_all(&debian)?;
    // dpkg-shlibdeps requires a source package's control file.
    fs::write(debian.join("control"), "Source: hikyaku\n\nPackage: hikyaku\nArchitecture: any\n")?;
    let found = answer(
        Command::new("dpkg-shlibdeps").args(["-O", "--warnings=0", "-e"]).arg(program).current_dir(scratch),
    )?;
    let depends = found.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(depends.context("dpkg-shlibdeps names no library")?.to_owned())
}

/// The files of the package as they will be installed, and `DEBIAN`.
struct Tree {
    root: PathBuf,
}

impl Tree {
    /// A path in the tree, with its directory made.
    fn place(&self, path: &str) -> Result<PathBuf> {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().context("a file has a directory")?)?;
        Ok(path)
    }

    /// Writes a file, compressed if its name ends in `.gz`.
    fn write(&self, path: &str, content: &[u8]) -> Result<()> {
        let place = self.place(path)?;
        if !path.ends_with(".gz") {
            return Ok(fs::write(place, content)?);
        }
        // Without name and time.
        let mut gzip = Command::new("gzip");
        gzip.args(["-9n"]).stdin(Stdio::piped()).stdout(File::create(place)?);
        let mut gzip = gzip.spawn().context("start gzip")?;
        gzip.stdin.take().context("piped above")?.write_all(content)?;
        ensure!(gzip.wait()?.success(), "gzip failed");
        Ok(())
    }

    /// All files below a directory, sorted.
    fn files(&self, directory: &Path) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            match path.is_dir() {
                true => found.extend(self.files(&path)?),
                false => found.push(path),
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn md5sums(&self) -> Result<String> {
        let mut sums = String::new();
        for file in self.files(&self.root)? {
            let name = file.strip_prefix(&self.root)?.display().to_string();
            let line = answer(Command::new("md5sum").arg(&name).current_dir(&self.root))?;
            writeln!(sums, "{line}")?;
        }
        Ok(sums)
    }

    /// Sets modes and times below `path`: 0755 for directories, programs and scripts, 0644 for the rest.
    fn fix(&self, path: &Path, release: &Release) -> Result<()> {
        let is_directory = path.is_dir();
        if is_directory {
            for entry in fs::read_dir(path)? {
                self.fix(&entry?.path(), release)?;
            }
        }
        let is_program = path.ends_with("usr/bin/hikyaku")
            || SCRIPTS.iter().any(|script| path.ends_with(Path::new("DEBIAN").join(script)));
        let mode = if is_directory || is_program { 0o755 } else { 0o644 };
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        File::open(path)?.set_modified(UNIX_EPOCH + Duration::from_secs(release.time))?;
        Ok(())
    }
}
