"""The table of what comes first in the README of fragmentation: a real choice for each pair of rows."""

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bench.quality.__main__ import UNLIMITED
from bench.quality.cloud import (
    Asked,
    HostSpec,
    TraceCloud,
    host_number,
    provider_id,
    request_for,
    request_ids,
)
from berth.kit.instant_cloud import SILENCE, InstantPlacement
from bus.messages import HostFailed, HostReported
from bus.reports import HostState
from bus.requests import Flavor, Image
from features import fragmentation
from features.groups.messages import GroupPolicy, GroupsFound, ServerGroup
from features.groups.tests.support.group_parts import in_group
from features.nova_filters.weighers import hypervisor_version, metrics
from scheduler_worker.extension import ChoicePolicy
from scheduler_worker.testing import default_profile
from tests.support.ids import uid

README = Path(fragmentation.__file__).parent / "README.md"
ROW = re.compile(r"\| (\d) \| `(\w+)`")
RANKS = {name: int(rank) for rank, name in ROW.findall(README.read_text(encoding="utf-8"))}
LIKED, LIKED_AMOUNT, SPEED = "CUSTOM_LIKED", "CUSTOM_LIKED_AMOUNT", "speed"
GROUP = uid(1, "d")
SMALL = Asked(Flavor(name="small", vcpus=1, memory_mb=4))
LARGE = Asked(Flavor(name="large", vcpus=8, memory_mb=32))
# preference → what a host reports that it prefers, and what the other one reports
REPORTED: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "load": ({}, {"load": 3.0}),
    hypervisor_version.__name__: ({"hypervisor_version": 2}, {"hypervisor_version": 1}),
    metrics.__name__: ({"metrics": {SPEED: 2.0}}, {"metrics": {SPEED: 1.0}}),
    "io_ops": ({}, {"building": 3}),
    "image_cached": ({"images": ("linux",)}, {}),
}
SOFT: Mapping[str, GroupPolicy] = {
    "soft_affinity": "soft-affinity",
    "soft_anti_affinity": "soft-anti-affinity",
}
# a request is in one group
PAIRS = [pair for pair in combinations(RANKS, 2) if not set(pair) >= SOFT.keys()]


def host_of(preference: str) -> HostSpec:
    amounts = {"VCPU": 16, "MEMORY_MB": 64}
    if preference == "preferred_resources":
        return HostSpec({**amounts, LIKED_AMOUNT: 1})
    return HostSpec(amounts, (LIKED,) if preference == "preferred_traits" else ())


def groups_of(preferences: tuple[str, str]) -> list[ServerGroup]:
    """Return the server group of the request, with a member on one host, if a preference is about groups."""
    found = []
    for host, preference in enumerate(preferences):
        if preference in SOFT:
            member = provider_id(host if preference == "soft_affinity" else 1 - host)
            members: dict[str, tuple[str, ...]] = {uid(9): (member,)}
            found.append(ServerGroup(id=GROUP, name="g", policy=SOFT[preference], members=members))
    return found


def chosen_host(of_first: str, of_second: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the chosen one of two hosts, of which one preference prefers the first, the other the second."""
    preferences = of_first, of_second
    groups = groups_of(preferences)

    async def find_groups(placement: InstantPlacement, question: object) -> GroupsFound:
        return GroupsFound(groups=tuple(groups))

    monkeypatch.setattr(InstantPlacement, "unused", find_groups)
    specs = [host_of(each) for each in preferences]
    options = {"metrics": {"weight_setting": {SPEED: 1.0}, "required": False}}
    policy = ChoicePolicy.from_names(options=options, max_builds=UNLIMITED, profile=default_profile())
    cloud = TraceCloud(specs, policy, seed)
    try:
        for asked in (SMALL, LARGE) * 20:
            held = cloud.place(asked)
            assert held is not None
            cloud.release(held)
        for host, cpus in enumerate(used_processors(preferences)):
            cloud.placement.change({provider_id(host): {"VCPU": cpus, "MEMORY_MB": 4 * cpus}}, 1)
        for message in messages_about(preferences):
            cloud.handle(message)
        request = replace(
            request_for(SMALL, request_ids(seed)), image=Image(name="linux"), preferred_traits={LIKED: 1.0}
        )
        if groups:
            request = replace(request, parts=in_group(GROUP))
        if "preferred_resources" in preferences:
            specs_of_flavor = {f"resources:{LIKED_AMOUNT}": "preferred:1"}
            request = replace(request, flavor=replace(SMALL.flavor, extra_specs=specs_of_flavor))
        held = cloud.place_request(request)
        assert held is not None
        return host_number(held)
    finally:
        cloud.close()


def used_processors(preferences: tuple[str, str]) -> list[int]:
    used = [10, 10] if "scarce_shapes" in preferences else [0, 0]
    for host, preference in enumerate(preferences):
        if preference == "scarce_shapes":
            used[1 - host] = 8  # a large instance fits there
        if preference == "little_used":
            used[1 - host] += 1
    return used


def messages_about(preferences: tuple[str, str]) -> Iterator[HostReported | HostFailed]:
    states = [dict[str, Any](), dict[str, Any]()]
    for host, preference in enumerate(preferences):
        preferred, other = REPORTED.get(preference, ({}, {}))
        states[host] |= preferred
        states[1 - host] |= other
    for host, state in enumerate(states):
        root, agent = provider_id(host), f"agent-{host}"
        reported = HostState(root=root, host=f"host-{host}", **state)
        yield HostReported(cell="cell-1", agent=agent, sequence=9, period=SILENCE, hosts=(reported,))
        if "build_failure" in preferences and preferences[1 - host] == "build_failure":
            yield HostFailed(
                cell="cell-1", agent=agent, root=root, host=f"host-{host}", build=uid(1), attempt=1
            )


def test_the_table_has_every_preference() -> None:
    others = {"preferred_traits", "preferred_resources", "build_failure", "scarce_shapes", "little_used"}
    assert RANKS.keys() == {*others, *SOFT, *REPORTED}


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_preference_of_the_higher_rank_decides(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(1, 7 if RANKS[first] == RANKS[second] else 2)
    chosen = {chosen_host(first, second, seed, monkeypatch) for seed in seeds}
    assert chosen == ({0, 1} if RANKS[first] == RANKS[second] else {0})
