#!/usr/bin/env python3
"""Checks auth.json with a reader of authenticated volumes of its own (docs/VOLUME.md section 2): BLAKE3, POLYVAL and the order
of versions in plain Python, AES by `cryptography` (Debian: python3-cryptography), AEGIS and HKDF by ../../seal/vectors/check.py.

    auth.py [--self-test] [FILE]

Every volume must read as it says, every failing one must fail where it says. With --self-test BLAKE3 and AES-GCM-SIV are first
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
    """A volume, opened for reading. Raises Broken if the superblock or the map does not verify."""

    def __init__(self, stored, name, unit, segment, uuid, key):
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
        self.keys = {purpose: self.key(purpose, parameters) for purpose in ("data", "unwritten", "meta")}
        self.read_map()
        self.recovered = self.read_journal() if unit == 512 and not self.is_closed else {}

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
        self.blocks, self.capacity, self.live = struct.unpack("<QQQ", data[16:40])
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
            self.bits += data[:496]

    def read_journal(self):
        """Data and context of blocks that a crash may have torn, of the last batch and the one before."""
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
        for batch, at, count, data in sorted(pages, key=lambda page: -page[0]):
            for n in range(count if batch + 1 >= last else 0):
                entry = data[24 + n * (8 + self.slot):][:8 + self.slot]
                block = struct.unpack("<Q", entry[:8])[0]
                try:
                    plain = self.open(block, entry[8:], self.read(at + n * BLOCK, BLOCK))
                except Broken:
                    continue
                recovered.setdefault(block, plain)
        return recovered

    def open(self, block, slot, sealed):
        generation, nonce, tag = slot[:4], slot[4:-16], slot[-16:]
        return self.opener(self.keys["data"], nonce, generation, struct.pack("<Q", block) + generation, sealed, tag)

    def block(self, block):
        group = block // self.per_group
        if not self.bits[group // 8] >> group % 8 & 1:
            return bytes(BLOCK)
        if block in self.recovered:
            return self.recovered[block]
        page, index = divmod(block, self.per_page)
        at = self.contexts + page * PAGE + index // self.per_sector * SECTOR + index % self.per_sector * 2 * self.slot
        pair = self.read(at, 2 * self.slot)
        slots = [pair[:self.slot], pair[self.slot:]]
        tags = blake3(self.keys["unwritten"], struct.pack("<Q", page), 16 * self.per_page)
        if pair == bytes(self.slot - 16) + tags[16 * index:][:16] + bytes(self.slot):
            return bytes(BLOCK)
        versions = []
        for slot in slots:
            generation = struct.unpack("<I", slot[:4])[0]
            if generation >> 2 and generation & 3 < 3:
                versions.append((generation >> 2, generation & 3, slot))
            else:
                need(not any(slot), "slot")
        need(versions, "context")
        sealed = self.read(self.data + block * BLOCK, BLOCK)
        if len(versions) == 2:
            (s0, t0, _), (s1, t1, _) = versions
            if s1 > s0 or (s1 == s0 and t1 == (t0 + 1) % 3):
                versions.reverse()
            later = versions[0][0]
            if later <= self.session and not any(first <= later <= last for first, last in self.unclean):
                versions.pop()
        for version in versions[:-1]:
            try:
                return self.open(block, version[2], sealed)
            except Broken:
                pass
        return self.open(block, versions[-1][2], sealed)


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
    volume = Volume(stored, vector["cipher"], values["unit"], vector["segment"], values["uuid"], key)
    found = []
    for block in range(vector["blocks"]):
        try:
            data = volume.block(block)
            need(data == data[:1] * BLOCK, "a block that is not filled")
            found.append(data[0])
        except Broken:
            found.append(None)
    return found


def check(vectors):
    for vector in vectors["volumes"]:
        what = f"{vector['cipher']}, unit {vector['unit']}"
        need(read(vector, {}) == vector["filled_with"], what)
        for failing in vector["failing"]:
            try:
                found = read(vector, failing)
            except Broken:
                need(failing.get("damaged"), f"{what}: {failing['defect']} does not open")
                continue
            need(not failing.get("damaged"), f"{what}: {failing['defect']} opens")
            wanted = [None if n in failing["unverified"] else byte for n, byte in enumerate(vector["filled_with"])]
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
    # A vector that is spoilt is noticed.
    vectors = json.loads((FOLDER / "auth.json").read_text())
    vectors["volumes"][0]["filled_with"][0] ^= 1
    try:
        check(vectors)
    except Broken:
        return
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
