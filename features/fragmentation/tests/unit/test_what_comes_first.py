"""The table of the README of what comes first: a real choice for each pair of preferences."""

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
from berth.kit.instant_cloud import SILENCE
from bus.messages import HostFailed, HostReported
from bus.reports import HostState
from bus.requests import Flavor, Image
from scheduler_worker.extension import ChoicePolicy
from scheduler_worker.testing import default_profile
from tests.support.ids import uid

README = Path(__file__).parents[2] / "README.md"
ROW = re.compile(r"\| (\d) \| `(\w+)`")
RANKS = {name: int(rank) for rank, name in ROW.findall(README.read_text(encoding="utf-8"))}
LIKED = "CUSTOM_LIKED"
SMALL = Asked(Flavor(name="small", vcpus=1, memory_mb=4))
LARGE = Asked(Flavor(name="large", vcpus=8, memory_mb=32))
# preference → what a host reports that it prefers, and what the other one reports
REPORTED: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "load": ({}, {"load": 3.0}),
    "hypervisor_version": ({"hypervisor_version": 2}, {"hypervisor_version": 1}),
    "io_ops": ({}, {"building": 3}),
    "image_cached": ({"images": ("linux",)}, {}),
}


def chosen_host(of_first: str, of_second: str, seed: int) -> int:
    """Return the chosen one of two hosts, of which one preference prefers the first, the other the second."""
    preferences = of_first, of_second
    specs = [
        HostSpec({"VCPU": 16, "MEMORY_MB": 64}, (LIKED,) if each == "preferred_traits" else ())
        for each in preferences
    ]
    policy = ChoicePolicy.from_names(max_builds=UNLIMITED, profile=default_profile())
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
        request = request_for(SMALL, request_ids(seed))
        held = cloud.place_request(replace(request, image=Image(name="linux"), preferred_traits={LIKED: 1.0}))
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
    assert RANKS.keys() == {"preferred_traits", "build_failure", "scarce_shapes", "little_used", *REPORTED}


@pytest.mark.parametrize(("first", "second"), [*combinations(RANKS, 2)])
def test_the_preference_of_the_higher_rank_decides(first: str, second: str) -> None:
    chosen = {
        chosen_host(first, second, seed) for seed in range(1, 7 if RANKS[first] == RANKS[second] else 2)
    }
    assert chosen == ({0, 1} if RANKS[first] == RANKS[second] else {0})
