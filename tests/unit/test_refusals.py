"""Refusals: the named host comes first, codes and figures are true, reserved hosts are named as such."""

from msgspec.structs import replace

from bus.host_marks import DISABLED, HELD
from bus.messages import BuildUnplaceable
from bus.queries import WhatIf
from placement_worker import IndexedSource
from scheduler_worker.core.events import NoHost
from scheduler_worker.core.order import Order
from scheduler_worker.core.shortage import Shortage
from scheduler_worker.placing import Scheduler
from scheduler_worker.sight import beside
from scheduler_worker.what_if import WhatIfs
from tests.support.exact_worlds import FLAVORS, FilledMemory, an_order
from tests.support.ids import uid
from tests.support.provider_trees import state, tree
from tests.support.ranking_builders import Hall
from tests.support.scheduler_builders import FakePlacement, TurnedClock, a_candidate, a_request

SMALL, LARGE = FLAVORS[0], replace(FLAVORS[0], vcpus=64)


def a_hall() -> Hall:
    """Three hosts: p0 is open, p1 is disabled because of its disk, p2 is disabled."""
    memory = FilledMemory()
    stock = {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 100}
    for nth, traits in enumerate(((), (DISABLED, f"{HELD}DISK"), (DISABLED,))):
        memory.index.put(tree(state(nth, None, dict(stock), None, traits)), 1)
    return Hall(IndexedSource(memory))


def refused(hall: Hall, order: Order) -> tuple[Shortage, str]:
    (answer,) = hall.choosing().choose([order])
    assert isinstance(answer, NoHost)
    return answer.short, answer.short.reason(order.request, len(order.instances), ())


def test_a_disabled_host_that_is_named_is_explained_first_with_its_cause() -> None:
    hall = a_hall()
    short, reason = refused(hall, an_order(hall, a_request(flavor=SMALL, wanted_host="p1"), None))
    assert reason.startswith("p1: disabled by an operator: disk. no valid host among 3: ")
    assert reason.endswith("not the requested host: 2 hosts, disabled: 1 host")
    assert short.code == "disabled"


def test_a_named_host_that_is_disabled_and_too_small_is_explained_by_both() -> None:
    hall = a_hall()
    _, reason = refused(hall, an_order(hall, a_request(flavor=LARGE, forced_host="p2"), None))
    assert reason.startswith("p2: disabled; 56 VCPU: asked 64, free 8. ")


def test_disabled_hosts_are_no_near_misses() -> None:
    hall = a_hall()
    short, _ = refused(hall, an_order(hall, a_request(flavor=LARGE), None))
    assert [miss.host for miss in short.nearest] == ["p0"]


def test_a_reserved_host_is_named_as_reserved_and_ignore_hosts_is_no_remedy() -> None:
    hall = a_hall()
    order = an_order(hall, a_request(flavor=SMALL), None)
    order = beside(order, [uid(0, "a")], lambda root: "reserved for waiting request R")
    short, reason = refused(hall, order)
    assert "reserved for other requests: 1 host" in reason
    assert "p0 (reserved for waiting request R)" in reason
    assert "reserved" in {one.code for one in short.removals}


async def test_too_many_instances_at_once_have_the_code_room_in_what_if_too() -> None:
    placement = FakePlacement.of(a_candidate(1, free={"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 20}))
    scheduler = Scheduler(
        placement.source, placement.claim_many, placement.release, placement.providers,
        clock=TurnedClock().clock,
    )  # fmt: skip
    request = a_request(instances=5)
    answer = await WhatIfs(scheduler).answer(WhatIf(request=request))
    assert not answer.fits and answer.decision.code == "room"
    ((message,),) = await scheduler.place_many([request])  # type: ignore[misc]
    assert isinstance(message, BuildUnplaceable) and message.decision.code == "room"


async def test_what_if_leaves_reserved_hosts_out_as_a_boot_does() -> None:
    placement = FakePlacement.of(a_candidate(1))
    scheduler = Scheduler(
        placement.source, placement.claim_many, placement.release, placement.providers,
        clock=TurnedClock().clock,
    )  # fmt: skip
    scheduler.parks(
        lambda root: None,
        lambda orders: [beside(one, [uid(1, "c")], lambda root: "reserved for R") for one in orders],
    )
    answer = await WhatIfs(scheduler).answer(WhatIf(request=a_request()))
    assert not answer.fits
