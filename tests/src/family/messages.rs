//! Messages of the program after common mistakes: each says what was attempted, why it failed and what to type. A row is
//! a command line, its exit code and the text on standard error.

mod check;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use steps::is_root;
use tempfile::TempDir;

use crate::target::private_file;
use crate::{Cases, Context, Output, Scene, Server, program, run, scratch};

const LIMIT: Duration = Duration::from_secs(20);
const NOBODY: u32 = 65534;
const KEY: &str = "6IB3dX4mJQMqxHKb7bLYL4ZlvVQcsGGDHmPmUJBjgnM=";

/// Condition, arguments, exit code, standard error. `...` stands for any text; without one the text is compared as a
/// whole, apart from the hint of clap's that follows an error of its own.
type Row = (&'static str, &'static [&'static str], i32, &'static str);

const OPTIONS: &str = "ro, size, create, grow, format, block-size, physical-block, delay, limit, iops, fault, crash, log, readahead, volume, view, password-file, key-file, header, freshness";

const ROWS: &[Row] = &[
    // Names of files and devices.
    (
        "missing-file",
        &["info", "none.raw"],
        1,
        "error: cannot open none.raw: No such file or directory (os error 2)\n  try: check the name",
    ),
    (
        "missing-file-with-a-neighbour",
        &["info", "diks.img"],
        1,
        "error: cannot open diks.img: No such file or directory (os error 2)\n  try: did you mean disk.img?",
    ),
    (
        "missing-capture",
        &["analyze", "none.pcap"],
        1,
        "error: cannot open the capture none.pcap: No such file or directory (os error 2)\n  try: check the name",
    ),
    (
        "no-capture",
        &["analyze", "disk.img"],
        1,
        "error: cannot read the capture disk.img: this is no capture: it begins with ...; pcap, pcapng and gzip of them are read, and \
         recordings of `hikyaku watch`. Make one with `tcpdump -i any -s 700 -w slow.pcap tcp port 3260`, or convert one with `editcap -F \
         pcapng FILE NEW.pcapng`",
    ),
    (
        "standard-input-twice",
        &["analyze", "-", "-"],
        2,
        "error: cannot read the captures -: standard input is named twice",
    ),
    (
        "page-in-the-place-of-something-else",
        &["analyze", "none.pcap", "--html", "disk.img"],
        6,
        "error: cannot write the page disk.img: there is another file\n  try: another name: only an earlier page is overwritten",
    ),
    (
        "page-to-standard-output",
        &["analyze", "disk.img", "--html", "-"],
        2,
        "error: cannot write the results -: standard output has the verdict\n  try: the name of a file",
    ),
    (
        "page-in-the-place-of-the-capture",
        &["analyze", "disk.img", "--slim", "disk.img"],
        2,
        "error: cannot write the results disk.img: it is one of the captures that are read\n  try: another name",
    ),
    (
        "two-results-of-one-name",
        &["analyze", "disk.img", "--html", "new.html", "--slim", "./new.html"],
        2,
        "error: cannot write the results ./new.html: two results have this name\n  try: a name for each",
    ),
    (
        "missing-source",
        &["copy", "diks.img", "new.img"],
        1,
        "error: cannot copy from diks.img: it does not exist\n  try: did you mean disk.img?",
    ),
    (
        "source-without-a-scheme",
        &["copy", "host:disks:0", "new.img"],
        2,
        "error: cannot copy from host:disks:0: it is an address without a scheme, and no file\n  try: iscsi://host/IQN/LUN, with / between \
         them; `hikyaku ls iscsi://host` lists them; ./host:disks:0 for the file of this name",
    ),
    (
        "missing-file-served",
        &["serve", "none.raw"],
        1,
        "error: cannot serve none.raw: No such file or directory (os error 2); to make a new file say none.raw,create,size=SIZE\n...",
    ),
    (
        "missing-first-of-compare",
        &["compare", "none.raw", "disk.img"],
        1,
        "error: cannot open the first endpoint none.raw: No such file or directory (os error 2)\n  try: check the name",
    ),
    (
        "missing-second-of-compare",
        &["compare", "disk.img", "none.raw"],
        1,
        "error: cannot open the second endpoint none.raw: No such file or directory (os error 2)\n  try: check the name",
    ),
    (
        "destination-without-a-scheme",
        &["copy", "disk.img", "127.0.0.1:3260"],
        2,
        "error: cannot copy to 127.0.0.1:3260: it is an address without a scheme, and no file\n  try: \
         iscsi://127.0.0.1:3260/IQN/LUN; `hikyaku ls iscsi://127.0.0.1:3260` lists them; ./127.0.0.1:3260 for a new file of this name",
    ),
    (
        "destination-without-a-scheme-but-options",
        &["copy", "disk.img", "storage:3260/iqn.2026-11.example:a/0,seal=off"],
        2,
        "...",
    ),
    (
        "missing-directory",
        &["info", "nowhere/disk.img"],
        1,
        "error: cannot open nowhere/disk.img: No such file or directory (os error 2)\n  try: make the directory first, or check its \
         name: nowhere",
    ),
    (
        "missing-device",
        &["info", "/dev/sdnone"],
        1,
        "error: cannot open /dev/sdnone: No such file or directory (os error 2)\n  try: `lsblk` lists the disks of this machine",
    ),
    (
        "slash-after-a-file",
        &["info", "disk.img/"],
        1,
        "error: cannot open disk.img/: Not a directory (os error 20)\n  try: disk.img, without the / at its end",
    ),
    (
        "directory",
        &["info", "directory"],
        2,
        "error: cannot open directory: it is a directory; name a file in it (neither a regular file nor a block device)",
    ),
    (
        "character-device",
        &["serve", "/dev/zero"],
        2,
        "error: cannot serve /dev/zero: it is a character device; mem:SIZE, null:SIZE and pattern:SIZE are memory, nothing and \
         made-up data (neither a regular file nor a block device)",
    ),
    (
        "stream-where-blocks-are-needed",
        &["info", "-"],
        2,
        "error: cannot open -: '-' is not a block endpoint here; name a file",
    ),
    (
        "empty-file-served",
        &["serve", "empty.img"],
        2,
        "error: cannot serve empty.img: it has 0 bytes, less than one block of 512\n  try: empty.img,grow,size=64G, which makes it \
         larger",
    ),
    (
        "one-file-served-twice",
        &["serve", "disk.img", "disk.img"],
        6,
        "error: cannot serve disk.img: it is locked by another program (QEMU, or another hikyaku); end that program first\n  try: name \
         it once: it is LUN 0 and LUN 1, and two LUNs of one file would be two disks to initiators",
    ),
    // Options of endpoints.
    (
        "comma-in-the-name-of-a-file",
        &["info", "a,b.img"],
        2,
        "error: cannot understand the endpoint a,b.img: unknown option 'b.img'; known here: OPTIONS\n  try: 'a,,b.img': a comma that \
         belongs to a name is written twice",
    ),
    (
        "comma-in-the-name-of-no-file",
        &["info", "b,a.img"],
        2,
        "error: cannot understand the endpoint b,a.img: unknown option 'a.img'; known here: OPTIONS\n  try: if the comma belongs to the \
         name, write it twice: a,,b.img",
    ),
    (
        "option-misspelt",
        &["serve", "new.img,craete,size=1M"],
        2,
        "error: cannot understand the endpoint new.img,craete,size=1M: unknown option 'craete'; known here: OPTIONS, lun, ...\n  try: \
         did you mean create?",
    ),
    (
        "option-of-other-programs",
        &["info", "disk.img,readonly"],
        2,
        "error: cannot understand the endpoint disk.img,readonly: unknown option 'readonly'; known here: OPTIONS\n  try: did you mean ro?",
    ),
    (
        "option-that-is-the-default",
        &["info", "disk.img,rw"],
        2,
        "error: cannot understand the endpoint disk.img,rw: unknown option 'rw'; known here: OPTIONS\n  try: leave it out: an endpoint \
         can be written unless it has ro",
    ),
    (
        "create-without-a-size",
        &["serve", "new.img,create"],
        2,
        "error: cannot serve new.img,create: create needs a size: new.img,create,size=SIZE",
    ),
    (
        "size-without-grow",
        &["serve", "disk.img,size=1G"],
        2,
        "error: cannot serve disk.img,size=1G: it has 1048576 bytes, not 1073741824; say grow to make it larger",
    ),
    (
        "size-with-a-wrong-unit",
        &["info", "disk.img,size=1X"],
        2,
        "error: cannot open disk.img,size=1X: option size: '1X' is not a size; write for example 4096, 64M (binary) or 64MB (decimal)",
    ),
    // Addresses and URLs.
    (
        "address-as-a-file",
        &["info", "127.0.0.1:3260"],
        1,
        "error: cannot open 127.0.0.1:3260: No such file or directory (os error 2)\n  try: iscsi://127.0.0.1:3260/IQN/LUN; `hikyaku ls \
         iscsi://127.0.0.1:3260` lists them",
    ),
    (
        "target-without-a-scheme",
        &["info", "host:3260/iqn.2026-11.example:disks/0"],
        1,
        "error: cannot open host:3260/iqn.2026-11.example:disks/0: No such file or directory (os error 2)\n  try: \
         iscsi://host:3260/iqn.2026-11.example:disks/0",
    ),
    (
        "scheme-with-one-slash",
        &["info", "iscsi:/host/iqn.2026-11.example:disks/0"],
        1,
        "error: cannot open iscsi:/host/iqn.2026-11.example:disks/0: No such file or directory (os error 2)\n  try: \
         iscsi://host/iqn.2026-11.example:disks/0",
    ),
    (
        "scheme-in-capitals",
        &["info", "ISCSI://host/iqn.2026-11.example:disks/0"],
        2,
        "error: cannot understand the endpoint ISCSI://host/iqn.2026-11.example:disks/0: 'ISCSI' is not a scheme that this release \
         supports; it supports iscsi, nbd and nbd+unix\n  try: iscsi://host/iqn.2026-11.example:disks/0",
    ),
    (
        "scheme-of-the-web",
        &["copy", "https://host/disk.img", "disk.img"],
        2,
        "error: cannot understand the endpoint https://host/disk.img: 'https' is not a scheme that this release supports; it supports \
         iscsi, nbd and nbd+unix\n  try: iscsi://host/iqn.2026-11.example:disks/0, nbd://host/name, or the path of a file or device",
    ),
    (
        "url-without-a-lun",
        &["info", "iscsi://127.0.0.1:1/iqn.2026-11.example:disks"],
        2,
        "error: cannot open iscsi://127.0.0.1:1/iqn.2026-11.example:disks: it names no LUN; list them with: hikyaku ls \
         iscsi://127.0.0.1:1/iqn.2026-11.example:disks",
    ),
    (
        "colons-in-the-place-of-slashes",
        &["info", "host:disks:0"],
        1,
        "...try: iscsi://host/IQN/LUN, with / between them; `hikyaku ls iscsi://host` lists them",
    ),
    (
        "destination-with-colons-in-the-place-of-slashes",
        &["copy", "disk.img", "host:disks:0"],
        2,
        "error: cannot copy to host:disks:0: it is an address without a scheme, and no file\n  try: iscsi://host/IQN/LUN, with / \
         between them; `hikyaku ls iscsi://host` lists them; ./host:disks:0 for a new file of this name",
    ),
    (
        "colon-before-the-lun",
        &["info", "iscsi://127.0.0.1:1/iqn.2026-11.example:disks:0"],
        2,
        "error: cannot open iscsi://127.0.0.1:1/iqn.2026-11.example:disks:0: it names no LUN; list them with: ...\n  try: \
         iscsi://127.0.0.1:1/iqn.2026-11.example:disks/0, if the end of that name was to be the LUN",
    ),
    (
        "url-with-a-slash-at-its-end",
        &["info", "iscsi://127.0.0.1:1/iqn.2026-11.example:disks/0/"],
        2,
        "error: cannot open iscsi://127.0.0.1:1/iqn.2026-11.example:disks/0/: ...: nothing follows the LUN, no / either; the form is \
         iscsi://[user@]host[:port]/iqn.2026-11.example:name/0",
    ),
    (
        "url-without-an-iqn",
        &["info", "iscsi://127.0.0.1:1/disks/0"],
        2,
        "error: cannot open iscsi://127.0.0.1:1/disks/0: ...: iSCSI name begins with neither iqn. nor eui. nor naa.; the form is \
         iscsi://[user@]host[:port]/iqn.2026-11.example:name/0",
    ),
    (
        "ls-of-an-address",
        &["ls", "127.0.0.1:3261"],
        2,
        "error: cannot list 127.0.0.1:3261: it is not a URL\n  try: hikyaku ls iscsi://127.0.0.1:3261",
    ),
    (
        "ls-of-a-host",
        &["ls", "localhost"],
        2,
        "error: cannot list localhost: it is not a URL\n  try: hikyaku ls iscsi://localhost",
    ),
    (
        "ls-of-a-file",
        &["ls", "./disk.img"],
        2,
        "error: cannot list ./disk.img: it is not a URL\n  try: hikyaku info ./disk.img, or hikyaku ls iscsi://host",
    ),
    (
        "nobody-listens",
        &["info", "iscsi://127.0.0.1:1/iqn.2026-11.example:disks/0"],
        5,
        "error: cannot use iscsi://127.0.0.1:1/iqn.2026-11.example:disks/0: connecting to 127.0.0.1:1: Connection refused (os error \
         111)\n  try: check the address, the port and the firewall; `hikyaku ls` lists what is there",
    ),
    (
        "name-that-does-not-resolve",
        &["info", "iscsi://host.invalid/iqn.2026-11.example:disks/0"],
        5,
        "error: cannot use iscsi://host.invalid/iqn.2026-11.example:disks/0: looking up host.invalid: ...\n  try: check the spelling of \
         the host's name and this host's name server (`getent hosts NAME`), or write its address",
    ),
    (
        "key-trust-of-a-name-that-does-not-resolve",
        &["key", "trust", "iscsi://host.invalid"],
        5,
        "error: cannot fetch the key of host.invalid:3260: looking up host.invalid: ...\n  try: check the spelling of the host's name \
         and this host's name server (`getent hosts NAME`), or write its address",
    ),
    (
        "key-trust-where-nobody-listens",
        &["key", "trust", "iscsi://127.0.0.1:1"],
        5,
        "error: cannot fetch the key of 127.0.0.1:1: asking 127.0.0.1:1 for its key: Connection refused (os error 111)\n  try: see that \
         the target runs (`hikyaku serve ... --peers FILE`) and listens at this address and port, and that no firewall is between",
    ),
    // Where a server listens.
    (
        "listen-on-an-address-that-ends-like-a-port",
        &["serve", "disk.img", "--listen", "::1:3273"],
        2,
        "error: invalid value '::1:3273' for '--listen <ADDR:PORT>': the end of '::1:3273' can be a port or a part of the address; \
         write [::1]:3273, or [::1:3273]:3260",
    ),
    (
        "listen-without-an-address",
        &["serve", "disk.img", "--listen", ":3261"],
        2,
        "error: invalid value ':3261' for '--listen <ADDR:PORT>': ':3261' has no address; write 127.0.0.1:3261 for this machine alone, \
         0.0.0.0:3261 or [::]:3261 for all its addresses",
    ),
    (
        "listen-on-no-port",
        &["serve", "disk.img", "--listen", "70000"],
        2,
        "error: invalid value '70000' for '--listen <ADDR:PORT>': '70000' is not a port, a number up to 65535",
    ),
    (
        "listen-on-a-url",
        &["serve", "disk.img", "--listen", "iscsi://127.0.0.1:3261"],
        2,
        "error: invalid value 'iscsi://127.0.0.1:3261' for '--listen <ADDR:PORT>': 'iscsi://127.0.0.1:3261' is a URL; write the \
         address alone: 127.0.0.1:3261",
    ),
    (
        "listen-on-an-address-of-another-host",
        &["serve", "disk.img", "--listen", "192.0.2.1:0", "--seal", "off"],
        1,
        "...error: cannot listen on 192.0.2.1:0: Cannot assign requested address (os error 99)\n  try: --listen with an address of \
         this host",
    ),
    (
        "iqn-that-is-none",
        &["serve", "disk.img", "--iqn", "Disks"],
        2,
        "error: invalid value 'Disks' for '--iqn <IQN>': 'Disks': iSCSI name begins with neither iqn. nor eui. nor naa.; write for \
         example iqn.2026-11.com.example:disks",
    ),
    // Keys.
    (
        "key-of-a-file-without-one",
        &["key", "public", "/etc/passwd"],
        1,
        "error: cannot read the identity /etc/passwd: it does not hold a key, 44 characters of base64\n  try: a file made by `hikyaku \
         key new`, `wg genkey` or `wg genpsk`",
    ),
    (
        "key-that-others-read",
        &["key", "public", "open.key"],
        4,
        "error: cannot trust the identity open.key: others may read it (mode 644)\n  try: chmod 600 open.key; if others may have read \
         it, make a new one",
    ),
    (
        "key-missing",
        &["key", "public", "no.key"],
        1,
        "error: cannot read the identity no.key: No such file or directory (os error 2)\n  try: hikyaku key new no.key",
    ),
    (
        "trust-of-a-host",
        &["key", "trust", "host:3261"],
        2,
        "error: cannot trust host:3261: it is not a URL\n  try: hikyaku key trust iscsi://host:3261",
    ),
    (
        "forget-what-is-not-known",
        &["key", "forget", "iscsi://host"],
        1,
        "error: cannot forget iscsi://host: no line of .../hikyaku/known-targets has this name\n  try: hikyaku key list prints the names",
    ),
    (
        "forget-what-is-no-name",
        &["key", "forget", "a b"],
        2,
        "error: cannot forget a b: it is neither host[:port] nor the name of a target\n  try: hikyaku key list prints the names",
    ),
    // Command lines.
    (
        "command-misspelt",
        &["serv", "disk.img"],
        2,
        "error: unrecognized subcommand 'serv'\n\n  tip: a similar subcommand exists: 'serve'\n...",
    ),
    (
        "command-of-other-programs",
        &["cp", "disk.img", "b.img"],
        2,
        "error: unrecognized subcommand 'cp'\n\n  tip: type: hikyaku copy disk.img b.img\n...",
    ),
    (
        "endpoint-without-a-command",
        &["disk.img"],
        2,
        "error: unrecognized subcommand 'disk.img'\n\n  tip: type: hikyaku info disk.img\n...",
    ),
    (
        "long-option-misspelt",
        &["info", "disk.img", "--jsn"],
        2,
        "error: unexpected argument '--jsn' found\n\n  tip: a similar argument exists: '--json'\n...",
    ),
    (
        "destination-missing-from-the-command-line",
        &["copy", "disk.img"],
        2,
        "error: the following required arguments were not provided:\n  <DST>\n\n  tip: for example: hikyaku copy disk.img \
         /dev/sdx --verify\n\nUsage: hikyaku copy <SRC> <DST>\n...",
    ),
    (
        "url-missing-from-the-command-line",
        &["key", "trust", "--json"],
        2,
        "...\"hint\":\"for example: hikyaku key trust iscsi://host\"}}",
    ),
    // Copies that cannot be.
    (
        "copy-into-a-directory",
        &["copy", "disk.img", "directory"],
        2,
        "error: cannot copy to directory: it is a directory\n  try: directory/disk.img",
    ),
    (
        "copy-into-a-directory-that-is-missing",
        &["copy", "disk.img", "nowhere/"],
        6,
        "error: cannot copy to nowhere/: it does not exist, and a name with / at its end is that of a directory\n  try: name a \
         file: the path without the / at its end, or one in a directory that exists",
    ),
    (
        "copy-of-more-than-the-source-has",
        &["copy", "disk.img", "new.img", "--size", "1g"],
        2,
        "error: cannot copy from disk.img: the source has 1048576 bytes; 1073741824 bytes at offset 0 are not all there\n  try: --size \
         1048576 or less; without --size all from --src-offset is copied",
    ),
    (
        "rate-without-a-unit",
        &["copy", "disk.img", "new.img", "--rate", "10"],
        2,
        "error: invalid value '10' for '--rate <SIZE/s>': '10' has no unit; write 10MB/s, 10kB/s or, if so little is meant, 10B/s",
    ),
    (
        "copy-onto-itself",
        &["copy", "disk.img", "disk.img"],
        6,
        "error: cannot copy to disk.img: it is the same storage as the source disk.img\n  try: a destination on other storage, such as \
         a new file: copy.img",
    ),
    (
        "copy-to-what-is-read-only",
        &["copy", "disk.img", "a,,b.img,ro"],
        6,
        "error: cannot copy to a,,b.img,ro: the destination is read-only\n  try: leave out ro after the destination",
    ),
    // Configuration.
    (
        "configuration-missing",
        &["check", "none.toml"],
        2,
        "error: cannot read the configuration none.toml: No such file or directory (os error 2)\n  try: hikyaku config example > \
         none.toml; `hikyaku paths` prints where it is looked for",
    ),
    (
        "peers-missing",
        &["serve", "disk.img", "--peers", "none.toml"],
        2,
        "error: cannot read the peers none.toml: No such file or directory (os error 2)\n  try: on the initiator's host: hikyaku key \
         public; then here: printf '[[peer]]...' KEY >> none.toml",
    ),
    (
        "secret-missing",
        &["serve", "disk.img", "--chap-user", "me", "--chap-secret-file", "none"],
        1,
        "error: cannot read the secret file none: No such file or directory (os error 2)\n  try: (umask 077; head -c 12 /dev/urandom | \
         base64 > none) makes a secret of 16 characters; it belongs to the user that serves",
    ),
];

/// The rest of an error of clap's.
const CLAP: &str = "\n\nFor more information, try '--help'.";

/// Whether `text` consists of the parts of `pattern` between `...`, in their order, with any text in the gaps.
fn matches(text: &str, pattern: &str) -> bool {
    let parts: Vec<&str> = pattern.split("...").collect();
    let (first, rest) = parts.split_first().expect("a split has a part");
    let Some(mut left) = text.strip_prefix(first) else { return false };
    let Some((last, middle)) = rest.split_last() else { return left.is_empty() };
    for part in middle {
        let Some((_, after)) = left.split_once(part) else { return false };
        left = after;
    }
    left.ends_with(last)
}

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Result<Self> {
        let dir = scratch()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let place = Self { dir };
        for (name, bytes, mode) in [
            ("disk.img", vec![0; 1 << 20], 0o644),
            ("a,b.img", vec![0; 1 << 20], 0o644),
            ("odd.img", vec![0; 1_000_001], 0o644),
            ("closed.img", vec![0; 4096], 0o600),
            ("empty.img", Vec::new(), 0o644),
            ("open.key", format!("{KEY}\n").into_bytes(), 0o644),
        ] {
            fs::write(place.path(name), bytes)?;
            fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode))?;
        }
        fs::create_dir(place.path("directory"))?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, context: &Context, arguments: &[&str]) -> Command {
        let mut command = context.command_in(&self.path("home"));
        command.args(arguments).current_dir(self.dir.path());
        command
    }

    fn run(&self, context: &Context, arguments: &[&str]) -> Result<Output> {
        run(&mut self.command(context, arguments), LIMIT)?.orderly()
    }

    /// A server of `endpoint` in this directory, with its own home: what it prints at the start.
    fn served(&self, context: &Context, endpoint: &str) -> Result<(Server, String)> {
        let server = Server::start(&mut self.command(context, &["serve", endpoint, "--listen", "0"]), 1)?;
        let log = server.running.stderr();
        Ok((server, log))
    }
}

