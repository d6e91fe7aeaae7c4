"""Explains hosts that have a provider for each slot, but no valid combination of providers."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bus.decisions import NearMiss, Removal
from placement_worker.core.assignment import BREATH, AssignmentSearch, top
from placement_worker.core.index import Snapshot
from placement_worker.core.index_rows import Row
from placement_worker.core.search_plan import NAMED, SearchPlan, options_at
from placement_worker.core.slots import JointRules

Why = tuple[tuple[Removal, ...], tuple[NearMiss, ...]]


NEAREST = 5


PATIENCE = 100_000  # maximum number of search steps on all hosts together


HOST_PATIENCE = 5_000


JOINT_CODE = "together"  # each requirement can be met, but not all together


UNSEEN_CODE = "unseen"


UNSEEN = "the search was cut: too many hosts or combinations"


@dataclass(slots=True)
class _Step:
    """A step of the explanation: one further rule about the providers that a query may combine. `rules`
    contains this rule and the rules of all previous steps.
    """

    says: str
    rules: JointRules
    resource_class: str = ""


def explain_combinations(snapshot: Snapshot, made: SearchPlan) -> Generator[None, None, Why]:
    """Return, for a query with several groups, how many hosts each condition rejects, and the hosts that miss
    least.
    """
    steps = list(_steps(made))
    removed = [0] * (len(steps) + 1)  # the last number counts hosts with too many combinations
    misses: list[list[NearMiss]] = [[] for _ in removed]
    patience = PATIENCE
    for position in np.flatnonzero(made.left).tolist():
        yield
        anchor = snapshot.row_at(position)
        assert anchor is not None
        options = options_at(snapshot, made, anchor)
        breaking, spent = len(steps), 0
        if patience > 0:
            breaking, spent = yield from _breaking(snapshot, made, options, steps)
        patience -= spent
        removed[breaking] += 1
        if len(misses[breaking]) < NEAREST:
            lacks = _sentence_of(made, options, steps[breaking]) if breaking < len(steps) else UNSEEN
            code = JOINT_CODE if breaking < len(steps) else UNSEEN_CODE
            misses[breaking].append(NearMiss(host=anchor.host, lacks=lacks, code=code))
    left = made.count
    removals = list(made.removals)
    for constraint, count, near in zip(
        (*(step.says for step in steps), UNSEEN), removed, misses, strict=True
    ):
        if count:
            left -= count
            some = tuple(miss.host for miss in near[:NAMED])
            code = UNSEEN_CODE if constraint == UNSEEN else JOINT_CODE
            removals.append(Removal(constraint=constraint, removed=count, left=left, code=code, hosts=some))
    # Hosts that satisfy the most constraints are the closest.
    closest = [miss for some in (*reversed(misses[:-1]), misses[-1]) for miss in some]
    return tuple(removals), tuple(closest[:NEAREST])


def _steps(made: SearchPlan) -> Iterator[_Step]:
    rules = JointRules()
    if made.rules.isolate:
        rules = replace(rules, isolate=made.rules.isolate)
        yield _Step("isolate: a provider of its own for each group", rules)
    if made.rules.apart:
        rules = replace(rules, apart=True)
        yield _Step("never two providers of one tree", rules)
    for members in made.rules.subtrees:
        rules = replace(rules, subtrees=(*rules.subtrees, members))
        yield _Step("same_subtree " + "+".join(made.slots[nth].suffix for nth in members), rules)
    if made.rules.needs:
        rules = replace(rules, needs=made.rules.needs)
        traits = ", ".join(" or ".join(some) for some in made.rules.needs)
        yield _Step(f"traits {traits}, of those that give resources", rules)
    for name in made.rules.summed:
        rules = replace(rules, summed=(*rules.summed, name))
        yield _Step(f"summed {name} within what is free and max_unit", rules, name)


def _breaking(
    snapshot: Snapshot, made: SearchPlan, options: Sequence[Sequence[Row]], steps: list[_Step]
) -> Generator[None, None, tuple[int, int]]:
    spent = 1
    for number, step in enumerate(steps):
        ways = AssignmentSearch(snapshot, made.slots, step.rules, options)
        for way in ways:
            if way is not None:
                break
            yield
            if ways.steps > HOST_PATIENCE:
                return len(steps), spent + ways.steps
        else:
            return number, spent + ways.steps + BREATH // 8
        spent += ways.steps + BREATH // 8
    return len(steps), spent


def _sentence_of(made: SearchPlan, options: Sequence[Sequence[Row]], step: _Step) -> str:
    name = step.resource_class
    if not name:
        return step.says
    asking = [
        (slot.asks[name], rows) for slot, rows in zip(made.slots, options, strict=True) if name in slot.asks
    ]
    tops = sorted({row.uuid: top(row, name) for _, rows in asking for row in rows}.values(), reverse=True)
    asked = "+".join(str(amount) for amount, _ in asking)
    return f"summed {name}: asked {asked}, to be had {'+'.join(map(str, tops))}"
