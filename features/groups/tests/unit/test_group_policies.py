"""Policies of server groups as tables, and claims compared with a plain model."""

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim, Refused, ReleaseRequested
from bus.parts import ClaimParts
from bus.vocabulary import Allocations
from features.groups.messages import GroupClaim, GroupPolicy
from features.groups.places import GroupPlaces, no_group
from features.groups.rule import GroupRule, GroupWorld
from features.groups.tests.support.group_parts import joining
from features.groups.tests.support.group_worlds import join
from placement_worker.extension import ClaimWorld, Holder, roots_of
from placement_worker.testing import ClaimedProvider, Stock, claim, release

A, B, C = "aaaa", "bbbb", "cccc"  # roots
X, Y, Z = "xxxx", "yyyy", "zzzz"  # consumers
KEPT, MINE = "kept", "mine"
KEEPS = {KEPT: "gone", MINE: X}
PROJECT = ConsumerClaim(consumer=X, generation=None, choices=(Choice({}),)).project


def group(
    policy: GroupPolicy, places: Mapping[str, tuple[str, ...]] | None = None, most: int = 1, number: int = 7
) -> GroupPlaces:
    made = GroupPlaces(number, f"group-{number}", "web", PROJECT, policy, most)
    for consumer, roots in (places or {}).items():
        made.put(consumer, frozenset(roots), KEEPS.get(consumer))
    return made


@pytest.mark.parametrize(
    ("policy", "most", "places", "roots", "refused"),
    [
        ("anti-affinity", 1, {}, (A,), None),
        ("anti-affinity", 1, {X: (A,)}, (A,), (A, 1)),
        ("anti-affinity", 1, {X: (A,)}, (B,), None),
        ("anti-affinity", 2, {X: (A,)}, (A,), None),
        ("anti-affinity", 2, {X: (A,), Y: (A,)}, (A,), (A, 2)),
        ("anti-affinity", 2, {X: (A,), KEPT: (A,)}, (A,), (A, 2)),  # its guest may still be there
        ("anti-affinity", 1, {KEPT: (A,)}, (A,), (A, 1)),
        ("anti-affinity", 1, {X: (B,)}, (A, B), (B, 1)),  # a claim on two trees is on both
        ("anti-affinity", 1, {X: (A,)}, (), None),
        ("affinity", 1, {}, (A,), None),  # the first decides
        ("affinity", 1, {X: (A,)}, (A,), None),
        ("affinity", 1, {X: (A,)}, (B,), (B, 0)),
        ("affinity", 1, {KEPT: (A,)}, (B,), None),
        ("affinity", 1, {X: (A,), KEPT: (B,)}, (B,), (B, 0)),
        ("affinity", 1, {X: (A, B)}, (B,), None),
        ("affinity", 1, {X: (A,)}, (), None),
        ("soft-affinity", 1, {X: (A,)}, (B,), None),
        ("soft-anti-affinity", 1, {X: (A,)}, (A,), None),
    ],
)
def test_a_group_policy_admits_a_member_or_gives_the_reason(
    policy: GroupPolicy,
    most: int,
    places: Mapping[str, tuple[str, ...]],
    roots: tuple[str, ...],
    refused: tuple[str, int] | None,
) -> None:
    reply = group(policy, places, most).refusal(frozenset(roots), "new")
    if refused is None:
        assert reply is None
    else:
        root, members = refused
        assert reply is not None and reply.provider == root
        assert reply.why == f"{root}: {policy}: {members or 'no'} members of server group group-7 there"


