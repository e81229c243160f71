#!/usr/bin/env python3
"""The steps of docs/SEAL.md section 6 by exhaustion: both sides as small machines, a queue of records each way, and every order
in which they may send and receive. Generations are numbers here; what is in an exchange's secrets is fresh.vp's matter.

Searched in every state: what an honest side may send is accepted, its keys are there, and both can go on to the last generation;
what a peer with all keys may send instead never makes a receiver go back or use a unit that lags two steps.
Prints nothing and exits 0 if the rules hold and every broken rule is seen to break. The limits in seconds are not modelled.
"""

from collections import deque, namedtuple

LAST = 2  # generations 0, 1, 2: two exchanges, the second of them after a step
IN_FLIGHT = 2  # records in a queue

# kind: p (a PDU without data), u (a piece of a unit), offer, answer. unit: the generation of its seal-id.
Record = namedtuple("Record", "kind generation unit begins ends", defaults=(None, False, False))

# gen: the newest generation whose keys are there. sends: that of the next record. asked: an offer is on its way to an answer.
# sending, receiving: the generation of the unit that has begun and not ended. old: the data key of gen - 1 is still there, to
# receive with. both: the target's two generations between its answer and the first record of the new one.
Side = namedtuple("Side", "gen sends asked sending receiving old both")
State = namedtuple("State", "initiator target out back")
START = State(Side(0, 0, False, None, None, False, False), Side(0, 0, False, None, None, False, False), (), ())

RULES = frozenset(
    (
        "one exchange at a time",
        "the initiator drains before its offer",
        "the target drains before its answer",
        "no old unit begins after the offer",
        "units lag one step",
        "the initiator steps",
        "old units open after a step",
        "the target takes both",
        "the target goes on to the new one",
        "an answer needs an offer",
        "an old offer is refused",
        "the initiator takes one",
    )
)


class Refused(Exception):
    pass


def sends(state, who, rules):
    """Every record that this side may send now, with the state behind it."""
    side = state.initiator if who == "i" else state.target
    queue = state.out if who == "i" else state.back
    if len(queue) >= IN_FLIGHT:
        return

    def after(record, **changes):
        changed = side._replace(**changes)
        if who == "i":
            return record, state._replace(initiator=changed, out=queue + (record,))
        return record, state._replace(target=changed, back=queue + (record,))

    g = side.sends
    yield after(Record("p", g))
    # Units: one at a time. What was sealed ahead may be of an earlier generation.
    if side.sending is not None:
        for ends in (False, True):
            yield after(Record("u", g, side.sending, False, ends), sending=None if ends else side.sending)
    else:
        lag = 1 if "units lag one step" in rules else 2
        for unit in range(max(0, g - lag), g + 1):
            if side.asked and unit < g and "no old unit begins after the offer" in rules:
                continue
            for ends in (False, True):
                yield after(Record("u", g, unit, True, ends), sending=None if ends else unit)
    drained = side.sending is None or side.sending >= g
    if who == "i":
        free = not side.asked or "one exchange at a time" not in rules
        if free and g < LAST and (drained or "the initiator drains before its offer" not in rules):
            yield after(Record("offer", g), asked=True)
    elif side.asked and (drained or "the target drains before its answer" not in rules):
        # It steps with the next record: the answer itself is of the old generation.
        yield after(Record("answer", g), asked=False, gen=g + 1, sends=g + 1, old=True, both=True)


def unit(side, record, newest, rules):
    """A receiver's unit in the making after a piece; `newest` is the record's generation."""
    if record.begins == (side.receiving is not None):
        raise Refused("a piece out of turn")
    if not record.begins and record.unit != side.receiving:
        raise Refused("a piece of another unit")
    if record.unit > newest or ("units lag one step" in rules and record.unit < newest - 1):
        raise Refused("a seal-id of a wrong generation")
    held = {side.gen} | ({side.gen - 1} if side.old else set())
    if record.unit not in held:
        raise Refused("the data key is gone")
    return None if record.ends else record.unit


def receives(side, who, record, rules):
    """This side behind a record; raises what the connection ends with. `who` is the receiver."""
    g = side.gen
    if who == "t":
        takes = {g - 1, g} if side.both else {g}
        if side.both and "the target takes both" not in rules:
            takes = {g}
        if not side.both and "the target goes on to the new one" not in rules:
            takes = {g - 1, g}
    else:
        takes = {g} if "the initiator takes one" in rules else {g, g + 1, g - 1}
    if record.generation not in takes:
        raise Refused("a record of another generation")
    if who == "t" and side.both and record.generation == g:
        side = side._replace(both=False)
    if record.kind == "p":
        return side
    if record.kind == "u":
        after = unit(side, record, record.generation, rules)
        return side._replace(receiving=after)
    if record.kind == "offer" and who == "t":
        if side.asked or (record.generation != g and "an old offer is refused" in rules):
            raise Refused("an offer out of turn")
        # The data key of the generation before is forgotten.
        return side._replace(asked=True, old=False)
    if record.kind == "answer" and who == "i":
        if not side.asked and "an answer needs an offer" in rules:
            raise Refused("an answer out of turn")
        if side.receiving is not None and side.receiving < g:
            raise Refused("a unit of the generation before is open")
        sends = g + 1 if "the initiator steps" in rules else side.sends
        return side._replace(asked=False, gen=g + 1, sends=sends, old="old units open after a step" in rules)
    raise Refused("a control record in the wrong direction")


