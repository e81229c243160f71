//! Mutants: defects that the checkers must find. Each is a patch, `NAME.patch` beside `src`; the product holds nothing of
//! them. [`make_tree`] copies the repository and applies all patches to the copy; a program built there has the one
//! defect that the environment variable [`VARIABLE`] names, or none.
//!
//! What they are for and what a new one needs: `docs/internals/mutants.md`.

mod chooser;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

pub use chooser::{NAMES, VARIABLE};

/// Makes `tree` the repository's files, those not yet committed too, with all patches applied. A file with the same
/// content as in the `tree` of an earlier call keeps its modification time, so that cargo does not build it again.
pub fn make_tree(repository: &Path, tree: &Path) -> Result<()> {
    renew(repository, files(repository)?, tree)
}

/// The names of all files that git does not ignore.
fn files(repository: &Path) -> Result<Vec<PathBuf>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(repository).output().context("start git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout)?;
    // Listed are also deleted files that are still in the index, and directories that are repositories.
    let names = names.split_terminator('\0').filter(|name| repository.join(name).is_file());
    Ok(names.map(PathBuf::from).collect())
}

/// As [`make_tree`], with these files.
fn renew(repository: &Path, mut files: Vec<PathBuf>, tree: &Path) -> Result<()> {
    let fresh = tree.with_extension("new");
    remove(&fresh)?;
    for name in &files {
        let target = fresh.join(name);
        fs::create_dir_all(target.parent().context("a file without a directory")?)?;
        fs::copy(repository.join(name), target).with_context(|| format!("copy {}", name.display()))?;
    }
    files.extend(patch(repository, &fresh)?);
    for name in files {
        let (old, new) = (tree.join(&name), fresh.join(&name));
        if fs::read(&old).is_ok_and(|bytes| fs::read(&new).is_ok_and(|other| bytes == other)) {
            File::options().write(true).open(&new)?.set_modified(fs::metadata(&old)?.modified()?)?;
        }
    }
    remove(tree)?;
    fs::rename(&fresh, tree).with_context(|| format!("rename {}", fresh.display()))
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Applies all patches to `tree`, adds [`chooser`] to the crates that they change, and returns the names of its copies.
fn patch(repository: &Path, tree: &Path) -> Result<Vec<PathBuf>> {
    let patches = patches(repository)?;
    apply(&patches, tree, &[])?;
    let crates: BTreeSet<&str> =
        changed(&patches).filter_map(|name| Some(name.split_once("/src/")?.0)).collect();
    let mut added = Vec::new();
    for sources in crates.into_iter().map(|name| Path::new(name).join("src")) {
        let module = sources.join("mutant.rs");
        fs::copy(repository.join("testing/mutants/src/chooser.rs"), tree.join(&module))?;
        let root = tree.join(sources).join("lib.rs");
        File::options().append(true).open(root)?.write_all(b"\nmod mutant;\n")?;
        added.push(module);
    }
    Ok(added)
}

/// All patches as one: git matches a second patch of a file against the result of the first only within one input.
fn patches(repository: &Path) -> Result<String> {
    NAMES.iter().map(|name| read(repository, name)).collect()
}

/// The names of the files that patches change.
fn changed(patches: &str) -> impl Iterator<Item = &str> {
    patches.lines().filter_map(|line| line.strip_prefix("+++ b/"))
}

fn read(repository: &Path, name: &str) -> Result<String> {
    let path = repository.join(format!("testing/mutants/{name}.patch"));
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

fn apply(patches: &str, tree: &Path, options: &[&str]) -> Result<()> {
    let mut command = Command::new("git");
    command.args(["apply", "--whitespace=nowarn"]).args(options).arg("-").current_dir(tree);
    // In a directory below the top of a repository git would skip patches with a line `diff --git`, and report success.
    command.env("GIT_DIR", tree.join("no-repository"));
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().context("start git")?;
    child.stdin.take().expect("piped above").write_all(patches.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "git apply: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
    }

    #[test]
    fn every_name_has_a_patch_and_every_patch_a_name() {
        let mut found: Vec<_> = fs::read_dir(env!("CARGO_MANIFEST_DIR"))
            .unwrap()
            .filter_map(|entry| {
                entry.unwrap().file_name().to_str()?.strip_suffix(".patch").map(str::to_owned)
            })
            .collect();
        found.sort();
        let mut names = NAMES;
        names.sort_unstable();
        assert_eq!(found, names);
        for name in NAMES {
            let text = read(&repository(), name).unwrap();
            let added = text.lines().filter(|line| line.starts_with('+'));
            let has_condition = |line: &str| {
                line.contains(&format!("is_on(\"{name}\")"))
                    || line.contains(&format!("is_on_every(\"{name}\","))
            };
            assert!(added.clone().any(has_condition), "{name}.patch does not ask for its own name");
        }
    }

    /// A patch that no longer applies is to be made again: docs/internals/mutants.md.
    #[test]
    fn all_patches_apply_together() {
        apply(&patches(&repository()).unwrap(), &repository(), &["--check"]).unwrap();
    }

    #[test]
    fn an_unchanged_file_keeps_its_time() {
        // Below the top of a repository, like the tree of the family.
        let below = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let scratch = tempfile::tempdir_in(below).unwrap();
        let tree = scratch.path().join("tree");
        let patches = patches(&repository()).unwrap();
        let roots = [
            "crates/area/src/lib.rs",
            "crates/block/src/lib.rs",
            "crates/inet/src/lib.rs",
            "crates/mover/src/lib.rs",
            "crates/net/src/lib.rs",
            "crates/node/src/lib.rs",
            "crates/volume/src/lib.rs",
        ];
        let names: BTreeSet<_> = changed(&patches).chain(roots).map(PathBuf::from).collect();
        let modules = roots.map(|root| Path::new(root).with_file_name("mutant.rs"));
        let renewed = || -> Vec<_> {
            renew(&repository(), names.iter().cloned().collect(), &tree).unwrap();
            let paths = names.iter().chain(&modules).map(|name| tree.join(name));
            paths.map(|path| (fs::metadata(&path).unwrap().modified().unwrap(), path)).collect()
        };
        let first = renewed();
        for (_, path) in &first {
            assert!(fs::read_to_string(path).unwrap().contains("mutant"), "{}", path.display());
        }
        assert_eq!(first, renewed());
    }

    /// Otherwise git would choose the place by the line number, which changes with every line above it.
    #[test]
    fn each_hunk_fits_one_place() {
        for name in NAMES {
            let text = read(&repository(), name).unwrap();
            for of_file in text.split("\n--- a/").skip(1) {
                let file = of_file.lines().next().unwrap();
                let source = fs::read_to_string(repository().join(file)).unwrap();
                for hunk in of_file.split("\n@@ ").skip(1) {
                    let before = hunk.lines().skip(1).filter_map(|line| line.strip_prefix([' ', '-']));
                    let before: String = before.map(|line| format!("\n{line}")).collect();
                    assert_eq!(source.matches(&format!("{before}\n")).count(), 1, "{name}: {file}:{before}");
                }
            }
        }
    }
}
