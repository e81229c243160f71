//! Every combination of cipher, key derivation and place of the header, in both directions and to the last byte.

use std::fs;

use anyhow::Result;

use super::desk::{BYTES, CHEAP, COPY, Desk, HEADER_BYTES, VOLUME};
use crate::files::{same_file, same_range, size_of};
use crate::{Cases, Context};

const SECTORS: [u32; 4] = [512, 1024, 2048, 4096];
const KEYS: [u32; 2] = [256, 512];
const KDFS: [&str; 3] = ["pbkdf2", "argon2i", "argon2id"];
/// As cryptsetup's `--hash`: of PBKDF2, of the anti-forensic splitter and of the digest.
const HASHES: [&str; 13] = [
    "sha1",
    "sha224",
    "sha256",
    "sha384",
    "sha512",
    "sha3-224",
    "sha3-256",
    "sha3-384",
    "sha3-512",
    "ripemd160",
    "whirlpool",
    "blake2b-512",
    "blake2s-256",
];
/// Sizes of cryptsetup's JSON and key slot areas.
const AREAS: [(&str, &str); 9] = [
    ("16k", "512k"),
    ("32k", "1m"),
    ("64k", "16m"),
    ("128k", "2m"),
    ("256k", "512k"),
    ("512k", "4m"),
    ("1m", "8m"),
    ("2m", "12m"),
    ("4m", "128m"),
];

#[derive(Clone, Copy)]
struct Pair {
    sector_bytes: u32,
    key_bits: u32,
    kdf: &'static str,
    is_detached: bool,
}

impl Pair {
    fn all() -> impl Iterator<Item = Self> {
        SECTORS.into_iter().flat_map(|sector_bytes| {
            KEYS.into_iter().flat_map(move |key_bits| {
                KDFS.into_iter().flat_map(move |kdf| {
                    [false, true].map(|is_detached| Self { sector_bytes, key_bits, kdf, is_detached })
                })
            })
        })
    }

    fn name(self) -> String {
        let Self { sector_bytes, key_bits, kdf, is_detached } = self;
        format!("{sector_bytes}-{key_bits}-{kdf}-{}", if is_detached { "detached" } else { "attached" })
    }

    fn header(self) -> Option<&'static str> {
        self.is_detached.then_some("head")
    }

    /// The volume in `x.img` as an endpoint.
    fn endpoint(self) -> String {
        let header = self.header().map(|header| format!(",header={header}"));
        format!("x.img,{VOLUME}{}", header.unwrap_or_default())
    }

    /// A volume of this program, filled by it, is decrypted by cryptsetup.
    fn ours(self, context: &Context) -> Result<()> {
        let Self { sector_bytes, key_bits, kdf, is_detached } = self;
        let desk = Desk::new(context)?;
        let plain = desk.random("plain.img", BYTES)?;
        let costs = if kdf == "pbkdf2" { "--iter-time 1" } else { "--iter-time 1 --pbkdf-memory 64K" };
        let header = self.header().map(|header| format!("--header {header}")).unwrap_or_default();
        let options =
            format!("--sector-size {sector_bytes} --key-size {key_bits} --pbkdf {kdf} {costs} {header}");
        desk.format("x.img", BYTES, &options)?;
        desk.ours(&format!("{COPY} plain.img {}", self.endpoint()))?;
        let header_bytes = if is_detached { 0 } else { HEADER_BYTES };
        demand!(size_of(&desk.path("x.img"))? == header_bytes + BYTES, "the size of the image")?;
        desk.decrypt("x.img", "head")?;
        same_range(&plain, 0, &desk.path("x.img"), 0, BYTES)
    }

    /// A file that cryptsetup encrypted in place is read by this program.
    fn theirs(self, context: &Context, hash: &str) -> Result<()> {
        let Self { sector_bytes, key_bits, kdf, is_detached } = self;
        let desk = Desk::new(context)?;
        let plain = desk.random("plain.img", BYTES)?;
        fs::copy(&plain, desk.path("x.img"))?;
        if !is_detached {
            let file = fs::OpenOptions::new().write(true).open(desk.path("x.img"))?;
            file.set_len(BYTES + 2 * HEADER_BYTES)?;
        }
        let costs = match kdf {
            "pbkdf2" => "--pbkdf-force-iterations 1000",
            _ => "--pbkdf-force-iterations 4 --pbkdf-memory 64 --pbkdf-parallel 2",
        };
        let options = format!(
            "--sector-size {sector_bytes} --key-size {key_bits} --pbkdf {kdf} {costs} --cipher aes-xts-plain64 --hash {hash}"
        );
        desk.encrypt("x.img", self.header(), &options)?;
        desk.ours(&format!("compare plain.img {} --size {BYTES}", self.endpoint()))?;
        // A second reader, whose result is a file.
        desk.ours(&format!("{COPY} {} back.img --size {BYTES}", self.endpoint()))?;
        same_file(&plain, &desk.path("back.img"))
    }
}

/// A header whose areas have other sizes, by cryptsetup: opened, filled and decrypted again.
fn areas(context: &Context, json: &str, slots: &str) -> Result<()> {
    let desk = Desk::new(context)?;
    let plain = desk.random("plain.img", BYTES)?;
    desk.empty("x.img", (140 << 20) + BYTES)?;
    desk.cryptsetup(&format!(
        "luksFormat --type luks2 --key-file pw --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --luks2-metadata-size {json} --luks2-keyslots-size {slots} x.img"
    ))?;
    desk.ours(&format!("{COPY} plain.img x.img,{VOLUME}"))?;
    desk.ours(&format!("volume passwd x.img --password-file pw --new-password-file new {CHEAP}"))?;
    desk.opens_with("x.img", &["new"])?;
    desk.ours(&format!("volume passwd x.img --password-file new --new-password-file pw {CHEAP}"))?;
    desk.decrypt("x.img", "head")?;
    same_range(&plain, 0, &desk.path("x.img"), 0, BYTES)
}

/// Costs of a real volume, which the defaults of both programs choose.
fn default_costs(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    let plain = desk.random("plain.img", BYTES)?;
    desk.format("x.img", BYTES, "--pbkdf argon2id --iter-time 200")?;
    desk.ours(&format!("{COPY} plain.img x.img,{VOLUME}"))?;
    desk.cryptsetup("luksAddKey --key-file pw --iter-time 200 x.img new")?;
    desk.opens_with("x.img", &["pw", "new"])?;
    desk.ours("compare plain.img x.img,volume=luks2,key-file=new")?;
    desk.decrypt("x.img", "head")?;
    same_range(&plain, 0, &desk.path("x.img"), 0, BYTES)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    for pair in Pair::all() {
        cases.check_some(("ours", 2), &format!("ours-{}", pair.name()), || pair.ours(context));
    }
    for pair in Pair::all() {
        for hash in HASHES {
            let name = format!("theirs-{}-{hash}", pair.name());
            cases.check_some(("theirs", 2), &name, || pair.theirs(context, hash));
        }
    }
    for (json, slots) in AREAS {
        cases.check_some(("areas", 1), &format!("areas-{json}-{slots}"), || areas(context, json, slots));
    }
    cases.check_some(super::SLOW, "costs-of-both-defaults", || default_costs(context));
}
