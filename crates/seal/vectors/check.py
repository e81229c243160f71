#!/usr/bin/env python3
"""Checks seal1.json with a decoder of SEAL/1 of its own (docs/SEAL.md): Noise, ML-KEM-768, AEGIS and records in plain Python,
X25519, AES-GCM and ChaCha20-Poly1305 by `cryptography` (Debian: python3-cryptography).

    check.py [--self-test] [FILE]

Every vector must open and every failing one must fail where it says. With --self-test the primitives are first held against
published numbers, and the check against vectors that were spoilt. It is slow and not constant-time: not for secrets.
"""

import argparse
import copy
import functools
import hashlib
import hmac
import json
import pathlib
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

FOLDER = pathlib.Path(__file__).resolve().parent


class Broken(Exception):
    """What a peer sent is not what it should be."""


def need(condition, why):
    if not condition:
        raise Broken(why)


# HKDF (RFC 5869) and X25519 (RFC 7748).

def extract(salt, material):
    return hmac.new(salt, material, hashlib.sha256).digest()


def expand(secret, label, size):
    out, block, n = b"", b"", 1
    while len(out) < size:
        block = hmac.new(secret, block + label + bytes([n]), hashlib.sha256).digest()
        out, n = out + block, n + 1
    return out[:size]


def public(private):
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def dh(private, peer):
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:  # the library refuses a result of zero, and Noise does not mind
        return bytes(32)


# ML-KEM-768 (FIPS 203).

Q, K, ETA, DU, DV = 3329, 3, 2, 10, 4


def brv7(n):
    return int(f"{n:07b}"[::-1], 2)


ZETAS = [pow(17, brv7(n), Q) for n in range(128)]
GAMMAS = [pow(17, 2 * brv7(n) + 1, Q) for n in range(128)]


def ntt(f):
    f, n, size = list(f), 1, 128
    while size >= 2:
        for start in range(0, 256, 2 * size):
            zeta, n = ZETAS[n], n + 1
            for j in range(start, start + size):
                t = zeta * f[j + size] % Q
                f[j + size], f[j] = (f[j] - t) % Q, (f[j] + t) % Q
        size //= 2
    return f


def inverse_ntt(f):
    f, n, size = list(f), 127, 2
    while size <= 128:
        for start in range(0, 256, 2 * size):
            zeta, n = ZETAS[n], n - 1
            for j in range(start, start + size):
                t = f[j]
                f[j], f[j + size] = (t + f[j + size]) % Q, zeta * (f[j + size] - t) % Q
        size *= 2
    return [3303 * x % Q for x in f]


def multiply(f, g):
    out = []
    for n in range(128):
        a0, a1, b0, b1 = f[2 * n], f[2 * n + 1], g[2 * n], g[2 * n + 1]
        out += [(a0 * b0 + a1 * b1 * GAMMAS[n]) % Q, (a0 * b1 + a1 * b0) % Q]
    return out


def add(*polynomials):
    return [sum(x) % Q for x in zip(*polynomials)]


def dot(row, column):
    return add(*(multiply(f, g) for f, g in zip(row, column)))


def encode(bits, f):
    return sum(x << (bits * n) for n, x in enumerate(f)).to_bytes(32 * bits, "little")


def decode(bits, data):
    number = int.from_bytes(data, "little")
    return [(number >> (bits * n)) & ((1 << bits) - 1) for n in range(256)]