fn row(context: &Context, place: &Place, (_, arguments, code, expected): Row) -> Result<()> {
    let output = place.run(context, arguments)?.expect(code)?;
    let (expected, said) = (expected.replace("OPTIONS", OPTIONS), output.stderr.trim_end());
    let said = said.strip_suffix(CLAP).unwrap_or(said);
    let expected =
        expected.strip_suffix("\n...").map_or_else(|| expected.clone(), |head| format!("{head}..."));
    demand!(matches(said, &expected), "{}: expected\n{expected}\n--- and it says\n{said}", output.line)
}

/// What is printed on standard output where nothing, or less than expected, was moved or compared.
fn results(context: &Context, place: &Place) -> Result<()> {
    let sparse = fs::File::create(place.path("sparse.img"))?;
    sparse.set_len(64 << 20)?;
    fs::write(place.path("short.img"), vec![0; 1 << 19])?;
    for (arguments, code, part) in [
        (&["copy", "sparse.img", "sparse-copy.img", "--offload", "off"][..], 0, ", nothing to move, "),
        (
            &["compare", "short.img", "disk.img"],
            3,
            "they differ at offset 524288, where short.img ends and disk.img goes on, to 1048576 bytes; what both have is equal",
        ),
        (
            &["compare", "disk.img", "short.img"],
            3,
            "where short.img ends and disk.img goes on, to 1048576 bytes",
        ),
        (&["copy", "disk.img", "-", "--dry-run"], 0, "would copy disk.img (from byte 0) to - (from byte 0)"),
        (
            &["copy", "-", "new.img", "--dry-run"],
            6,
            "  refused: cannot copy to new.img: it does not exist, and a stream",
        ),
    ] {
        let output = place.run(context, arguments)?.expect(code)?;
        ensure!(output.stdout.contains(part), "{}: no {part:?} in\n{}", output.line, output.text());
    }
    // Before a refusal nothing is measured.
    let refused = place.run(context, &["copy", "disk.img", "short.img", "--dry-run"])?.expect(6)?.stdout;
    demand!(refused.contains("refused: ") && !refused.contains("reading alone takes"), "{refused}")
}