@pytest.mark.parametrize(
    ("policy", "places", "breaches"),
    [
        ("anti-affinity", {X: (A,), Y: (B,)}, []),
        ("anti-affinity", {X: (A,), Y: (A,)}, [f"2 on {A}, where 1 may be"]),
        ("anti-affinity", {X: (A,), KEPT: (A,)}, [f"2 on {A}, where 1 may be"]),
        ("anti-affinity", {X: (A,), MINE: (A,)}, []),  # it moves to where it is
        ("anti-affinity", {X: (B,), Y: (A,), MINE: (A,)}, [f"2 on {A}, where 1 may be"]),
        ("affinity", {X: (B,), MINE: (A,)}, []),
        ("affinity", {X: (A,), Y: (A,), KEPT: (B,)}, []),
        ("affinity", {X: (A,), Y: (B,)}, [f"its members are apart, on {A}, {B}"]),
        ("affinity", {X: (A, B), Y: (B,)}, []),
        ("affinity", {KEPT: (A,)}, []),
        ("soft-affinity", {X: (A,), Y: (B,)}, []),
        ("soft-anti-affinity", {X: (A,), Y: (A,)}, []),
    ],
)
def test_a_violated_hard_policy_is_reported(
    policy: GroupPolicy, places: Mapping[str, tuple[str, ...]], breaches: list[str]
) -> None:
    assert list(group(policy, places).breaches()) == breaches


@pytest.mark.parametrize(
    ("held", "roots"),
    [
        ([(A, False)], {A}),
        ([(A, False), (A, True)], {A}),
        ([(A, False), (B, True)], {A}),
        ([(B, True)], {B}),
        ([(A, False), (B, False)], {A, B}),
        ([], set()),
    ],
)
def test_shared_providers_do_not_count_as_hosts_of_an_instance(
    held: list[tuple[str, bool]], roots: set[str]
) -> None:
    assert roots_of(held) == roots


def world(*groups: GroupPlaces, sharing: set[str] | None = None) -> ClaimWorld:
    """Three roots with a child each, a pool of disks; everybody is known and holds nothing."""
    capacities: dict[str, ClaimedProvider | None] = {}
    for number, (provider, root) in enumerate(
        [(A, A), (B, B), (C, C), ("a1", A), ("b1", B), ("c1", C), ("pool", "pool")]
    ):
        capacities[provider] = ClaimedProvider(
            number, provider, root, 1, 1, 1, {"VCPU": Stock(0, 100, 0, 0, 1, 100, 1)}
        )
    names = (X, Y, Z, KEPT, *(f"{who} {index}" for who in (X, Y, Z) for index in (1, 2)))
    holders = {name: Holder(name, number) for number, name in enumerate(names)}
    there = ClaimWorld(capacities, holders, {}, sharing=sharing or {"pool"})
    join(there, *groups)
    return there


def groups_of(there: ClaimWorld) -> Mapping[int, GroupPlaces]:
    state: GroupWorld = there.state[GroupRule]
    return state.groups


def on(*providers: str) -> Allocations:
    return {provider: {"VCPU": 1} for provider in providers}


def wants(
    consumer: str, *choices: Allocations, generation: int | None = None, **more: object
) -> ConsumerClaim:
    made = tuple(Choice(choice) for choice in choices)
    return ConsumerClaim(consumer=consumer, generation=generation, choices=made, **more)  # type: ignore[arg-type]


def took(there: ClaimWorld, *claims: ConsumerClaim) -> list[int | None]:
    results = claim(ClaimRequested(claims=claims), there)
    assert results is not None
    return [result.choice if isinstance(result, Claimed) else None for result in results]


def test_a_consumer_that_releases_everything_leaves_its_group() -> None:
    there = world(group("anti-affinity"))
    took(there, wants(X, on(A), parts=joining("group-7")))
    assert took(there, wants(X, {}, generation=1)) == [0]
    assert took(there, wants(X, on(A)), wants(Y, on(A), parts=joining("group-7"))) == [0, 0]


@pytest.mark.parametrize(
    ("name", "project", "there"),
    [("group-7", PROJECT, True), ("group-9", PROJECT, False), ("group-7", "p2", False)],
)
def test_a_group_of_another_project_is_refused(name: str, project: str, there: bool) -> None:
    order = ClaimRequested(claims=(wants(X, on(A), on(B), parts=joining(name), project=project),))
    results = claim(order, world(group("anti-affinity")))
    assert results is not None
    assert isinstance(results[0], Claimed) if there else results == (Refused(refusals=(no_group(name),) * 2),)