def compress(bits, f):
    return [((x << (bits + 1)) + Q) // (2 * Q) % (1 << bits) for x in f]


def decompress(bits, f):
    return [(x * Q * 2 + (1 << bits)) >> (bits + 1) for x in f]


def sample_ntt(seed):
    data, out, at = hashlib.shake_128(seed).digest(2016), [], 0
    while len(out) < 256:
        a, b, c = data[at:at + 3]
        at += 3
        out += [x for x in (a + 256 * (b % 16), b // 16 + 16 * c) if x < Q]
    return out[:256]


def noise_poly(seed, n):
    number = int.from_bytes(hashlib.shake_256(seed + bytes([n])).digest(64 * ETA), "little")
    bits = [(number >> n) & 1 for n in range(512 * ETA)]
    pairs = (bits[2 * ETA * n:2 * ETA * (n + 1)] for n in range(256))
    return [(sum(pair[:ETA]) - sum(pair[ETA:])) % Q for pair in pairs]


def matrix(rho):
    return [[sample_ntt(rho + bytes([j, i])) for j in range(K)] for i in range(K)]


@functools.cache
def kem_keys(seed):
    """The encapsulation key and the secret vector of a seed d || z."""
    grown = hashlib.sha3_512(seed[:32] + bytes([K])).digest()
    rho, sigma = grown[:32], grown[32:]
    s = [ntt(noise_poly(sigma, n)) for n in range(K)]
    e = [ntt(noise_poly(sigma, n + K)) for n in range(K)]
    t = [add(dot(row, s), e[n]) for n, row in enumerate(matrix(rho))]
    return b"".join(encode(12, f) for f in t) + rho, s


def kem_encrypt(ek, message, coins):
    need(len(ek) == 1184, "length of ek")
    t = [decode(12, ek[384 * n:384 * (n + 1)]) for n in range(K)]
    need(all(x < Q for f in t for x in f), "ek is not reduced")
    a = matrix(ek[384 * K:])
    y = [ntt(noise_poly(coins, n)) for n in range(K)]
    columns = [[a[i][j] for i in range(K)] for j in range(K)]
    u = [add(inverse_ntt(dot(column, y)), noise_poly(coins, K + n)) for n, column in enumerate(columns)]
    v = add(inverse_ntt(dot(t, y)), noise_poly(coins, 2 * K), decompress(1, decode(1, message)))
    return b"".join(encode(DU, compress(DU, f)) for f in u) + encode(DV, compress(DV, v))


@functools.cache
def encapsulate(ek, m):
    need(len(ek) == 1184, "length of ek")
    grown = hashlib.sha3_512(m + hashlib.sha3_256(ek).digest()).digest()
    return grown[:32], kem_encrypt(ek, m, grown[32:])


@functools.cache
def decapsulate(seed, ct):
    ek, s = kem_keys(seed)
    u = [decompress(DU, decode(DU, ct[320 * n:320 * (n + 1)])) for n in range(K)]
    v = decompress(DV, decode(DV, ct[320 * K:]))
    inner = inverse_ntt(dot(s, [ntt(f) for f in u]))
    message = encode(1, compress(1, [(x - y) % Q for x, y in zip(v, inner)]))
    shared, again = encapsulate(ek, message)
    return shared if again == ct else hashlib.shake_256(seed[32:] + ct).digest(32)


# AEGIS-256X4 and AEGIS-128X2 (RFC 10032). A block is a number; a row is one block for each lane.

def aes_tables():
    def times(a, b):
        product = 0
        while b:
            product, a, b = product ^ (a if b & 1 else 0), (a << 1) ^ (0x11B if a & 0x80 else 0), b >> 1
        return product

    sbox = []
    for x in range(256):
        inverse = next((y for y in range(256) if times(x, y) == 1), 0)
        bits = inverse | inverse << 8
        sbox.append((inverse ^ (bits >> 4) ^ (bits >> 5) ^ (bits >> 6) ^ (bits >> 7)) & 0xFF ^ 0x63)
    column = [(2, 1, 1, 3), (3, 2, 1, 1), (1, 3, 2, 1), (1, 1, 3, 2)]
    return [[bytes(times(s, c) for c in column[row]) for s in sbox] for row in range(4)]


TABLES = aes_tables()


def aes_round(block, key):
    data, out = block.to_bytes(16, "big"), b""
    for n in range(4):
        parts = (TABLES[row][data[(4 * n + 5 * row) % 16]] for row in range(4))
        out += bytes(a ^ b ^ c ^ d for a, b, c, d in zip(*parts))
    return int.from_bytes(out, "big") ^ key


def blocks(data):
    return [int.from_bytes(data[n:n + 16], "big") for n in range(0, len(data), 16)]


def joined(row):
    return b"".join(block.to_bytes(16, "big") for block in row)


def xor(*rows):
    out = rows[0]
    for row in rows[1:]:
        out = [a ^ b for a, b in zip(out, row)]
    return out


def both(left, right):
    return [a & b for a, b in zip(left, right)]


C0, C1 = 0x000101020305080D1522375990E97962, 0xDB3D18556DC22FF12011314273B528DD


class Aegis:
    """The frame: rows of the state, where a message enters, and which rows make the key stream differ."""

    def context(self, *rows):
        for row in rows:
            for lane in range(self.lanes):
                self.state[row][lane] ^= (lane << 8 | (self.lanes - 1)) << 112

    def update(self, *message):
        old = self.state
        enter = {self.enters[n]: row for n, row in enumerate(message)}
        self.state = [
            [aes_round(a, b) for a, b in zip(old[n - 1], xor(row, enter[n]) if n in enter else row)]
            for n, row in enumerate(old)
        ]

    def rows(self, data):
        numbers = blocks(data)
        return [numbers[n:n + self.lanes] for n in range(0, len(numbers), self.lanes)]

    def absorb(self, data):
        for at in range(0, len(data), self.rate):
            self.update(*self.rows(data[at:at + self.rate].ljust(self.rate, b"\0")))

    def open(self, aad, sealed, tag):
        self.absorb(aad)
        plain = b""
        for at in range(0, len(sealed), self.rate):
            part = sealed[at:at + self.rate]
            stream = b"".join(joined(row) for row in self.stream())
            opened = bytes(a ^ b for a, b in zip(part, stream))
            self.update(*self.rows(opened.ljust(self.rate, b"\0")))
            plain += opened
        lengths = int.from_bytes((8 * len(aad)).to_bytes(8, "little") + (8 * len(sealed)).to_bytes(8, "little"), "big")
        last = xor(self.state[self.counted], [lengths] * self.lanes)
        for _ in range(7):
            self.update(*[last] * len(self.enters))
        whole = 0
        for row in self.state[:self.tagged]:
            for block in row:
                whole ^= block
        need(whole.to_bytes(16, "big") == tag, "tag")
        return plain


class Aegis256X4(Aegis):
    lanes, rate, enters, counted, tagged = 4, 64, (0,), 3, 6

    def __init__(self, key, nonce):
        (k0, k1), (n0, n1) = blocks(key), blocks(nonce)
        self.state = [[block] * 4 for block in (k0 ^ n0, k1 ^ n1, C1, C0, k0 ^ C0, k1 ^ C1)]
        for _ in range(4):
            for message in (k0, k1, k0 ^ n0, k1 ^ n1):
                self.context(3, 5)
                self.update([message] * 4)

    def stream(self):
        s = self.state
        return [xor(s[1], s[4], s[5], both(s[2], s[3]))]


class Aegis128X2(Aegis):
    lanes, rate, enters, counted, tagged = 2, 64, (0, 4), 2, 7

    def __init__(self, key, nonce):
        (k,), (n,) = blocks(key), blocks(nonce)
        self.state = [[block] * 2 for block in (k ^ n, C1, C0, C1, k ^ n, k ^ C0, k ^ C1, k ^ C0)]
        for _ in range(10):
            self.context(3, 7)
            self.update([n] * 2, [k] * 2)

    def stream(self):
        s = self.state
        return [xor(s[6], s[1], both(s[2], s[3])), xor(s[2], s[5], both(s[6], s[7]))]


# The suites (section 4).

def by_library(cipher):
    def opened(key, nonce, aad, sealed, tag):
        try:
            return cipher(key).decrypt(nonce, sealed + tag, aad)
        except InvalidTag:
            raise Broken("tag") from None
    return opened


SUITES = {  # length of key, of nonce, how to open
    "AES-256-GCM": (32, 12, by_library(AESGCM)),
    "ChaCha20-Poly1305": (32, 12, by_library(ChaCha20Poly1305)),
    "AEGIS-256X4": (32, 32, lambda key, nonce, aad, sealed, tag: Aegis256X4(key, nonce).open(aad, sealed, tag)),
    "AEGIS-128X2": (16, 16, lambda key, nonce, aad, sealed, tag: Aegis128X2(key, nonce).open(aad, sealed, tag)),
}


# Noise (revision 34) and the handshake (section 3).

class Symmetric:
    def __init__(self, name, prologue):
        self.hash = name.ljust(32, b"\0") if len(name) <= 32 else hashlib.sha256(name).digest()
        self.chain, self.key = self.hash, None
        self.mix_hash(prologue)

    def mix_hash(self, data):
        self.hash = hashlib.sha256(self.hash + data).digest()

    def derive(self, material, outputs):
        grown = expand(extract(self.chain, material), b"", 32 * outputs)
        return [grown[32 * n:32 * (n + 1)] for n in range(outputs)]

    def mix_key(self, material):
        self.chain, self.key = self.derive(material, 2)
        self.nonce = 0

    def mix_key_and_hash(self, material):
        self.chain, mixed, key = self.derive(material, 3)
        self.mix_hash(mixed)
        self.key, self.nonce = key, 0

    def next_nonce(self):
        self.nonce += 1
        return bytes(4) + (self.nonce - 1).to_bytes(8, "little")

    def seal(self, plain):
        sealed = ChaCha20Poly1305(self.key).encrypt(self.next_nonce(), plain, self.hash) if self.key else plain
        self.mix_hash(sealed)
        return sealed

    def open(self, sealed):
        plain = sealed
        if self.key:
            need(len(sealed) >= 16, "length of a Noise field")
            plain = SUITES["ChaCha20-Poly1305"][2](self.key, self.next_nonce(), self.hash, sealed[:-16], sealed[-16:])
        self.mix_hash(sealed)
        return plain


IK, XX = b"Noise_IKpsk2_25519_ChaChaPoly_SHA256", b"Noise_XX_25519_ChaChaPoly_SHA256"


def psk_of(shared, pair):
    return expand(extract(bytes(32), shared + pair), b"hikyaku seal1 psk", 32)


def mac_of(target, prologue, message):
    return hmac.new(hashlib.sha256(b"hikyaku seal1 mac" + target).digest(), prologue + message, hashlib.sha256).digest()[:16]


class Handshake:
    """Both sides of one handshake, from a vector's fields."""

    def __init__(self, vector):
        for name in ("prologue", "initiator_private", "target_private", "initiator_ephemeral", "kem_seed",
                     "target_ephemeral", "kem_m"):
            setattr(self, name, bytes.fromhex(vector[name]))
        self.psk = bytes.fromhex(vector["psk"] or "")
        self.suite = vector["suite"]

    def start(self):
        target, e = public(self.target_private), self.initiator_ephemeral
        noise = Symmetric(IK, self.prologue)
        noise.mix_hash(target)
        message = public(e)
        noise.mix_hash(message)
        noise.mix_key(message)
        noise.mix_key(dh(e, target))
        message += noise.seal(public(self.initiator_private))
        noise.mix_key(dh(self.initiator_private, target))
        message += noise.seal(kem_keys(self.kem_seed)[0])
        return noise, mac_of(target, self.prologue, message) + message

    def finish(self, noise, answer):
        need(len(answer) == 1088 + 48, "length of the answer")
        ct, e, payload = answer[:1088], answer[1088:1120], answer[1120:]
        noise.mix_hash(e)
        noise.mix_key(e)
        noise.mix_key(dh(self.initiator_ephemeral, e))
        noise.mix_key(dh(self.initiator_private, e))
        noise.mix_key_and_hash(psk_of(decapsulate(self.kem_seed, ct), self.psk))
        need(noise.open(payload) == b"", "payload of the answer")
        return secrets(noise)

    def read(self, flight):
        need(len(flight) == 16 + 32 + 48 + 1200, "length of mac and message 1")
        mac, message = flight[:16], flight[16:]
        need(hmac.compare_digest(mac, mac_of(public(self.target_private), self.prologue, message)), "mac")
        noise, e = Symmetric(IK, self.prologue), message[:32]
        noise.mix_hash(public(self.target_private))
        noise.mix_hash(e)
        noise.mix_key(e)
        noise.mix_key(dh(self.target_private, e))
        s = noise.open(message[32:80])
        noise.mix_key(dh(self.target_private, s))
        ek = noise.open(message[80:])
        shared, ct = encapsulate(ek, self.kem_m)
        return noise, e, s, shared, ct

    def answer(self, message):
        noise, initiator_e, s, shared, ct = self.read(message)
        need(s == public(self.initiator_private), "whose message 1 it is")
        e = self.target_ephemeral
        noise.mix_hash(public(e))
        noise.mix_key(public(e))
        noise.mix_key(dh(e, initiator_e))
        noise.mix_key(dh(e, s))
        noise.mix_key_and_hash(psk_of(shared, self.psk))
        return ct + public(e) + noise.seal(b""), secrets(noise)


def secrets(noise):
    """S[i, 0] and S[t, 0]."""
    secret = extract(noise.hash, b"".join(noise.derive(b"", 2)))
    return {side: expand(secret, b"hikyaku seal1 " + side.encode(), 32) for side in ("initiator", "target")}


def enquiry_finish(ephemeral, prologue, message):
    need(len(message) == 96, "length of message 2")
    noise, e = Symmetric(XX, prologue), message[:32]
    noise.mix_hash(public(ephemeral))
    noise.mix_hash(b"")
    noise.mix_hash(e)
    noise.mix_key(dh(ephemeral, e))
    s = noise.open(message[32:80])
    noise.mix_key(dh(ephemeral, s))
    need(noise.open(message[80:]) == b"", "payload of message 2")
    return s


# Records (section 5).

def next_secret(secret, fresh):
    return extract(expand(secret, b"hikyaku seal1 next", 32), fresh)


class Exchange:
    """Both sides of one exchange (section 6), from a vector's fields."""

    def __init__(self, vector):
        for name in ("initiator_ephemeral", "kem_seed", "target_ephemeral", "kem_m"):
            setattr(self, name, bytes.fromhex(vector[name]))

    def fresh(self, ephemeral, e, shared, offer, answer):
        product = dh(ephemeral, e)
        need(any(product), "X25519 gives zero")
        return product + shared + hashlib.sha256(offer + answer).digest()

    def offer(self):
        return public(self.initiator_ephemeral) + kem_keys(self.kem_seed)[0]

    def answer(self, offer):
        shared, ct = encapsulate(offer[32:], self.kem_m)
        answer = public(self.target_ephemeral) + ct
        return answer, self.fresh(self.target_ephemeral, offer[:32], shared, offer, answer)

    def finish(self, answer):
        shared = decapsulate(self.kem_seed, answer[32:])
        return self.fresh(self.initiator_ephemeral, answer[:32], shared, self.offer(), answer)


class Key:
    def __init__(self, suite, secret, use):
        key_size, nonce_size, self.opened = SUITES[suite]
        label = f"hikyaku seal1 {suite} {use}".encode()
        self.key, self.iv = expand(secret, label + b" key", key_size), expand(secret, label + b" iv", nonce_size)

    def open(self, number, aad, sealed, tag):
        last = int.from_bytes(self.iv[-8:], "big") ^ number
        return self.opened(self.key, self.iv[:-8] + last.to_bytes(8, "big"), aad, sealed, tag)


PDU, OFFER, ANSWER = 0, 1, 2
SIZES = {PDU: range(48, 1965), OFFER: [1216], ANSWER: [1120]}


class Opener:
    """What receives the records of one side: `following` is the secret of the generation that may come, or must."""

    def __init__(self, suite, secret, sender, exchanges):
        self.suite, self.secret, self.generation, self.counter, self.data = suite, secret, 0, 0, {}
        self.sender, self.exchanges = sender, iter(exchanges)
        self.following, self.must_follow = None, False
        self.keys()

    def keys(self):
        self.head = Key(self.suite, self.secret, "head")
        self.data = {g: key for g, key in self.data.items() if g == self.generation - 1}
        self.data[self.generation] = Key(self.suite, self.secret, "data")

    def open_head(self, prefix, sealed):
        """Kind and head; a control record is for `control`."""
        version, generation, last = prefix[0], prefix[1], int.from_bytes(prefix[2:], "big")
        kind, size = last >> 11, last & 0x7FF
        need(version == 1, "version")
        need(kind in SIZES, "kind")
        need(size in SIZES[kind], "length of the head")
        need(len(sealed) == size + 16, "length of the sealed head")
        key = self.head
        follows = self.following is not None and generation == (self.generation + 1) % 256
        if follows:
            key = Key(self.suite, self.following, "head")
        else:
            need(generation == self.generation % 256 and not self.must_follow, "generation")
        head = key.open(self.counter, prefix, sealed[:-16], sealed[-16:])
        if follows:
            self.generation, self.secret = self.generation + 1, self.following
            self.following, self.must_follow = None, False
            self.keys()
        self.counter += 1
        if kind != PDU:
            self.data = {self.generation: self.data[self.generation]}
            return kind, head
        cut = 48 + 4 * head[4]
        need(cut <= len(head), "TotalAHSLength")
        need((len(head) - cut) % 28 == 0 and (len(head) - cut) // 28 <= 32, "descriptors")
        for seal_id, _, _ in self.descriptors(head):
            need(seal_id >> 48 in self.data, "generation of a seal-id")
        return kind, head

    @staticmethod
    def descriptors(head):
        starts = range(48 + 4 * head[4], len(head), 28)
        return [(int.from_bytes(head[n:n + 8], "big"), int.from_bytes(head[n + 8:n + 12], "big"), head[n + 12:n + 28])
                for n in starts]

    def control(self, kind, message, alone):
        """Acts on a control record; there was no offer before an answer that is alone."""
        need(kind == (OFFER if self.sender == "initiator" else ANSWER), "who sends a control record")
        need(self.following is None, "one exchange at a time")
        need(kind == OFFER or not alone, "an answer to no offer")
        exchange = next(self.exchanges)
        if kind == OFFER:
            fresh = exchange.answer(message)[1]
        else:
            fresh, self.must_follow = exchange.finish(message), True
        self.following = next_secret(self.secret, fresh)

    def open_unit(self, descriptor, unit):
        seal_id, size, tag = descriptor
        need(size == len(unit), "length of a unit")
        return self.data[seal_id >> 48].open(seal_id, b"", unit, tag)


# The check.

class Disagreement(Exception):
    """A vector is not what this decoder makes of it."""


def same(ours, theirs, what):
    if ours != theirs:
        raise Disagreement(f"{what}: {ours!r} here, {theirs!r} there")


def refused(what, action):
    try:
        action()
    except Broken:
        return
    raise Disagreement(f"{what}: was not refused")


def unhex(values):
    return [bytes.fromhex(value) for value in values]


def open_record(opener, record):
    prefix, head = unhex([record["prefix"], record["head"]])
    kind, head = opener.open_head(prefix, head)
    if kind != PDU:
        opener.control(kind, head, record.get("alone", False))
        return kind, head, []
    descriptors = opener.descriptors(head)
    same(len(descriptors), len(record["units"]), "number of units")
    return kind, head, [opener.open_unit(*pair) for pair in zip(descriptors, unhex(record["units"]))]


def check_handshake(vector):
    handshake, name = Handshake(vector), vector["name"]
    for side in ("initiator", "target"):
        same(public(getattr(handshake, f"{side}_private")).hex(), vector[f"{side}_public"], f"{name}: {side}")
    noise, message = handshake.start()
    same(message.hex(), vector["message1"], f"{name}: message 1")
    answer, theirs = handshake.answer(message)
    same(answer.hex(), vector["answer"], f"{name}: answer")
    ours = handshake.finish(noise, answer)
    same(ours, theirs, f"{name}: keys of both sides")
    exchanges, fresh = [Exchange(each) for each in vector["exchanges"]], []
    for exchange, given in zip(exchanges, vector["exchanges"]):
        offer = exchange.offer()
        same(offer.hex(), given["offer"], f"{name}: offer")
        answer, theirs = exchange.answer(offer)
        same(answer.hex(), given["answer"], f"{name}: answer of an exchange")
        same(exchange.finish(answer), theirs, f"{name}: what both sides get of an exchange")
        fresh.append(theirs)
    for side, secret in ours.items():
        same(len(vector["generations"][side]), len(fresh) + 1, f"{name}: number of generations")
        for g, generation in enumerate(vector["generations"][side]):
            same(secret.hex(), generation["secret"], f"{name}: S[{side}, {g}]")
            for use in ("head", "data"):
                key = Key(handshake.suite, secret, use)
                same(key.key.hex(), generation[f"{use}_key"], f"{name}: {side} {g} {use} key")
                same(key.iv.hex(), generation[f"{use}_iv"], f"{name}: {side} {g} {use} iv")
            if g < len(fresh):
                secret = next_secret(secret, fresh[g])
    return ours, exchanges


def check_enquiry(vector):
    e, prologue, message = unhex([vector["initiator_ephemeral"], vector["prologue"], vector["message2"]])
    same(public(e).hex(), vector["message1"], "enquiry: message 1")
    same(enquiry_finish(e, prologue, message).hex(), vector["target_public"], "enquiry: who answered")


def check_failing_handshake(vectors, failing):
    vector = next(h for h in vectors["handshakes"] if h["name"] == failing["handshake"])
    handshake = Handshake({**vector, **failing["change"]})
    received = bytes.fromhex(failing["bytes"])
    enquiry = vectors["enquiries"][0]
    actions = {
        "message1": lambda: handshake.read(received),
        "answer": lambda: handshake.finish(handshake.start()[0], received),
        "message2": lambda: enquiry_finish(*unhex([enquiry["initiator_ephemeral"], enquiry["prologue"]]), received),
    }
    refused(failing["defect"], actions[failing["message"]])


def check_failing_stream(opener, stream):
    *before, last = stream["records"]
    for record in before:
        open_record(opener, record)
    what = f"{stream['handshake']}: {stream['defect']}"
    prefix, head = unhex([last["prefix"], last["head"]])
    if stream["fails"] == "head":
        refused(what, lambda: opener.open_head(prefix, head))
        return
    kind, head = opener.open_head(prefix, head)
    if stream["fails"] == "control":
        same(kind != PDU, True, f"{what}: a control record")
        refused(what, lambda: opener.control(kind, head, last.get("alone", False)))
    else:
        pairs = list(zip(opener.descriptors(head), unhex(last["units"])))
        refused(what, lambda: [opener.open_unit(*pair) for pair in pairs])


def check(vectors):
    """Checks all; returns how many of each kind."""
    same(vectors["protocol"], "SEAL/1", "protocol")
    known = {h["name"]: (h["suite"], *check_handshake(h)) for h in vectors["handshakes"]}

    def opener(stream):
        suite, start, exchanges = known[stream["handshake"]]
        return Opener(suite, start[stream["from"]], stream["from"], exchanges)

    for enquiry in vectors["enquiries"]:
        check_enquiry(enquiry)
    for stream in vectors["streams"]:
        receiver = opener(stream)
        for n, record in enumerate(stream["records"]):
            kind, head, plains = open_record(receiver, record)
            if kind != PDU:
                same(head.hex(), record["message"], f"{stream['handshake']}: message of record {n}")
                continue
            same(head[:48 + 4 * head[4]].hex(), record["header"], f"{stream['handshake']}: header of record {n}")
            same([plain.hex() for plain in plains], record["plains"], f"{stream['handshake']}: units of record {n}")
    for stream in vectors["failing_streams"]:
        check_failing_stream(opener(stream), stream)
    for failing in vectors["failing_handshakes"]:
        check_failing_handshake(vectors, failing)
    return {kind: len(value) for kind, value in vectors.items() if isinstance(value, list)}


def self_test(vectors):
    # RFC 5869 A.1, RFC 7748 6.1.
    prk = extract(bytes(range(13)), b"\x0b" * 22)
    same(expand(prk, bytes(range(0xF0, 0xFA)), 42).hex()[:16], "3cb25f25faacd57a", "HKDF")
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    same(public(alice).hex(), "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a", "X25519")
    # ML-KEM-768: the first official seed, with the digests of what Wycheproof says comes of it.
    seed, m = unhex(["7c9935a0b07694aa0c6d10e4db6b1add2fd81a25ccb148032dcd739936737f2d"
                     "8626ed79d451140800e03b59b956f8210e556067407d13dc90fa9e8b872bfb8f",
                     "147c03f7a5bebba406c8fae1874d7f13c80efe79a3a9a874cc09fe76f6997615"])
    ek = kem_keys(seed)[0]
    shared, ct = encapsulate(ek, m)
    digests = [hashlib.sha256(data).hexdigest() for data in (ek, ct)]
    same(digests, ["86adbca81f4fee893e2fb58fb98aa2fe188f501fed268d7f4056f8c05c4e53c4",
                   "36829a2f35cbf4deb62c0a12a15c22dae9f8d2c252566fc24f88abe805cb575e"], "ML-KEM-768")
    same(shared.hex(), "e7184a0975ee3470878d2d159ec83129c8aec253d4ee17b4810311d198cd0368", "ML-KEM-768")
    same(decapsulate(seed, ct), shared, "ML-KEM-768: decapsulation")
    for test in json.loads((FOLDER / "aegis.json").read_text())["tests"]:
        key, nonce, aad, sealed, tag = unhex(test[name] for name in ("key", "nonce", "aad", "sealed", "tag"))
        same(SUITES[test["suite"]][2](key, nonce, aad, sealed, tag).hex(), test["plain"], test["suite"])
        refused(test["suite"], lambda: SUITES[test["suite"]][2](key, nonce, aad + b"\0", sealed, tag))
    # What is spoilt must be noticed.
    spoilers = {
        "a unit": lambda v: v["streams"][0]["records"][1]["plains"].reverse(),
        "a header": lambda v: v["streams"][3]["records"][0].update(header="00"),
        "a key": lambda v: v["handshakes"][2]["generations"]["target"][2].update(data_iv="00" * 16),
        "an answer": lambda v: v["handshakes"][0].update(answer=v["handshakes"][1]["answer"]),
        "an exchange": lambda v: v["handshakes"][3]["exchanges"][1].update(
            answer=v["handshakes"][2]["exchanges"][1]["answer"]),
        "an offer": lambda v: v["streams"][4]["records"][2].update(
            message=v["handshakes"][1]["exchanges"][0]["offer"]),
        "a failing head that is good": lambda v: v["failing_streams"].append(
            {**v["streams"][0], "defect": "none", "fails": "head"}),
        "a failing unit that is good": lambda v: v["failing_streams"].append(
            {**v["streams"][0], "defect": "none", "fails": "unit"}),
        "a failing handshake that is good": lambda v: v["failing_handshakes"].append(
            {"defect": "none", "handshake": v["handshakes"][0]["name"], "message": "answer", "change": {},
             "bytes": v["handshakes"][0]["answer"]}),
    }
    for name, spoil in spoilers.items():
        spoilt = copy.deepcopy(vectors)
        spoil(spoilt)
        try:
            check(spoilt)
        except (Disagreement, Broken):
            continue
        raise Disagreement(f"self-test: {name} was spoilt, and nobody noticed")
    print(f"self-test: {len(spoilers)} spoilt vectors noticed, primitives agree with published numbers")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=FOLDER / "seal1.json")
    arguments = parser.parse_args()
    vectors = json.loads(arguments.file.read_text())
    try:
        if arguments.self_test:
            self_test(vectors)
        counts = check(vectors)
    except (Disagreement, Broken) as e:
        sys.exit(f"check.py: {arguments.file}: {e}")
    print(f"{arguments.file.name}: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()) + ": all as they should be")


if __name__ == "__main__":
    main()