/// `ctl lun add` without a number proposes the next free one.
fn lun_added(context: &Context, place: &Place) -> Result<()> {
    let (_server, _log) = place.served(context, "disk.img")?;
    let add = |words: &[&str]| place.run(context, &[&["ctl", "lun", "add"], words].concat());
    let unnumbered = add(&["a,,b.img"])?.expect(2)?;
    let expected = "error: cannot add the LUN a,,b.img: its number is missing\n  try: hikyaku ctl lun add 'a,,b.img' --lun 1\n";
    demand!(unnumbered.stderr == expected, "{}", unnumbered.stderr)
}

/// A user without rights to the file; root has them all.
fn denied(context: &Context, place: &Place) -> Result<()> {
    let mut command = place.command(context, &["serve", "closed.img", "--listen", "0"]);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    } else {
        fs::set_permissions(place.path("closed.img"), fs::Permissions::from_mode(0o000))?;
    }
    let output = run(&mut command, LIMIT)?.orderly()?.expect(1)?;
    output
        .says("error: cannot serve closed.img: Permission denied (os error 13)\n  try: run it with sudo, or let this user in: ")?
        .says("sudo setfacl -m u:$USER:rw closed.img; to read it only: closed.img,ro")
        .map(drop)
}

fn odd_size(context: &Context, place: &Place) -> Result<()> {
    let (_server, log) = place.served(context, "odd.img")?;
    let expected = "warning: odd.img has 1000001 bytes: the last 65 do not fill a block of 512, and initiators do not see them";
    ensure!(log.contains(expected), "the server says nothing of it:\n{log}");
    let info = place.run(context, &["info", "odd.img,ro"])?.success()?;
    let line = "976.6 KiB (1000001 bytes): the last 65 do not fill a block";
    ensure!(info.stdout.contains(line), "{}", info.stdout);
    let json = place.run(context, &["info", "odd.img", "--json"])?.success()?.json()?;
    demand!(json["odd_bytes"] == 65, "{json}")
}

