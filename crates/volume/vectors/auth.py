#!/usr/bin/env python3
"""Checks auth.json with a reader of authenticated volumes and their freshness files of its own (docs/VOLUME.md section 2): BLAKE3,
POLYVAL, the order of versions and what is done after a crash in plain Python, AES by `cryptography` (Debian: python3-cryptography), AEGIS and HKDF by ../../seal/vectors/check.py.

    auth.py [--self-test] [FILE]

Every volume must read as it says, every failing one must fail where and for the reason that it says. With --self-test BLAKE3 and AES-GCM-SIV are first
held against published numbers. It is slow and not constant-time: not for secrets.
"""

import argparse
import importlib.util
import json
import pathlib
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

FOLDER = pathlib.Path(__file__).resolve().parent
SPEC = importlib.util.spec_from_file_location("seal_check", FOLDER.parent.parent / "seal" / "vectors" / "check.py")
seal = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(seal)
Broken, need = seal.Broken, seal.need

BLOCK = PAGE = 4096
SECTOR = 512


# BLAKE3, keyed.

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT, KEYED = 1, 2, 4, 8, 16
MASK = 0xFFFFFFFF


def mix(s, a, b, c, d, x, y):
    def turn(value, by):
        return (value >> by | value << (32 - by)) & MASK
    s[a] = (s[a] + s[b] + x) & MASK
    s[d] = turn(s[d] ^ s[a], 16)
    s[c] = (s[c] + s[d]) & MASK
    s[b] = turn(s[b] ^ s[c], 12)
    s[a] = (s[a] + s[b] + y) & MASK
    s[d] = turn(s[d] ^ s[a], 8)
    s[c] = (s[c] + s[d]) & MASK
    s[b] = turn(s[b] ^ s[c], 7)


