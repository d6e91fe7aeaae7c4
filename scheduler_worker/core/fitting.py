"""Hosts that pass the filters for a waiting request now, and whether a host fits the new image of a
rebuild.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from bus.candidates import Bools, CandidateSearch, CandidateSource, Floats, SenselessQuery
from bus.host_health import DISABLED
from bus.vocabulary import Resources
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.rule import Alternative, Rule
from scheduler_worker.core.view import AllHosts, HostsNow
from scheduler_worker.core.waiting_queue import HostsFound


def fitting(
    alternative: Alternative,
    search: CandidateSearch,
    now: HostsNow,
    served: Bools,
    policy: ChoicePolicy,
    enough: int,
) -> HostsFound:
    """Return hosts of the search with free capacity for `enough` instances. `served`: hosts with an agent."""
    positions = search.positions
    there = served[positions]
    admitted, lasting = there.copy(), there.copy()
    lazy: list[Rule] = []
    if positions.size:
        view = AllHosts(search, now)
        for rule in rules_for(alternative, policy):
            if rule.admits is None:
                lazy.append(rule)
                continue
            lets_pass = rule.admits(view, alternative)
            admitted &= lets_pass
            if not rule.passes:
                lasting &= lets_pass
    passing = bool((lasting & ~admitted).any())
    refused = [search.host(int(at)).uuid for at in positions[there & ~admitted]]
    asked = asked_of_a_tree(alternative)
    fits: dict[str, int] = {}
    room = 0
    for at in positions[admitted].tolist():
        if room >= enough:
            return HostsFound(fits, refused, passing, more=True)
        facts = now.facts(search, at)
        refusal = next((rule for rule in lazy if rule.refuses(facts, alternative) is not None), None)
        if refusal is not None:
            refused.append(facts.root)
            passing = passing or refusal.passes
        elif search.ways(at, 1):
            several = capacities(asked, facts.free)
            fits[facts.root] = several
            room += several
    return HostsFound(fits, refused, passing)


def admitted_for_good(
    alternative: Alternative, search: CandidateSearch, position: int, now: HostsNow, policy: ChoicePolicy
) -> bool:
    """Return whether no filter rejects the host for a reason that does not pass within seconds."""
    facts = now.facts(search, position)
    return all(
        rule.passes or rule.refuses(facts, alternative) is None for rule in rules_for(alternative, policy)
    )


def rules_for(alternative: Alternative, policy: ChoicePolicy) -> list[Rule]:
    """Return the filters that apply to a request. A forced host skips filters, unless it is down."""
    if alternative.request.forced_host:
        return [rule for rule in policy.rules if rule.name == "up"]
    return [rule for rule in policy.rules if rule.concerns is None or rule.concerns(alternative)]


def asked_of_a_tree(alternative: Alternative) -> Resources:
    asked: Resources = {}
    for group in alternative.question.groups:
        for name, amount in group.resources.items():
            asked[name] = asked.get(name, 0) + amount
    return asked


def capacities(asked: Mapping[str, int], free: Mapping[str, int]) -> int:
    """Return the approximate number of instances that fit into the free amounts, without shared resources."""
    several = [free[name] // amount for name, amount in asked.items() if name in free]
    return max(min(several, default=1), 1)


def distances(asked: Mapping[str, int], search: CandidateSearch) -> Floats:
    """Return how far each host is from fitting one instance: the sum of the shares that it lacks."""
    far: Floats = np.zeros(search.positions.size)
    for name, amount in asked.items():
        far += np.maximum(amount - search.free(name), 0.0) / amount
    return far


IMAGE = "image"  # the part of a request that the relevant filters read


def unfit(
    alternative: Alternative, root: str, source: CandidateSource, now: HostsNow, policy: ChoicePolicy
) -> str:
    """Return why the host does not fit the new image of a rebuild, as if the host were empty; "" if it
    fits.
    """
    question = msgspec.structs.replace(
        alternative.question,
        roots=(root,),
        not_roots=(),
        not_cells=(),
        cell="",
        zone="",
        root_forbidden=tuple(one for one in alternative.question.root_forbidden if one != DISABLED),
        root_member_of=(),
        root_not_member_of=(),
    )
    try:
        search = source.search(question, empty=True)
    except SenselessQuery as problem:
        return str(problem)
    position = source.position(root)
    if position is None or position not in search.positions:
        return next(
            (f"it lacks {removal.constraint}" for removal in search.removals() if not removal.left),
            "it has gone",
        )
    facts = now.facts(search, position)
    for rule in rules_for(alternative, policy):
        if IMAGE in rule.reads and (refusal := rule.refuses(facts, alternative)) is not None:
            return refusal
    return ""