class Model:
    """A server group as one would write it down on paper."""

    def __init__(self, policy: GroupPolicy, most: int) -> None:
        self.policy, self.most = policy, most
        self.at: dict[str, str] = {}  # member → root
        self.kept: dict[str, tuple[str, set[str]]] = {}

    def allows(self, who: str, root: str) -> bool:
        others = {one: there for one, there in self.at.items() if one != who}
        if self.policy == "affinity":
            return not others or root in others.values()
        if self.policy == "anti-affinity":
            crowd = {one for one, there in others.items() if there == root}
            crowd |= {one for one, roots in self.kept.values() if root in roots and one != who}
            return len(crowd) < self.most
        return True

    def leaves(self, who: str, holder_consumer: str) -> None:
        _, roots = self.kept.get(holder_consumer, (who, set()))
        self.kept[holder_consumer] = who, {*roots, self.at[who]}


@pytest.mark.parametrize("policy", ["anti-affinity", "affinity", "soft-affinity"])
@pytest.mark.parametrize("seed", range(5))
def test_random_claims_moves_and_releases_go_as_on_paper(policy: GroupPolicy, seed: int) -> None:
    chance = random.Random(seed)
    most = chance.choice((1, 1, 2))
    there, model = world(group(policy, most=most)), Model(policy, most)
    generations: dict[str, int] = {}
    done: Counter[str] = Counter()
    for _ in range(120):
        who = chance.choice((X, Y, Z))
        if chance.random() < 0.2 and model.kept:
            gone = chance.choice(sorted(model.kept))
            release(ReleaseRequested(consumer=gone, generation="any"), there)
            del model.kept[gone]
        keep = f"{who} {chance.randrange(1, 3)}" if chance.random() < 0.5 else None
        if chance.random() < 0.2 and who in generations:
            release(ReleaseRequested(consumer=who, generation=generations.pop(who), keep=keep), there)
            if keep:
                model.leaves(who, keep)
            del model.at[who]
            done["released"] += 1
            continue
        back = f"{who} {chance.randrange(1, 3)}"
        if chance.random() < 0.3 and who in generations and len(model.kept.get(back, ("", ()))[1]) == 1:
            other = keep if keep != back else None
            order = wants(who, {}, generation=generations[who], keep=other, take_over=back)
            assert took(there, order) == [0]
            if other:
                model.leaves(who, other)
            [model.at[who]] = model.kept.pop(back)[1]
            generations[who] += 1
            done["back"] += 1
            continue
        wanted = chance.sample((A, B, C), chance.randrange(1, 4))
        swaps = who in generations
        got = took(
            there,
            wants(
                who,
                *(on(chance.choice((root, root.replace("aaaa", "a1")))) for root in wanted),
                generation=generations.get(who),
                parts=ClaimParts(GroupClaim(group="group-7") if not swaps or chance.random() < 0.5 else None),
                keep=keep,
            ),
        )
        expected = next((index for index, root in enumerate(wanted) if model.allows(who, root)), None)
        assert got == [expected], (wanted, model.at, model.kept)
        if expected is None:
            done["refused"] += 1
        else:
            if keep and swaps:
                model.leaves(who, keep)
            model.at[who] = wanted[expected]
            generations[who] = generations.get(who, 0) + 1
            done["swapped" if swaps else "claimed"] += 1
        if policy != "affinity":
            assert list(groups_of(there)[7].breaches()) == []
    assert done["claimed"] and done["swapped"] and done["released"] and done["back"]
    if policy == "soft-affinity":
        assert not done["refused"]
    elif policy == "anti-affinity" and most == 1:
        assert done["refused"]