def deliveries(state, rules):
    """The state behind each record that can arrive next; `None` and a reason if it is refused."""
    for who, queue in (("t", state.out), ("i", state.back)):
        if not queue:
            continue
        side = state.target if who == "t" else state.initiator
        try:
            after = receives(side, who, queue[0], rules)
        except Refused as reason:
            yield None, f"{queue[0].kind} refused: {reason}"
            continue
        if who == "t":
            yield state._replace(target=after, out=queue[1:]), None
        else:
            yield state._replace(initiator=after, back=queue[1:]), None


KINDS = [Record("p", g) for g in range(LAST + 2)]
KINDS += [Record(kind, g) for kind in ("offer", "answer") for g in range(LAST + 2)]
KINDS += [
    Record("u", g, of, begins, ends)
    for g in range(LAST + 2)
    for of in range(LAST + 2)
    for begins in (False, True)
    for ends in (False, True)
]


def insider(state, rules):
    """What a peer with all keys could make a receiver do by any record in place of an honest one."""
    wrong = set()
    for who, side in (("t", state.target), ("i", state.initiator)):
        # The generation that this receiver has seen in use.
        seen = side.gen - 1 if who == "t" and side.both else side.gen
        for record in KINDS:
            try:
                after = receives(side, who, record, rules)
            except Refused:
                continue
            if record.generation < seen:
                wrong.add("a receiver goes back")
            if record.generation > side.gen:
                wrong.add("a record of keys that are not there")
            if record.unit is not None and not record.generation - 1 <= record.unit <= record.generation:
                wrong.add("a unit lags two steps")
            if record.kind == "answer" and not side.asked:
                wrong.add("an answer without an offer")
            if record.kind == "offer" and record.generation != side.gen:
                wrong.add("a second exchange in one generation")
            if after.gen > side.gen + 1:
                wrong.add("two steps at once")
    return wrong


def search(rules=RULES, wanted=None):
    """Everything that goes wrong in some order of events, and the number of states; ends early when `wanted` is found."""
    wrong, edges = set(), {}
    waiting = deque([START])
    edges[START] = []
    while waiting and wanted not in wrong:
        state = waiting.popleft()
        wrong |= insider(state, rules)
        if abs(state.initiator.sends - state.target.sends) > 1:
            wrong.add("the directions are two generations apart")
        nexts = [after for who in "it" for _, after in sends(state, who, rules)]
        for after, reason in deliveries(state, rules):
            if reason is None:
                nexts.append(after)
            else:
                wrong.add(f"honest {reason}")
        for after in nexts:
            edges[state].append(after)
            if after not in edges:
                edges[after] = []
                waiting.append(after)
    if wanted in wrong:
        return wrong, len(edges)
    # Whatever has happened, both can still come to the last generation.
    before = {}
    for state, nexts in edges.items():
        for after in nexts:
            before.setdefault(after, []).append(state)
    done = [s for s in edges if s.initiator.sends == LAST and s.target.sends == LAST]
    reached, waiting = set(done), deque(done)
    while waiting:
        for state in before.get(waiting.popleft(), ()):
            if state not in reached:
                reached.add(state)
                waiting.append(state)
    if len(reached) != len(edges):
        wrong.add("a state that no exchange leads out of")
    return wrong, len(edges)


# What must be found if a rule is left out.
BROKEN = {
    "one exchange at a time": "honest offer refused: an offer out of turn",
    "the initiator drains before its offer": "honest u refused: the data key is gone",
    "the target drains before its answer": "honest answer refused: a unit of the generation before is open",
    "no old unit begins after the offer": "honest u refused: the data key is gone",
    "units lag one step": "honest u refused: the data key is gone",
    "the initiator steps": "a state that no exchange leads out of",
    "old units open after a step": "honest u refused: the data key is gone",
    "the target takes both": "honest p refused: a record of another generation",
    "the target goes on to the new one": "a receiver goes back",
    "an answer needs an offer": "an answer without an offer",
    "an old offer is refused": "a second exchange in one generation",
    "the initiator takes one": "a receiver goes back",
}


def main():
    wrong, states = search()
    assert wrong == set(), wrong
    assert states > 1000, states
    assert set(BROKEN) == RULES
    for rule, expected in BROKEN.items():
        found, _ = search(RULES - {rule}, expected)
        assert expected in found, (rule, found)


if __name__ == "__main__":
    main()