/// Under the default name one image after the other is no alarm; under a name that was given it is.
fn another_image(context: &Context, place: &Place) -> Result<()> {
    for (iqn, alarm) in [(None, false), (Some("iqn.2026-11.example:given"), true)] {
        for (number, endpoint) in ["disk.img", "odd.img,size=512"].into_iter().enumerate() {
            let mut command = place.command(context, &["serve", endpoint, "--listen", "0"]);
            command.args(iqn.iter().flat_map(|iqn| ["--iqn", iqn]));
            let server = Server::start(&mut command, 1)?;
            let log = server.running.stderr();
            let warns = log
                .lines()
                .any(|line| line.starts_with("warning: ") && line.contains("other storage than before"));
            ensure!(warns == (alarm && number == 1), "{iqn:?}, image {number}:\n{log}");
        }
    }
    Ok(())
}

/// The lines of the hint, typed as they are, open the disk of the image.
fn image_hint(context: &Context, place: &Place, format: &str) -> Result<()> {
    let image = format!("x.{format}");
    run(program("qemu-img")?.args(["create", "-q", "-f", format]).arg(place.path(&image)).arg("3M"), LIMIT)?
        .success()?;
    let refused = place.run(context, &["compare", &image, "null:3M"])?.expect(6)?;
    let said = &refused.stderr;
    ensure!(
        said.contains(&format!("cannot open the first endpoint {image}: it is a {format} image")),
        "{said}"
    );
    let lines: Vec<&str> = said.lines().map(|line| line.trim().trim_start_matches("try: ")).collect();
    let find = |start: &str| {
        lines.iter().find(|line| line.starts_with(start)).with_context(|| format!("no {start} in {said}"))
    };
    let (serve, again) = (find("qemu-nbd ")?, find("hikyaku ")?);
    let end = find("kill ")?;
    let script = format!("{serve}\n{again}\ncode=$?\n{end}\nexit $code\n");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(place.dir.path()).env("PATH", path_with(&context.hikyaku)?);
    let home = place.path("home");
    let home =
        ["HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"].map(|name| (name, home.clone()));
    let ended = run(shell.envs(home), LIMIT)?;
    // A script that was cut off has not ended it.
    if let Ok(pid) = fs::read_to_string(place.path(&format!("x.{format}.pid"))) {
        run(program("kill")?.arg(pid.trim()), LIMIT)?;
    }
    let equal = ended.success().with_context(|| script.clone())?;
    ensure!(equal.stdout.starts_with("equal: 3 MiB"), "{}", equal.stdout);
    let json = place.run(context, &["info", &image, "--json"])?.success()?.json()?;
    let found = (&json["image"]["format"], &json["image"]["disk_bytes"]);
    ensure!(found == (&format.into(), &(3 << 20).into()), "{json}");
    let text = place.run(context, &["info", &image])?.success()?.stdout;
    demand!(text.contains(&format!("{format}, a disk of 3 MiB (3145728 bytes)")), "{text}")
}

