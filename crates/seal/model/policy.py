#!/usr/bin/env python3
"""Downgrade by exhaustion: docs/SEAL.md sections 2 and 7 as two small machines, and a relay that may put any request and any
answer of the alphabet in place of the real one. Every outcome of every pair of policies is looked at.

That a handshake completes only if both saw the same login is taken from ik.vp (case `ik`, query e); `bound=False` takes it away.
Prints nothing and exits 0 if the rules hold and every broken rule is seen to break.
"""

from collections import namedtuple
from itertools import combinations, permutations, product

SEAL, CHAP, NONE, REJECT = "Z-seal1", "CHAP", "None", "Reject"
SUITES = ("gcm", "aegis")
UNITS = (512, 65536)
PATTERNS = ("IKpsk2", "XX")
POLICIES = ("off", "offer", "require")

Request = namedtuple("Request", "methods suites unit pattern")
Answer = namedtuple("Answer", "method suite unit pattern")


def sequences(items):
    """Every list without repetition, the empty one too."""
    return [order for n in range(len(items) + 1) for some in combinations(items, n) for order in permutations(some)]


REQUESTS = [Request(*parts) for parts in product(sequences((SEAL, NONE)), sequences(SUITES), UNITS, PATTERNS)]
ANSWERS = [Answer(*parts) for parts in product((SEAL, NONE, REJECT), (None, *SUITES), (None, *UNITS), (None, *PATTERNS))]


def requests(policy, suites, unit):
    """What an honest initiator sends."""
    methods = {"off": (NONE,), "offer": (SEAL, NONE), "require": (SEAL,)}[policy]
    return Request(methods, suites, unit, "IKpsk2")


def answer(policy, able, unit, request):
    """What an honest target answers."""
    if policy != "off" and SEAL in request.methods:
        suite = next((suite for suite in request.suites if suite in able), None)
        if suite is None:
            return Answer(REJECT, None, None, None)
        return Answer(SEAL, suite, min(unit, request.unit), request.pattern)
    if policy == "require" or NONE not in request.methods:
        return Answer(REJECT, None, None, None)
    return Answer(NONE, None, None, None)


def concludes(policy, sent, got, checks=True):
    """What the initiator does at an answer: seal by it, talk plainly, or close."""
    if got.method == SEAL and SEAL in sent.methods:
        offered = got.suite in sent.suites and got.unit is not None and got.unit <= sent.unit and got.pattern == sent.pattern
        return "seal" if offered or not checks else "close"
    if policy in ("off", "offer"):
        return "plain"  # offer: by a second connection
    return "close"


def violations(bound=True, checks=True, mild=False):
    """What went wrong in some execution; `mild`: require is played as offer is, when the target does not seal."""
    wrong = set()
    sides = product(POLICIES, sequences(SUITES)[1:], UNITS, POLICIES, sequences(SUITES)[1:], UNITS)
    for i_policy, i_suites, i_unit, t_policy, t_suites, t_unit in sides:
        sent = requests(i_policy, i_suites, i_unit)
        acted = "offer" if mild and i_policy == "require" else i_policy
        # A relay that alters the login; what it makes the target choose depends on the request only.
        for seen in REQUESTS:
            chosen = answer(t_policy, t_suites, t_unit, seen)
            if t_policy == "require" and chosen.method == NONE:
                wrong.add("a target that requires talks plainly")
            for got in ANSWERS:
                end = concludes(acted, sent, got, checks)
                if end == "plain" and i_policy == "require":
                    wrong.add("an initiator that requires talks plainly")
                if end != "seal" or chosen.method != SEAL or (bound and (seen, chosen) != (sent, got)):
                    continue
                if got != chosen:
                    wrong.add("a session that the target chose otherwise")
                if seen != sent:
                    wrong.add("a session that the initiator offered otherwise")
        # A target that is the peer but not honest: it may choose only what was offered.
        for got in ANSWERS:
            if concludes(acted, sent, got, checks) == "seal":
                if got.suite not in sent.suites or got.unit is None or got.unit > sent.unit or got.pattern != sent.pattern:
                    wrong.add("a choice that was not offered")
        # Nobody interferes: both that can seal, do.
        honest = answer(t_policy, t_suites, t_unit, sent)
        able = {"off"}.isdisjoint((i_policy, t_policy)) and set(i_suites) & set(t_suites)
        if able and concludes(acted, sent, honest, checks) != "seal":
            wrong.add("no session between those who could")
    return wrong


def main():
    assert violations() == set(), violations()
    assert violations(bound=False) == {
        "a session that the target chose otherwise",
        "a session that the initiator offered otherwise",
    }
    assert violations(checks=False) == {"a choice that was not offered"}
    assert "an initiator that requires talks plainly" in violations(mild=True)


if __name__ == "__main__":
    main()
