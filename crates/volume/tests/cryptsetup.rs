//! Headers made by cryptsetup and by this crate, each opened, changed, backed up and restored by the other; and data
//! decrypted by either, every byte. cryptsetup works on files here: no root, no device-mapper.

mod support;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{CHEAP, CHEAP_ARGON2ID, CRYPT, LIMITS, random};
use tempfile::TempDir;
use volume::Storage;
use volume::luks2::{
    Argon2Costs, AuthCipher, Backup, ChangeError, Copies, Format, Hash, Header, Pbkdf, Place, Priority,
    ReadError, Refusal, SegmentKind, UnlockError, VolumeKey, format, read,
};
use xts::Xts;

const MIB: u64 = 1 << 20;
/// The least that cryptsetup allows.
const FAST: &str = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
const FAST_ARGON2: &str = "--pbkdf-force-iterations 4 --pbkdf-memory 64 --pbkdf-parallel 2";
const FAST_OURS: Pbkdf = Pbkdf::Pbkdf2 { hash: Hash::Sha256, iterations: 1000 };

/// A directory with the passphrases as files, in which cryptsetup runs.
struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        let this = Self(TempDir::new().unwrap());
        for passphrase in ["first", "second", "third"] {
            fs::write(this.path(passphrase), passphrase).unwrap();
        }
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file of zeros.
    fn image(&self, name: &str, bytes: u64) -> Image {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        Image::open(&path)
    }

    /// Runs cryptsetup with `words`, some of which are names of files here. Returns its output, or its message.
    fn try_cryptsetup(&self, words: &str) -> Result<String, String> {
        let mut command = Command::new("cryptsetup");
        command
            .arg("--batch-mode")
            .args(words.split_whitespace())
            .current_dir(self.0.path())
            .env("LC_ALL", "C");
        let output = command.output().expect("cryptsetup is installed (Debian: cryptsetup-bin)");
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap())
        } else {
            Err(format!("cryptsetup {words}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
        }
    }

    fn cryptsetup(&self, words: &str) -> String {
        self.try_cryptsetup(words).unwrap_or_else(|message| panic!("{message}"))
    }

    /// Whether a passphrase opens a keyslot.
    fn opens(&self, image: &str, passphrase: &str) -> bool {
        self.try_cryptsetup(&format!("open --test-passphrase --key-file {passphrase} {image}")).is_ok()
    }

    /// The volume key, by cryptsetup.
    fn volume_key(&self, image: &str, passphrase: &str) -> Vec<u8> {
        let path = self.path("volume-key");
        let _ = fs::remove_file(&path);
        self.cryptsetup(&format!(
            "luksDump --dump-volume-key --volume-key-file volume-key --key-file {passphrase} {image}"
        ));
        fs::read(path).unwrap()
    }
}

struct Image(File);

impl Image {
    fn open(path: &Path) -> Self {
        Self(File::options().read(true).write(true).open(path).unwrap())
    }

    fn header(&mut self) -> Header {
        read(self, Place::Attached).unwrap_or_else(|error| panic!("{error}"))
    }

    fn key(&mut self, passphrase: &str) -> (u8, Vec<u8>) {
        let unlocked = self.header().unlock(self, passphrase.as_bytes(), None, &LIMITS);
        let unlocked = unlocked.unwrap_or_else(|error| panic!("{passphrase}: {error}"));
        (unlocked.slot, unlocked.key.bytes().to_vec())
    }

