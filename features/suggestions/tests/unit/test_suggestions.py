"""Suggestions: each names a change after which the request fits."""

import re
from random import Random

import pytest
from msgspec.structs import replace

from bus.messages import BuildRequested, BuildUnplaceable
from bus.requests import Hints
from features.suggestions.core.changes import helps
from scheduler_worker.core.extension import HostFacts, View, Weigher
from scheduler_worker.extension import Alternative, ChoicePolicy, Order, Tally
from tests.support.ranking_builders import Hall, a_hall
from tests.support.refused_worlds import HOSTS, RandomCloud, a_question, a_world, of
from tests.support.scheduler_builders import FakePlacement, a_request, a_state
from tests.support.schedulers import scheduler_of
from tests.support.virtual_time import TurnedClock


def suggested(hall: Hall, order: Order) -> list[str]:
    return list(helps(order, hall.choosing(), Tally(0, needed=order.needed)))


STATES = (a_state(1), a_state(2, enabled=False), a_state(3))


HELPS: dict[str, tuple[BuildRequested, tuple[str, ...]]] = {
    "a class: the most that anybody has": (
        a_request(flavor=of(memory_mb=16384)),
        ("1 host would fit with 8192 MEMORY_MB instead of 16384",),
    ),
    "two classes: neither by itself": (
        a_request(flavor=of(memory_mb=16384, vcpus=99)),
        ("with 8 VCPU instead of 99 and with 8192 MEMORY_MB instead of 16384: 1 host",),
    ),
    "a zone and a cell": (
        a_request(zone="z9", cell="c9"),
        ("without zone z9 and without cell c9: 2 hosts",),
    ),
    "a zone, and a class or a host that is disabled": (
        a_request(flavor=of(memory_mb=4096), zone="z9", cell="cell2"),
        (
            "without zone z9 and without cell cell2: 1 host",
            "without zone z9 and with 2048 MEMORY_MB instead of 4096: 1 host",
            "without zone z9 and with hosts that are disabled: 1 host",
        ),
    ),
    "three things at once": (a_request(flavor=of(memory_mb=16384, vcpus=99), zone="z9"), ()),
    "a cell, or a host that is disabled": (
        a_request(flavor=of(memory_mb=4096), cell="cell2"),
        (
            "1 host would fit with 2048 MEMORY_MB instead of 4096",
            "without cell cell2: 1 host",
            "1 host is disabled",
        ),
    ),
    "hosts that are ignored": (
        a_request(flavor=of(memory_mb=4096), ignore_hosts=("host1",)),
        (
            "1 host would fit with 2048 MEMORY_MB instead of 4096",
            "without ignore_hosts: 1 host",
            "1 host is disabled",
        ),
    ),
    "a hint": (
        a_request(hints=Hints(build_near_host_ip="10.0.0.1")),
        ("without the hint build_near_host_ip: 2 hosts",),
    ),
}  # fmt: skip


def near(host: HostFacts, alternative: Alternative) -> str | None:
    return "too far" if alternative.request.hints.build_near_host_ip else None


def never(*, multiplier: float = 1.0) -> Weigher:
    def fail(view: View, alternative: Alternative) -> float:
        raise AssertionError("to count hosts needs no weigher, which would take most of a refusal's time")

    return Weigher("never", fail, multiplier)


@pytest.mark.parametrize(("request_", "reply"), HELPS.values(), ids=HELPS)
def test_suggestions_of_refused_requests(request_: BuildRequested, reply: tuple[str, ...]) -> None:
    policy = ChoicePolicy.from_names(
        ("up", "enabled", "zone", "near"),
        weighers={"mine:never": 1.0},
        custom={"near": near, "mine:never": never},
    )
    hall = a_hall(*HOSTS, policy=policy)
    for host_state, host in zip(STATES, HOSTS, strict=True):
        hall.handle(host_state, cell=host.cell)
    found = suggested(hall, hall.order(request_))
    assert set(reply) <= set(found), found
    assert bool(reply) == bool(found), found
    assert not hall.source.packing.taken


async def test_a_refused_request_has_its_suggestions() -> None:
    scheduler = scheduler_of(FakePlacement(*HOSTS), clock=TurnedClock().clock)
    [[refusal]] = await scheduler.place_many([a_request(flavor=of(memory_mb=16384))])  # type: ignore[misc]
    assert isinstance(refusal, BuildUnplaceable)
    assert refusal.decision.helps == ("2 hosts would fit with 8192 MEMORY_MB instead of 16384",)


def relaxed(reply: str, request: BuildRequested) -> BuildRequested:
    """Return the request with a suggestion applied, as a client reads it."""
    for one in reply.split(" and "):
        if less := re.search(r"with (\d+) (\w+) instead of \d+", one):
            field = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "disk_gb"}[less[2]]
            request = replace(request, flavor=replace(request.flavor, **{field: int(less[1])}))
        elif "without DISK_GB" in one:
            request = replace(request, flavor=replace(request.flavor, disk_gb=0))
        elif field_ := re.search(r"without (zone|cell|host|ignore_hosts)", one):
            name = {"host": "wanted_host"}.get(field_[1], field_[1])
            request = replace(request, **{name: () if name == "ignore_hosts" else ""})
        elif "trait CUSTOM_A" in one:
            request = replace(request, flavor=replace(request.flavor, extra_specs={}))
        else:
            assert "disabled" in one or "dedicated" in one, one
    return request


def check_suggestions(world: RandomCloud, order: Order) -> int:
    reply = suggested(world.hall(), order)
    for one in reply:
        if "filter" in one:
            continue  # an operator's to change
        request = relaxed(one, order.request)
        tried = world.hall(enabled="disabled" in one)
        (answer,) = tried.choosing().choose([tried.order(request)])
        assert answer.picks, (one, order.request)
    return len(reply)


@pytest.mark.parametrize("seed", range(10))
def test_a_request_fits_after_each_suggested_change(seed: int) -> None:
    chance, refused, suggestions = Random(seed), 0, 0
    while refused < 20:
        world = a_world(chance)
        order = world.hall().order(a_question(chance, world, refused + 1))
        (answer,) = world.hall().choosing().choose([order])
        if answer.picks or answer.short is None or answer.short.unknown:
            continue
        refused += 1
        suggestions += check_suggestions(world, order)
    assert suggestions