def compress(chain, block, counter, length, flags):
    words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    s = list(chain) + list(IV[:4]) + [counter & MASK, counter >> 32, length, flags]
    for turn in range(7):
        for n, (a, b, c, d) in enumerate([(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
                                          (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]):
            mix(s, a, b, c, d, words[2 * n], words[2 * n + 1])
        words = [words[n] for n in ORDER]
    return [s[n] ^ s[n + 8] for n in range(8)] + [s[n + 8] ^ chain[n] for n in range(8)]


def blake3(key, data, size):
    """`size` bytes of the keyed hash, or of the plain one where the key is None."""
    start = struct.unpack("<8I", key) if key else IV
    mode = KEYED if key else 0

    def last_of_chunk(number, chunk):
        chain = start
        parts = [chunk[at:at + 64] for at in range(0, len(chunk), 64)] or [b""]
        for n, part in enumerate(parts):
            flags = mode | (CHUNK_START if n == 0 else 0) | (CHUNK_END if n == len(parts) - 1 else 0)
            if n == len(parts) - 1:
                return chain, part, number, len(part), flags
            chain = compress(chain, part, number, 64, flags)[:8]

    def tree(first, data):
        if len(data) <= 1024:
            return last_of_chunk(first, data)
        left = 1024
        while 2 * left < len(data):
            left *= 2
        chains = [compress(*tree(first, data[:left]))[:8], compress(*tree(first + left // 1024, data[left:]))[:8]]
        return start, struct.pack("<16I", *chains[0], *chains[1]), 0, 64, mode | PARENT

    chain, block, counter, length, flags = tree(0, data)
    out, n = b"", 0
    while len(out) < size:
        # The counter of the root counts blocks of the output.
        out += struct.pack("<16I", *compress(chain, block, n, length, flags | ROOT))
        n += 1
    return out[:size]


# AES-256-GCM-SIV (RFC 8452).

def aes(key, block):
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return encryptor.update(block) + encryptor.finalize()


REDUCE = 1 << 127 | 1 << 126 | 1 << 121 | 1


def dot(a, b):
    """a * b * x^-128 in POLYVAL's field."""
    product = 0
    for n in range(128):
        if a >> n & 1:
            product ^= b << n
    for _ in range(128):
        # Divides by x: adds the polynomial x^128 + x^127 + x^126 + x^121 + 1 where the product is odd.
        if product & 1:
            product ^= 1 << 128 | (REDUCE & ~1) | 1
        product >>= 1
    return product


def polyval(key, data):
    sum_, h = 0, int.from_bytes(key, "little")
    for at in range(0, len(data), 16):
        sum_ = dot(sum_ ^ int.from_bytes(data[at:at + 16], "little"), h)
    return sum_.to_bytes(16, "little")


def gcm_siv_open(key, nonce, aad, sealed, tag):
    derived = b"".join(aes(key, struct.pack("<I", n) + nonce)[:8] for n in range(6))
    authentication, encryption = derived[:16], derived[16:]
    counter = struct.unpack("<I", tag[:4])[0]
    rest = tag[4:15] + bytes([tag[15] | 0x80])
    blocks = (len(sealed) + 15) // 16
    stream = aes(encryption, b"".join(struct.pack("<I", (counter + n) & MASK) + rest for n in range(blocks)))
    plain = bytes(a ^ b for a, b in zip(sealed, stream))

    def padded(data):
        return data + bytes(-len(data) % 16)
    lengths = struct.pack("<QQ", 8 * len(aad), 8 * len(plain))
    sum_ = bytearray(polyval(authentication, padded(aad) + padded(plain) + lengths))
    for n, byte in enumerate(nonce):
        sum_[n] ^= byte
    sum_[15] &= 0x7F
    need(aes(encryption, bytes(sum_)) == tag, "tag")
    return plain


# The format.

CIPHERS = {  # bytes of the nonce; how to open
    "aes256-gcm-siv": (12, lambda key, nonce, generation, aad, sealed, tag:
                       gcm_siv_open(key, nonce, aad, sealed, tag)),
    "aegis-256x4": (28, lambda key, nonce, generation, aad, sealed, tag:
                    seal.Aegis256X4(key, nonce + generation).open(aad, sealed, tag)),
}


def up(value, to):
    return (value + to - 1) // to * to


class Volume:
    """A volume, opened for reading. Raises Broken if the superblock, the map or the ledger does not verify."""

    def __init__(self, stored, name, unit, segment, uuid, key, ledger=None):
        self.stored, self.name, self.unit, self.segment = stored, name, unit, segment
        self.nonce_bytes, self.opener = CIPHERS[name]
        self.slot = 4 + self.nonce_bytes + 16
        self.per_sector = SECTOR // (2 * self.slot)
        self.per_page = 8 * self.per_sector
        self.secret = seal.extract(uuid.encode(), key)
        named = b"n" + bytes([len(name)]) + name.encode() + self.number("u", unit) + self.number("a", segment)
        self.read_superblock(self.key("superblock", named))
        self.lay_out()
        parameters = named + self.number("c", self.capacity)
        for offset in (self.map, self.contexts, self.journal, self.data):
            parameters += self.number("o", offset)
        parameters += self.number("e", self.epoch)
        self.keys = {purpose: self.key(purpose, parameters) for purpose in ("data", "unwritten", "meta", "freshness")}
        self.ledger = None if ledger is None else Ledger(self, ledger)
        self.read_map()
        self.recovered = self.read_journal() if unit == 512 and not self.is_closed else {}
        if self.ledger:
            self.ledger.restore()

    @staticmethod
    def number(tag, value):
        return tag.encode() + struct.pack("<Q", value)

    def key(self, purpose, parameters):
        return seal.expand(self.secret, b"hikyaku VOLUME/1 " + purpose.encode() + b"\0" + parameters, 32)

    @staticmethod
    def tag(key, purpose, number, data):
        return blake3(key, purpose.encode() + b"\0" + struct.pack("<Q", number) + data, 16)

    def read(self, offset, size):
        sectors = range(offset // SECTOR, (offset + size + SECTOR - 1) // SECTOR)
        data = b"".join(self.stored.get(sector, bytes(SECTOR)) for sector in sectors)
        return data[offset % SECTOR:][:size]

    def read_superblock(self, key):
        copies = []
        for copy in range(2):
            data = self.read(self.segment + copy * PAGE, SECTOR)
            if data[:8] == b"HKYKVOL1" and data[-16:] == self.tag(key, "superblock", 0, data[:-16]):
                copies.append((struct.unpack("<Q", data[8:16])[0], data))
        need(copies, "superblock")
        data = max(copies)[1]
        self.sequence, self.blocks, self.capacity, self.live = struct.unpack("<QQQQ", data[8:40])
        self.epoch, self.session, flags, count = struct.unpack("<IIII", data[40:56])
        self.is_closed = flags & 1 == 1
        self.unclean = [struct.unpack("<II", data[72 + 8 * n:80 + 8 * n]) for n in range(count)]
        if not self.is_closed:
            self.unclean.append((self.session, self.session))

    def lay_out(self):
        self.per_group = 4 * self.per_page
        groups = -(-self.capacity // self.per_group)
        sectors = -(-groups // (496 * 8))
        self.map = self.segment + 2 * PAGE
        self.contexts = self.map + -(-sectors // 8) * PAGE
        self.journal = self.contexts + groups * 4 * PAGE
        self.entries = (PAGE - 24 - 16) // (8 + self.slot)
        self.half_blocks = min(max(self.capacity // 64, 512), 8192) if self.unit == 512 else 0
        self.half_pages = -(-self.half_blocks // self.entries)
        self.data = up(self.journal + 2 * (self.half_pages * PAGE + self.half_blocks * BLOCK), 1 << 20)

    def read_map(self):
        self.bits = b""
        for sector in range((self.contexts - self.map) // SECTOR):
            data = self.read(self.map + sector * SECTOR, SECTOR)
            need(data[496:] == self.tag(self.keys["meta"], "map", sector, data[:496]), "map")
            if self.ledger:
                self.ledger.compare_map(sector, data[:496])
            self.bits += data[:496]

    def has_group(self, group):
        return self.bits[group // 8] >> group % 8 & 1 == 1

    def read_journal(self):
        """Slot and data of blocks that a crash may have torn: of the last batch and the one before; with a ledger, of the batch
        of the round that was cut."""
        pages = []
        for half in range(2):
            start = self.journal + half * (self.half_pages * PAGE + self.half_blocks * BLOCK)
            for page in range(self.half_pages):
                place = start + page * PAGE
                data = self.read(place, PAGE)
                if data[:8] != b"HKYKJRN1" or data[-16:] != self.tag(self.keys["meta"], "journal", place, data[:-16]):
                    continue
                batch, session, count = struct.unpack("<QII", data[8:24])
                if session == self.session and batch >= self.live:
                    pages.append((batch, start + self.half_pages * PAGE + page * self.entries * BLOCK, count, data))
        recovered = {}
        last = max((page[0] for page in pages), default=0)
        counts = (lambda batch: batch + 1 >= last) if self.ledger is None else self.ledger.has_batch
        for batch, at, count, data in sorted(pages, key=lambda page: -page[0]):
            for n in range(count if counts(batch) else 0):
                entry = data[24 + n * (8 + self.slot):][:8 + self.slot]
                block = struct.unpack("<Q", entry[:8])[0]
                sealed = self.read(at + n * BLOCK, BLOCK)
                if self.has_group(block // self.per_group) and self.opens(block, entry[8:], sealed):
                    recovered.setdefault(block, (entry[8:], sealed))
        return recovered

    def open(self, block, slot, sealed):
        generation, nonce, tag = slot[:4], slot[4:-16], slot[-16:]
        return self.opener(self.keys["data"], nonce, generation, struct.pack("<Q", block) + generation, sealed, tag)

    def opens(self, block, slot, sealed):
        try:
            self.open(block, slot, sealed)
        except Broken:
            return False
        return True

    def pair_at(self, index):
        """Where a page has the pair of the block with this index."""
        return index // self.per_sector * SECTOR + index % self.per_sector * 2 * self.slot

    def versions(self, page, index, data):
        """Slots of the versions of a block, the later one first; none if it is unwritten. `data` is the page."""
        pair = data[self.pair_at(index):][:2 * self.slot]
        slots = [pair[:self.slot], pair[self.slot:]]
        tags = blake3(self.keys["unwritten"], struct.pack("<Q", page), 16 * self.per_page)
        if pair == bytes(self.slot - 16) + tags[16 * index:][:16] + bytes(self.slot):
            return []
        versions = []
        for slot in slots:
            generation = struct.unpack("<I", slot[:4])[0]
            if generation >> 2 and generation & 3 < 3:
                versions.append((generation >> 2, generation & 3, slot))
            else:
                need(not any(slot), "slot")
        need(versions, "context")
        if len(versions) == 2:
            (s0, t0, _), (s1, t1, _) = versions
            if s1 > s0 or (s1 == s0 and t1 == (t0 + 1) % 3):
                versions.reverse()
        return [slot for _, _, slot in versions]

    def block(self, block):
        if not self.has_group(block // self.per_group):
            return bytes(BLOCK)
        page, index = divmod(block, self.per_page)
        data = self.read(self.contexts + page * PAGE, PAGE)
        sealed = self.read(self.data + block * BLOCK, BLOCK)
        if self.ledger:
            data = self.ledger.page(page, data)
            sealed = self.recovered.get(block, (None, sealed))[1]
        elif block in self.recovered:
            return self.open(block, *self.recovered[block])
        versions = self.versions(page, index, data)
        if not versions:
            return bytes(BLOCK)
        session = struct.unpack("<I", versions[0][:4])[0] >> 2
        is_unclean = session > self.session or any(first <= session <= last for first, last in self.unclean)
        if self.ledger or not is_unclean:
            del versions[1:]
        for slot in versions[:-1]:
            if self.opens(block, slot, sealed):
                return self.open(block, slot, sealed)
        return self.open(block, versions[-1], sealed)


class Ledger:
    """The freshness file of a volume, for reading. Raises Broken if it is not the volume's, or the volume is older."""

    def __init__(self, volume, data):
        self.volume, self.data = volume, data
        self.sectors = (volume.contexts - volume.map) // SECTOR
        self.pages = (volume.journal - volume.contexts) // PAGE
        self.tag_bytes = 64 * volume.per_page * BLOCK >> 20
        self.page_tags = 2 * PAGE + 16 * self.sectors
        self.log = up(self.page_tags + self.tag_bytes * self.pages, PAGE)
        need(len(data) >= self.log, "truncated")
        self.read_header()
        self.cut = self.done = None
        self.restored = {}
        self.read_log()

    def tag(self, purpose, number, data):
        return Volume.tag(self.volume.keys["freshness"], purpose, number, data)

    def read_header(self):
        copies, reason = [], None
        for at in (0, PAGE):
            data = self.data[at:at + SECTOR]
            if data[:8] != b"HKYKFRS1":
                reason = reason or "header"
            elif data[8:24] != self.tag("volume", 0, b""):
                reason = "other"
            elif data[-16:] != self.tag("header", 0, data[:-16]):
                reason = reason or "header"
            else:
                copies.append(struct.unpack("<QQQII", data[24:56]))
        need(copies, reason)
        _, self.round, sequence, session, flags = max(copies)
        self.has_redo = flags & 1 == 1
        need(self.volume.sequence >= sequence, "older")
        need(self.volume.session <= session, "behind")

    def read_log(self):
        """Sets `cut` if the next round was cut, `done` if tags of the last one may not be in their place."""
        head = self.data[self.log:][:48]
        if head[:8] != b"HKYKFLG1":
            return
        number, sequence, batch, sectors, session, pages = struct.unpack("<QQQQII", head[8:])
        end = self.log + 48 + 40 * pages + 24 * sectors
        lists = self.data[self.log + 48:end]
        if self.data[end:end + 16] != self.tag("log", number, head + lists):
            return
        entries = [struct.unpack("<Q16s16s", lists[40 * n:][:40]) for n in range(pages)]
        lists = lists[40 * pages:]
        log = {
            "round": number, "batch": batch, "session": session, "pages": entries, "images": up(end + 16, PAGE),
            "sectors": dict(struct.unpack("<Q16s", lists[24 * n:][:24]) for n in range(sectors)),
        }
        if number == self.round + 1:
            need(self.volume.sequence >= sequence, "older")
            self.cut = log
        elif number == self.round and self.has_redo:
            self.done = log

    def has_batch(self, batch):
        """Whether a batch of the volume's last session counts."""
        return self.cut is not None and (self.cut["session"], self.cut["batch"]) == (self.volume.session, batch)

    def compare_map(self, sector, bits):
        tag = self.tag("map", sector, bits)
        right = [self.data[2 * PAGE + 16 * sector:][:16]]
        if self.done:
            right = [self.done["sectors"].get(sector, right[0])]
        if self.cut:
            right.append(self.cut["sectors"].get(sector))
        need(tag in right, "older")

    def restore(self):
        """Makes the pages that the round that was cut changes."""
        volume = self.volume
        for n, (page, _, tag) in enumerate(self.cut["pages"] if self.cut else []):
            images = self.data[self.cut["images"] + 2 * n * PAGE:][:2 * PAGE]
            place = struct.pack("<QQ", self.cut["round"], page)
            if not volume.has_group(page // 4) or tag != self.tag("images", 0, place + images):
                continue
            before, after = images[:PAGE], bytearray(images[PAGE:])
            for index in range(volume.per_page):
                pair = slice(volume.pair_at(index), volume.pair_at(index) + 2 * volume.slot)
                if before[pair] != images[PAGE:][pair] and self.is_before(page, index, before, images[PAGE:]):
                    after[pair] = before[pair]
            self.restored[page] = bytes(after)

    def is_before(self, page, index, before, after):
        """Whether the round did not reach the data of a block that it changes."""
        volume = self.volume
        block = page * volume.per_page + index
        sealed = volume.recovered.get(block, (None, volume.read(volume.data + block * BLOCK, BLOCK)))[1]
        later = volume.versions(page, index, after)
        if not later or volume.opens(block, later[0], sealed):
            return False
        earlier = volume.versions(page, index, before)
        return not earlier or volume.opens(block, earlier[0], sealed)

    def page(self, page, data):
        """The bytes of a page of contexts that the storage has like this."""
        if page in self.restored:
            return self.restored[page]
        right = self.data[self.page_tags + self.tag_bytes * page:][:self.tag_bytes]
        for number, tag, _ in self.done["pages"] if self.done else []:
            right = tag[:self.tag_bytes] if number == page else right
        need(self.tag("page", page, data)[:self.tag_bytes] == right, "page")
        return data


def sectors_of(writes, stored):
    for offset, text in writes:
        for n, byte in enumerate(bytes.fromhex(text)):
            sector, at = divmod(offset + n, SECTOR)
            data = stored.setdefault(sector, bytearray(SECTOR))
            data[at] = byte
    return stored


def read(vector, failing):
    stored = sectors_of(vector["stored"], {})
    sectors_of(failing.get("writes", []), stored)
    stored = {sector: bytes(data) for sector, data in stored.items()}
    key = bytes.fromhex(vector["volume_key"])
    values = {**vector, **failing}
    ledger = None
    if "ledger" in vector:
        ledger = bytearray(vector["ledger_bytes"])
        for offset, text in vector["ledger"] + failing.get("ledger", []):
            ledger[offset:offset + len(text) // 2] = bytes.fromhex(text)
        ledger = bytes(ledger[:values["ledger_bytes"]])
    volume = Volume(stored, vector["cipher"], values["unit"], vector["segment"], values["uuid"], key, ledger)
    found = []
    for block in vector.get("examined", range(vector["blocks"])):
        try:
            data = volume.block(block)
            need(data == data[:1] * BLOCK, "a block that is not filled")
            found.append(data[0])
        except Broken:
            found.append(None)
    return found


def check(vectors):
    for vector in vectors["volumes"]:
        what = f"{vector['cipher']}, unit {vector['unit']}{', with a ledger' if 'ledger' in vector else ''}"
        need(read(vector, {}) == vector["filled_with"], what)
        for failing in vector["failing"]:
            try:
                found = read(vector, failing)
            except Broken as error:
                is_right = failing.get("damaged") and failing.get("reason", str(error)) == str(error)
                need(is_right, f"{what}: {failing['defect']} does not open: {error}")
                continue
            need(not failing.get("damaged"), f"{what}: {failing['defect']} opens")
            numbered = zip(vector.get("examined", range(vector["blocks"])), {**vector, **failing}["filled_with"])
            wanted = [None if block in failing["unverified"] else byte for block, byte in numbered]
            need(found == wanted, f"{what}: {failing['defect']}: {found}")


def self_test():
    # RFC 8452, appendix C.2.
    key, nonce = bytes([1] + [0] * 31), bytes([3] + [0] * 11)
    sealed = bytes.fromhex("c2ef328e5c71c83b843122130f7364b761e0b97427e3df28")
    need(gcm_siv_open(key, nonce, b"", sealed[:8], sealed[8:]) == bytes([1] + [0] * 7), "AES-256-GCM-SIV")
    # BLAKE3's test vectors: inputs count 0, 1, .. 250, 0, ..; key of the keyed ones.
    counted = bytes(n % 251 for n in range(2049))
    plain = "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030"
    need(blake3(None, counted, 32).hex() == plain, "BLAKE3")
    # A vector that is spoilt is noticed, with and without a ledger.
    volumes = json.loads((FOLDER / "auth.json").read_text())["volumes"]
    for volume in (volumes[0], volumes[-1]):
        volume["filled_with"][0] ^= 1
        try:
            check({"volumes": [volume]})
        except Broken:
            continue
        raise Broken("a spoilt vector passes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("file", nargs="?", default=FOLDER / "auth.json")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
    check(json.loads(pathlib.Path(arguments.file).read_text()))
    print("auth.json: all volumes as they should be")


if __name__ == "__main__":
    main()