fn path_with(hikyaku: &Path) -> Result<String> {
    let directory = hikyaku.parent().context("a program in a directory")?;
    Ok(format!("{}:{}:/usr/sbin:/sbin", directory.display(), std::env::var("PATH").unwrap_or_default()))
}

/// `--quiet` leaves what was asked for, warnings and errors.
fn quiet(context: &Context, place: &Place) -> Result<()> {
    let equal = place.run(context, &["-q", "compare", "disk.img", "a,,b.img"])?.success()?;
    ensure!(equal.text().trim().is_empty(), "{}", equal.text());
    let differ = place.run(context, &["-q", "compare", "disk.img", "pattern:1M"])?.expect(3)?;
    ensure!(differ.stdout.starts_with("they differ at offset "), "{}", differ.text());
    ensure!(place.run(context, &["-q", "info", "disk.img"])?.success()?.stdout.contains("1 MiB"));
    place.run(context, &["-q", "info", "none.raw"])?.expect(1)?.says("error: cannot open none.raw")?;
    let words = ["-q", "volume", "format", "quiet.img,create", "--data-size", "1M", "--type", "luks2"];
    private_file(place.path("key"), "of a test")?;
    let costs = ["--key-file", "key", "--pbkdf", "pbkdf2", "--iter-time", "1"];
    let made = place.run(context, &[&words[..], &costs].concat())?.success()?;
    ensure!(made.text().trim().is_empty(), "{}", made.text());
    let server =
        Server::start(&mut place.command(context, &["-q", "serve", "disk.img", "--listen", "0"]), 1)?;
    let log = server.running.stderr();
    demand!(log.is_empty(), "a quiet server says:\n{log}")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let place = Scene::new(Place::new);
    for case in ROWS {
        cases.check(case.0, || row(context, place.get()?, *case));
    }
    cases.check("what-was-not-moved-or-compared", || results(context, place.get()?));
    cases.check("lun-added", || lun_added(context, &Place::new()?));
    cases.check("file-of-another-user", || denied(context, place.get()?));
    cases.check("size-that-is-no-multiple-of-a-block", || odd_size(context, place.get()?));
    cases.check("another-image-under-a-name", || another_image(context, &Place::new()?));
    for format in ["qcow2", "vmdk", "vhdx"] {
        cases.check(&format!("image-{format}-opened-by-its-hint"), || {
            image_hint(context, place.get()?, format)
        });
    }
    cases.check("quiet", || quiet(context, place.get()?));
    check::examine(context, cases);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_gaps_and_fixed_ends() {
        for (text, pattern, expected) in [
            ("abc", "abc", true),
            ("abcd", "abc", false),
            ("abcd", "abc...", true),
            ("xabc", "...abc", true),
            ("xabc", "abc", false),
            ("a-b-c", "a...b...c", true),
            ("a-c-b", "a...b...c", false),
            ("ac", "a...b...c", false),
        ] {
            assert_eq!(matches(text, pattern), expected, "{text} {pattern}");
        }
    }
}