    fn opens(&mut self, passphrase: &str) -> bool {
        match self.header().unlock(self, passphrase.as_bytes(), None, &LIMITS) {
            Ok(_) => true,
            Err(UnlockError::WrongPassphrase) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn refusal(&mut self) -> Refusal {
        match read(self, Place::Attached) {
            Err(ReadError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }

    fn destroy(&self, offset: u64) {
        self.0.write_all_at(&[0xff; 4096], offset).unwrap();
    }
}

impl Storage for Image {
    type Error = io::Error;

    fn size_bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_all_at(from, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn fast(segment: SegmentKind) -> Format<'static> {
    Format { digest_iterations: 1000, ..Format::new(Place::Attached, segment) }
}

/// A volume of this crate with the passphrase "first".
fn ours(bench: &Bench, name: &str, parameters: &Format<'_>, pbkdf: &Pbkdf) -> (Image, Header) {
    let mut image = bench.image(name, parameters.data_offset_bytes + 4 * MIB);
    let (header, _) = format(&mut image, parameters, b"first", pbkdf, &mut random(1)).unwrap();
    (image, header)
}

#[test]
fn cryptsetups_headers_open() {
    let sizes = ["16k", "32k", "64k", "128k", "256k", "512k", "1m", "2m", "4m"];
    let both = Hash::ALL.iter().zip(sizes.iter().cycle());
    let both = both.map(|(hash, size)| format!("{FAST} --hash {} --luks2-metadata-size {size}", hash.name()));
    let others = [
        format!("--pbkdf argon2i {FAST_ARGON2}"),
        format!("--pbkdf argon2id {FAST_ARGON2}"),
        format!("--pbkdf argon2id {FAST_ARGON2} --hash sha512 --key-size 256"),
        format!("{FAST} --sector-size 512"),
        format!("{FAST} --sector-size 1024 --key-size 256"),
        format!("{FAST} --sector-size 2048"),
        format!("{FAST} --sector-size 4096"),
        format!("{FAST} --keyslot-cipher aes-xts-plain64 --keyslot-key-size 256"),
        format!("{FAST} --luks2-keyslots-size 512k"),
        // In units of 512 bytes: 4 MiB, and 16 MiB with 4096 bytes.
        format!("{FAST} --offset 8192"),
        format!("{FAST} --offset 32776"),
        format!("{FAST} --key-slot 31"),
    ];
    let bench = Bench::new();
    for options in both.chain(others) {
        let mut image = bench.image("image", 32 * MIB);
        bench.cryptsetup(&format!("luksFormat --type luks2 {options} --key-file first image"));
        let (slot, key) = image.key("first");
        assert_eq!(key, bench.volume_key("image", "first"), "{options}");
        assert_eq!(slot, if options.ends_with("31") { 31 } else { 0 }, "{options}");
        assert!(!image.opens("second"), "{options}");
        assert_eq!(image.header().facts().copies, Copies::Both);
    }
}

#[test]
fn cryptsetups_fields_are_reported() {
    let bench = Bench::new();
    let mut image = bench.image("image", 32 * MIB);
    let uuid = "0a1b2c3d-1111-4222-8333-444455556666";
    bench.cryptsetup(&format!(
        "luksFormat --type luks2 {FAST} --sector-size 2048 --uuid {uuid} --label disk --subsystem us --key-file first image"
    ));
    bench.cryptsetup(&format!("luksAddKey {FAST} --key-file first image second"));
    bench.cryptsetup(&format!(
        "luksAddKey {FAST} --unbound --key-size 256 --key-slot 5 --key-file first image third"
    ));
    bench.cryptsetup("config --key-slot 1 --priority prefer image");
    let facts = image.header().facts();
    let text = [&facts.uuid[..], &facts.label, &facts.subsystem];
    assert_eq!(text, [uuid, "disk", "us"]);
    assert_eq!(facts.segment.kind, SegmentKind::Crypt { sector_bytes: 2048 });
    assert_eq!((facts.segment.offset_bytes, facts.segment.size_bytes), (16 * MIB, None));
    let slots: Vec<_> =
        facts.slots.iter().map(|slot| (slot.slot, slot.is_bound, slot.priority, slot.key_bits)).collect();
    let expected = [
        (0, true, Priority::Normal, 512),
        (1, true, Priority::Preferred, 512),
        (5, false, Priority::Normal, 256),
    ];
    assert_eq!(slots, expected);
    assert!(!image.opens("third"), "its keyslot holds another key");
}

#[test]
fn a_converted_luks1_header_opens() {
    let bench = Bench::new();
    let mut image = bench.image("image", 8 * MIB);
    bench.cryptsetup(
        "luksFormat --type luks1 --pbkdf-force-iterations 1000 --hash sha512 --key-file first image",
    );
    assert_eq!(image.refusal(), Refusal::Luks1);
    bench.cryptsetup("convert --type luks2 image");
    assert_eq!(image.key("first").1, bench.volume_key("image", "first"));
}

#[test]
fn a_reencrypted_volume_opens() {
    let bench = Bench::new();
    let mut image = bench.image("image", 24 * MIB);
    bench.cryptsetup(&format!("luksFormat --type luks2 {FAST} --key-file first image"));
    let before = image.key("first");
    bench.cryptsetup(&format!(
        "reencrypt --force-offline-reencrypt --disable-locks {FAST} --key-file first image"
    ));
    let after = image.key("first");
    assert_ne!(after, before);
    assert_eq!(after.1, bench.volume_key("image", "first"));
}

#[test]
fn passphrases_of_any_bytes() {
    let bench = Bench::new();
    let secrets = [vec![b'\n'], b"a\0b\r\n".to_vec(), drawn(1000), drawn(8 * MIB)];
    for secret in secrets {
        fs::write(bench.path("secret"), &secret).unwrap();
        let mut image = bench.image("image", 32 * MIB);
        bench.cryptsetup(&format!("luksFormat --type luks2 {FAST} --key-file secret image"));
        let unlocked = image.header().unlock(&mut image, &secret, None, &LIMITS).unwrap();
        let mut header = image.header();
        header.change_key(&mut image, 0, &unlocked.key, &secret, &CHEAP_ARGON2ID, &mut random(3)).unwrap();
        assert!(bench.opens("image", "secret"), "{} bytes", secret.len());
    }
}

#[test]
fn our_header_becomes_luks1_and_luks2_again() {
    let bench = Bench::new();
    let (mut image, _) = ours(&bench, "image", &fast(SegmentKind::Crypt { sector_bytes: 512 }), &FAST_OURS);
    let key = image.key("first");
    bench.cryptsetup("convert --type luks1 image");
    assert!(bench.opens("image", "first"));
    bench.cryptsetup("convert --type luks2 image");
    assert_eq!(image.key("first"), key);
}

#[test]
fn what_cryptsetup_makes_and_this_crate_refuses() {
    let made = |options: &str| {
        let bench = Bench::new();
        let mut image = bench.image("image", 64 * MIB);
        for step in options.split(" ; ") {
            bench.cryptsetup(&format!("{step} {FAST} --key-file first image"));
        }
        image.refusal()
    };
    let cipher = |of: &str, name: &str| Refusal::Cipher { of: of.to_owned(), name: name.to_owned() };
    let cases = [
        (
            "luksFormat --type luks2 --cipher aes-cbc-essiv:sha256 --key-size 256",
            cipher("the segment", "\"aes-cbc-essiv:sha256\""),
        ),
        (
            "luksFormat --type luks2 --cipher aes-cbc-plain64 --key-size 256",
            cipher("the segment", "\"aes-cbc-plain64\""),
        ),
        (
            "luksFormat --type luks2 --keyslot-cipher aes-cbc-essiv:sha256 --keyslot-key-size 256",
            cipher("the area of keyslot 0", "\"aes-cbc-essiv:sha256\" of 256 bits"),
        ),
        ("luksFormat --type luks2 ; reencrypt --init-only", Refusal::Reencryption),
    ];
    for (options, refusal) in cases {
        assert_eq!(made(options), refusal, "{options}");
    }
}

#[test]
fn our_headers_open() {
    let argon2 = Argon2Costs { passes: 5, memory_kib: 100, lanes: 3 };
    let mut kdfs = vec![Pbkdf::Argon2i(argon2), Pbkdf::Argon2id(argon2)];
    kdfs.extend(Hash::ALL.iter().map(|hash| Pbkdf::Pbkdf2 { hash: *hash, iterations: 1000 }));
    let sectors = [512, 1024, 2048, 4096].map(|sector_bytes| fast(SegmentKind::Crypt { sector_bytes }));
    let sizes = (0..9).map(|power| {
        let header_bytes = (16 << 10) << power;
        let (keyslots_bytes, data_offset_bytes) = (4 * MIB, 2 * header_bytes + 4 * MIB);
        Format { header_bytes, keyslots_bytes, data_offset_bytes, ..fast(CRYPT) }
    });
    let short = Format { key_bytes: 32, label: "short key", ..fast(CRYPT) };
    let formats = sectors.into_iter().chain(sizes).chain([short]);
    let bench = Bench::new();
    let cases = kdfs.into_iter().map(|pbkdf| (fast(CRYPT), pbkdf)).chain(formats.map(|it| (it, FAST_OURS)));
    for (parameters, pbkdf) in cases {
        let (mut image, header) = ours(&bench, "image", &parameters, &pbkdf);
        let facts = header.facts();
        let what = format!("{parameters:?} {pbkdf:?}");
        assert_eq!(facts, image.header().facts(), "what is written is read: {what}");
        assert_eq!(bench.volume_key("image", "first"), image.key("first").1, "{what}");
        assert!(!bench.opens("image", "second"), "{what}");
        let dump = bench.cryptsetup("luksDump image");
        assert!(dump.contains(&facts.uuid) && dump.contains(&facts.label), "{dump}");
    }
}

#[test]
fn detached_headers_open() {
    let bench = Bench::new();
    drop(bench.image("data", 8 * MIB));
    bench.cryptsetup(&format!("luksFormat --type luks2 {FAST} --header theirs --key-file first data"));
    let mut image = Image::open(&bench.path("theirs"));
    assert_eq!(image.refusal(), Refusal::DataInHeader);
    let header = read(&mut image, Place::Detached).unwrap();
    let unlocked = header.unlock(&mut image, b"first", None, &LIMITS).unwrap();
    assert_eq!(unlocked.key.bytes(), bench.volume_key("theirs", "first"));

    let parameters = Format { digest_iterations: 1000, ..Format::new(Place::Detached, CRYPT) };
    let mut image = bench.image("ours", 16 * MIB);
    format(&mut image, &parameters, b"first", &FAST_OURS, &mut random(1)).unwrap();
    bench.cryptsetup("open --test-passphrase --key-file first --header ours data");
}

#[test]
fn keys_are_added_changed_and_removed_by_both() {
    let bench = Bench::new();
    let (mut image, mut header) = ours(&bench, "image", &fast(CRYPT), &CHEAP_ARGON2ID);
    let key = header.unlock(&mut image, b"first", None, &LIMITS).unwrap().key;

    bench.cryptsetup(&format!("luksAddKey {FAST} --key-file first image second"));
    assert!(matches!(
        header.add_key(&mut image, &key, b"third", &CHEAP, &mut random(2)),
        Err(ChangeError::Changed)
    ));
    let mut header = image.header();
    assert_eq!(header.add_key(&mut image, &key, b"third", &CHEAP_ARGON2ID, &mut random(2)).unwrap(), 2);
    assert!(["first", "second", "third"].iter().all(|passphrase| bench.opens("image", passphrase)));

    bench.cryptsetup(&format!("luksChangeKey {FAST} --key-file second image third"));
    assert_eq!(image.key("third"), (1, key.bytes().to_vec()));
    let mut header = image.header();
    header.change_key(&mut image, 1, &key, b"second", &CHEAP_ARGON2ID, &mut random(3)).unwrap();
    bench.cryptsetup("open --test-passphrase --key-slot 1 --key-file second image");

    bench.cryptsetup("luksKillSlot image 0");
    assert!(!image.opens("first"));
    let mut header = image.header();
    header.remove_key(&mut image, 2, false, &mut random(4)).unwrap();
    assert!(!bench.opens("image", "third"));
    assert!(matches!(header.remove_key(&mut image, 1, false, &mut random(5)), Err(ChangeError::LastSlot(1))));
    assert_eq!(bench.volume_key("image", "second"), key.bytes());

    bench.cryptsetup("erase image");
    let header = image.header();
    let error = header.unlock(&mut image, b"second", None, &LIMITS).unwrap_err();
    assert!(matches!(error, UnlockError::Refused(Refusal::NoKeyslot)), "{error}");
}

#[test]
fn every_keyslot_is_filled_by_both() {
    let bench = Bench::new();
    let (mut image, mut header) = ours(&bench, "image", &fast(CRYPT), &CHEAP);
    let key = header.unlock(&mut image, b"first", None, &LIMITS).unwrap().key;
    for slot in 1..31 {
        assert_eq!(
            header.add_key(&mut image, &key, b"third", &CHEAP, &mut random(slot.into())).unwrap(),
            slot
        );
    }
    bench.cryptsetup(&format!("luksAddKey {FAST} --key-file first image second"));
    assert_eq!(image.key("second").0, 31);
    let full = image.header().add_key(&mut image, &key, b"third", &CHEAP, &mut random(32));
    assert!(matches!(full, Err(ChangeError::NoFreeSlot)), "{full:?}");
}

#[test]
fn tokens_and_unknown_members_are_kept() {
    let bench = Bench::new();
    let (mut image, mut header) = ours(&bench, "image", &fast(CRYPT), &CHEAP);
    let token = r#"{"type":"vendor\u00e9","keyslots":["0"],"deep":{"list":[1,2.5,null,true],"text":"a/b"}}"#;
    fs::write(bench.path("token"), token).unwrap();
    bench.cryptsetup("token import --json-file token image");
    let exported = bench.cryptsetup("token export --token-id 0 image");
    let key = header.unlock(&mut image, b"first", None, &LIMITS).unwrap().key;
    header = image.header();
    header.add_key(&mut image, &key, b"second", &CHEAP, &mut random(2)).unwrap();
    assert_eq!(bench.cryptsetup("token export --token-id 0 image"), exported);
    header.remove_key(&mut image, 0, false, &mut random(3)).unwrap();
    let token = bench.cryptsetup("token export --token-id 0 image");
    assert_eq!(token, exported.replace(r#"["0"]"#, "[]"), "it no longer refers to the keyslot");
}

#[test]
fn backups_are_restored_crosswise() {
    let bench = Bench::new();
    let (mut image, header) = ours(&bench, "image", &fast(CRYPT), &FAST_OURS);
    bench.cryptsetup("luksHeaderBackup --header-backup-file theirs image");
    let backup = header.backup(&mut image).unwrap();
    assert!(backup == fs::read(bench.path("theirs")).unwrap(), "both write the same bytes");
    fs::write(bench.path("ours"), &backup).unwrap();

    bench.cryptsetup(&format!("luksChangeKey {FAST} --key-file first image second"));
    bench.cryptsetup("luksHeaderRestore --header-backup-file ours image");
    assert!(image.opens("first") && !image.opens("second"));

    bench.cryptsetup(&format!("luksChangeKey {FAST} --key-file first image second"));
    let backup = Backup::parse(fs::read(bench.path("theirs")).unwrap(), Place::Attached).unwrap();
    assert_eq!(backup.header().facts().uuid, image.header().facts().uuid);
    for lost in [false, true] {
        if lost {
            image.0.write_all_at(&[0; 32 << 10], 0).unwrap();
        }
        backup.restore(&mut image, &mut random(2)).unwrap();
        assert!(bench.opens("image", "first") && !bench.opens("image", "second"));
    }
}

#[test]
fn either_copy_is_enough() {
    let bench = Bench::new();
    let mut image = bench.image("image", 32 * MIB);
    for (size, second) in [("16k", 16 << 10), ("4m", 4 * MIB)] {
        bench.cryptsetup(&format!(
            "luksFormat --type luks2 {FAST} --luks2-metadata-size {size} --key-file first image"
        ));
        for (lost, copies) in [(0, Copies::SecondaryOnly), (second, Copies::PrimaryOnly)] {
            image.destroy(lost);
            let mut header = image.header();
            assert_eq!(header.facts().copies, copies);
            let key = header.unlock(&mut image, b"first", None, &LIMITS).unwrap().key;
            // The next change writes both; cryptsetup then finds nothing to repair.
            header.add_key(&mut image, &key, b"second", &FAST_OURS, &mut random(2)).unwrap();
            assert_eq!(image.header().facts().copies, Copies::Both);
            let bytes = header.backup(&mut image).unwrap();
            assert!(bench.opens("image", "second"));
            assert!(bytes == header.backup(&mut image).unwrap(), "cryptsetup repaired something");
        }
    }
}

#[test]
fn cryptsetup_repairs_either_copy_of_ours() {
    let bench = Bench::new();
    let (mut image, _) = ours(&bench, "image", &fast(CRYPT), &FAST_OURS);
    for lost in [0, 16 << 10] {
        image.destroy(lost);
        assert!(bench.opens("image", "first"));
        assert_eq!(image.header().facts().copies, Copies::Both);
    }
}

#[test]
fn auth_volumes_are_shown_and_left_alone() {
    let bench = Bench::new();
    for cipher in AuthCipher::ALL {
        let parameters = fast(SegmentKind::Auth { cipher, unit_bytes: 4096 });
        let (mut image, header) = ours(&bench, "image", &parameters, &CHEAP_ARGON2ID);
        assert!(bench.opens("image", "first") && !bench.opens("image", "second"));
        let dump = bench.cryptsetup("luksDump image");
        assert!(["hikyaku-auth-v1", cipher.name()].iter().all(|text| dump.contains(text)), "{dump}");
        let backup = bench.path("backup");
        bench.cryptsetup("luksHeaderBackup --header-backup-file backup image");
        let bytes = header.backup(&mut image).unwrap();
        assert!(bytes == fs::read(&backup).unwrap());
        fs::remove_file(backup).unwrap();
        for refused in [
            format!("luksAddKey {FAST} --key-file first image second"),
            format!("luksChangeKey {FAST} --key-file first image second"),
            "config --label other image".to_owned(),
        ] {
            let message = bench.try_cryptsetup(&refused).expect_err(&refused);
            assert!(message.contains("requirements"), "{message}");
        }
        assert!(bytes == header.backup(&mut image).unwrap(), "nothing was changed");
        // It removes keyslots whatever the requirements: a key can always be destroyed.
        bench.cryptsetup("luksKillSlot image 0");
        assert_eq!(image.header().facts().slots, []);
    }
}

/// During re-encryption cryptsetup shows the header, tests the passphrases of the present key, and refuses all else; after it
/// the new key has the passphrase.
#[test]
fn auth_volumes_in_reencryption_are_shown_and_left_alone() {
    let bench = Bench::new();
    let parameters = fast(SegmentKind::Auth { cipher: AuthCipher::Aegis256X4, unit_bytes: 4096 });
    let (mut image, mut header) = ours(&bench, "image", &parameters, &CHEAP_ARGON2ID);
    let unlocked = header.unlock(&mut image, b"first", None, &LIMITS).unwrap();
    let random = &mut random(9);
    header.add_key(&mut image, &unlocked.key, b"second", &CHEAP_ARGON2ID, random).unwrap();
    let next = VolumeKey::random(64, random);
    let keys = [&unlocked.key, &next];
    header.begin_reencryption(&mut image, keys, b"first", &CHEAP_ARGON2ID, random).unwrap();
    assert_eq!(image.refusal(), Refusal::AuthReencryption);
    assert!(
        bench.opens("image", "first") && bench.opens("image", "second") && !bench.opens("image", "third")
    );
    let dump = bench.cryptsetup("luksDump image");
    assert!(
        ["hikyaku-auth-reencrypt", "2: luks2 (unbound)"].iter().all(|text| dump.contains(text)),
        "{dump}"
    );
    let bytes = header.backup(&mut image).unwrap();
    for refused in [
        format!("luksAddKey {FAST} --key-file first image second"),
        "reencrypt --force-offline-reencrypt --key-slot 0 --key-file first image".to_owned(),
    ] {
        let message = bench.try_cryptsetup(&refused).expect_err(&refused);
        assert!(message.contains("requirements"), "{message}");
    }
    assert!(bytes == header.backup(&mut image).unwrap(), "nothing was changed");
    header.finish_reencryption(&mut image, unlocked.slot, random).unwrap();
    assert!(bench.opens("image", "first") && !bench.opens("image", "second"));
    assert!(bench.volume_key("image", "first") == next.bytes());
    let dump = bench.cryptsetup("luksDump image");
    assert!(!dump.contains("reencrypt") && dump.contains("0: luks2") && !dump.contains("unbound"), "{dump}");
}

/// The key of `image`, and its data encrypted or decrypted by this project's XTS.
fn cipher(image: &mut Image, passphrase: &str) -> (Xts, u64) {
    let header = image.header();
    let SegmentKind::Crypt { sector_bytes } = header.segment().kind else { panic!("a volume of type luks2") };
    let (_, key) = image.key(passphrase);
    (Xts::new(&key, sector_bytes as usize).unwrap(), header.segment().offset_bytes)
}

const DATA_CASES: [&str; 3] = [
    "--key-size 512 --sector-size 512",
    "--key-size 512 --sector-size 4096",
    "--key-size 256 --sector-size 2048",
];

#[test]
fn data_encrypted_by_cryptsetup_is_read() {
    let bench = Bench::new();
    for options in DATA_CASES {
        let plain = drawn(4 * MIB);
        // The space for the header is taken from the end.
        let mut image = bench.image("image", 36 * MIB);
        image.0.write_all_at(&plain, 0).unwrap();
        bench.cryptsetup(&format!(
            "reencrypt --encrypt --type luks2 --reduce-device-size 32M --disable-locks {FAST} {options} --key-file first image"
        ));
        let (mut xts, offset) = cipher(&mut image, "first");
        let mut data = vec![0; plain.len()];
        image.read(offset, &mut data).unwrap();
        xts.open(0, &mut data);
        assert!(data == plain, "{options}");
    }
}

#[test]
fn our_data_is_decrypted_by_cryptsetup() {
    let bench = Bench::new();
    for (key_bytes, sector_bytes) in [(64, 512), (64, 4096), (32, 2048)] {
        let plain = drawn(4 * MIB);
        let parameters = Format { key_bytes, ..fast(SegmentKind::Crypt { sector_bytes }) };
        let (mut image, _) = ours(&bench, "image", &parameters, &CHEAP_ARGON2ID);
        let (mut xts, offset) = cipher(&mut image, "first");
        let mut data = plain.clone();
        xts.seal(0, &mut data);
        image.write(offset, &data).unwrap();
        bench.cryptsetup(
            "reencrypt --decrypt --force-offline-reencrypt --disable-locks --header exported --key-file first image",
        );
        let mut decrypted = vec![0; plain.len()];
        image.read(0, &mut decrypted).unwrap();
        assert!(decrypted == plain, "{key_bytes} bytes of key, sectors of {sector_bytes}");
        fs::remove_file(bench.path("exported")).unwrap();
    }
}

fn drawn(bytes: u64) -> Vec<u8> {
    let mut data = vec![0; bytes as usize];
    random(7)(&mut data);
    data
}
