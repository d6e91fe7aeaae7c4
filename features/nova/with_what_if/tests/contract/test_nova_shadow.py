"""Shadow mode: requests to a running Nova's scheduler are decided by berth as well, stored and compared."""

from collections.abc import AsyncIterator, Callable
from dataclasses import fields

import pytest
from sqlalchemy import text

from berth.kit.testing import packages
from bus.decisions import Decision
from bus.reports import Inventory
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from features.nova.tests.support.nova_builders import a_spec
from features.nova.tests.support.nova_notifications import START, a_group, asked, refused, selected, used
from features.nova.with_what_if import shadow, shadow_store
from features.nova.with_what_if.core.fragmentation import FreeMemory
from features.nova.with_what_if.core.shadow_report import DecidedRequest, NovaOutcome
from features.nova.with_what_if.tests.support.shadowed_nova import ShadowedWorld, a_shadowed_nova
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.waiting import until

DATABASES = [
    pytest.param("sqlite file", id="file"),
    pytest.param("postgresql", id="postgresql", marks=pytest.mark.services),
]


@pytest.fixture
async def hosts() -> AsyncIterator[Placement]:
    """Yield a placement with two hosts with 4 CPUs each, as nova-compute reports them."""
    async with a_placement("sqlite+aiosqlite://") as placement:
        inventories = {
            "VCPU": Inventory(total=4), "MEMORY_MB": Inventory(total=4096), "DISK_GB": Inventory(total=100)
        }  # fmt: skip
        for host in (1, 2):
            report = a_report(host, inventories=inventories)
            assert await placement.reports.report_many([report]) == [None]
        yield placement


async def is_decided(world: ShadowedWorld) -> None:
    """Wait until berth's scheduler knows both hosts: it refuses an instance only for its size."""
    number = 900

    async def fits() -> bool:
        nonlocal number
        number += 1
        id_ = f"req-{number}"
        await world.notifications.deliver(asked(number, id=number, request=id_, ignore_hosts=["compute-1"]))
        await world.notifications.deliver(
            asked(number, id=number + 10_000, request=id_, ignore_hosts=["compute-2"])
        )
        [second, first] = (await world.report(instance=uid(number))).listed
        return bool(first.berth_hosts and second.berth_hosts)

    await until(fits, "both hosts have room")


async def test_a_boot_is_decided_without_a_claim_and_compared(
    hosts: Placement, open_database: Callable[..., Database]
) -> None:
    async with a_shadowed_nova(hosts, open_database()) as world:
        await is_decided(world)
        request = asked(1, force_hosts="compute-2")
        await world.notifications.deliver(request)
        await world.notifications.deliver(request, selected(1, after=0.2), used("compute-2", 1))
        found = await world.report(instance=uid(1))
        [shown] = found.listed
        assert (shown.verdict, shown.nova_hosts, shown.berth_hosts) == (
            "same", ("compute-2",), ("compute-2",)
        )  # fmt: skip
        assert (shown.operation, shown.flavor, shown.project) == ("boot", "m1", "p1")
        assert shown.nova_seconds == pytest.approx(0.2) and shown.berth_seconds
        assert shown.decision is not None and shown.decision.considered
        counted = await world.report(since=START - 1)
        assert (counted.same, counted.nova.hosts, counted.berth.instances) == (1, 1, 1)
        allocations = await hosts.lookups.allocations(FindAllocations(consumers=(uid(1),)))
        assert allocations.consumers == (), "nothing is claimed"


async def test_reordered_and_repeated_notifications_have_the_same_result(
    hosts: Placement, open_database: Callable[..., Database]
) -> None:
    async with a_shadowed_nova(hosts, open_database()) as world:
        await is_decided(world)
        done = used("compute-1", 1, event="instance.resize_finish.end")
        for body in (done, selected(1), asked(1, ignore_hosts=["compute-2"]), done, selected(1)):
            await world.notifications.deliver(body, body)
        [shown] = (await world.report(instance=uid(1))).listed
        assert (shown.verdict, shown.operation) == ("same", "resize")


async def test_a_boot_that_placement_had_no_candidates_for_is_decided_from_novas_database(
    hosts: Placement, open_database: Callable[..., Database]
) -> None:
    async with a_shadowed_nova(hosts, open_database()) as world:
        await is_decided(world)
        world.databases.specs = {
            uid(1): a_spec(num_instances=2), uid(2): a_spec(num_instances=2), uid(3): a_spec()
        }  # fmt: skip
        errors = [refused(number, id=number, request="req-m") for number in (1, 2)]
        await world.notifications.deliver(errors[0])
        await world.notifications.deliver(*errors)
        found = await world.report(since=START, listed=10)
        [shown] = [each for each in found.listed if each.verdict == "nova refused"]
        assert (found.nova_refused, len(shown.berth_hosts), shown.instances) == (1, 2, 2)
        assert "not enough hosts" in shown.nova_reason
        await world.notifications.deliver(
            asked(3, id=30, request="req-3"), refused(3, id=31, request="req-3")
        )
        assert (await world.report(since=START)).nova_refused == 2, "a searched request is decided once"


async def test_a_refusal_by_berth_has_a_reason(
    hosts: Placement, open_database: Callable[..., Database]
) -> None:
    async with a_shadowed_nova(hosts, open_database()) as world:
        await is_decided(world)
        await world.notifications.deliver(
            asked(1, flavor={"vcpus": 5}), used("compute-1", 1),
            asked(2, id=12, request="req-2", force_hosts="gone"), used("gone", 2, id=13, request="req-2"),
        )  # fmt: skip
        found = await world.report(since=START)
        reasons = {each.instance: (each.berth_code, each.berth_reason) for each in found.listed}
        assert found.berth_refused == 2
        assert reasons[uid(2)] == ("host", "no such host: host gone, node any")
        assert reasons[uid(1)][0] == "class" and "2 of 2 hosts" in reasons[uid(1)][1]


async def test_undecided_and_late_requests_are_not_compared(
    hosts: Placement, open_database: Callable[..., Database]
) -> None:
    async with a_shadowed_nova(hosts, open_database()) as world:
        await is_decided(world)
        before = await world.report(since=START)
        several = asked(1, num_instances=2, instance_group=a_group("anti-affinity"))
        await world.notifications.deliver(several, used("compute-1", 1))
        world.now[0] = START + 60  # after a restart
        await world.notifications.deliver(
            asked(2, id=12, request="req-2"), used("compute-1", 2, id=13, request="req-2")
        )
        found = await world.report(since=START)
        assert (found.undecided - before.undecided, found.late, found.same + found.different) == (1, 1, 0)
        assert "several instances of a server group" in found.undecided_reasons[0].reason


async def test_a_period_without_notifications_is_in_the_report(
    hosts: Placement, open_database: Callable[..., Database]
) -> None:
    async with a_shadowed_nova(hosts, open_database(), has_scheduler=False) as world:
        await world.notifications.interrupt()  # at the first start no notification counts as lost
        await world.notifications.deliver(used("compute-1", 1))
        assert (await world.report()).missing == ()
        world.now[0] = START + 600
        await world.notifications.interrupt()
        await world.notifications.deliver(used("compute-1", 2, id=2, after=601))
        [period] = (await world.report()).missing
        assert START <= period.since < START + 10 and period.until == START + 600
        assert (await world.report(since=START + 700)).missing == ()


async def test_queues_of_nova_that_grow_without_a_consumer_are_in_the_report(
    hosts: Placement, open_database: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "QUEUE_SECONDS", 0.01)
    async with a_shadowed_nova(hosts, open_database(), has_scheduler=False) as world:
        world.notifications.waiting = 2000
        assert (await world.report()).unread == (), "their number is known for the first time"

        async def are_reported() -> bool:
            world.notifications.waiting += 1
            names = [f"versioned_notifications.{priority}" for priority in ("info", "error")]
            return [each.queue for each in (await world.report()).unread] == names

        await until(are_reported, "both queues are in the report")


async def test_without_a_scheduler_requests_are_undecided(
    hosts: Placement, open_database: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "ANSWER_SECONDS", 0.1)
    async with a_shadowed_nova(hosts, open_database(), has_scheduler=False) as world:
        await world.notifications.deliver(asked(1), used("compute-1", 1))
        found = await world.report()
        assert (found.requests, found.undecided) == (1, 1)
        assert found.undecided_reasons[0].reason.startswith("no scheduler of berth decided")


async def test_unreadable_messages_and_texts_that_no_database_stores_are_no_obstacle(
    hosts: Placement, open_database: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "ANSWER_SECONDS", 0.1)
    async with a_shadowed_nova(hosts, open_database(), has_scheduler=False) as world:
        odd = refused(1, cause="Other\0", reason="a\0b")
        await world.notifications.deliver(
            b"?", asked(1), odd, asked(2, id=9, request="r2", flavor={"name": 7})
        )
        found = await world.report()
        assert (found.requests, found.undecided) == (2, 2)
        [shown] = (await world.report(instance=uid(1))).listed
        assert shown.nova_reason == "ab"


async def test_old_requests_and_results_are_deleted_in_pages(
    hosts: Placement, open_database: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "PRUNE_PAGE", 2)
    monkeypatch.setattr(shadow, "PRUNE_SECONDS", 0.01)
    monkeypatch.setattr(shadow, "ANSWER_SECONDS", 0.01)
    store = open_database()
    async with a_shadowed_nova(hosts, store, days=1.0, has_scheduler=False) as world:
        for number in range(1, 8):
            after, request = 60.0 * number, f"req-{number}"
            await world.notifications.deliver(
                asked(number, id=number, after=after, request=request),
                used("compute-1", number, id=number + 20, after=after, request=request),
            )
        assert (await world.report()).requests == 7
        world.now[0] = START + 86400 + 60 * 5.5

        async def left() -> list[int]:
            async with store.read() as tx:
                tables = ("observed_requests", "nova_outcomes")
                return [
                    (await tx.execute(text(f"SELECT count(*) FROM {name}"))).scalar_one() for name in tables
                ]

        async def is_pruned() -> bool:
            return await left() == [2, 2]

        await until(is_pruned, "old rows are deleted", picture=left)


async def test_stored_requests_and_results_are_read_with_all_their_fields(database: Database) -> None:
    await migrate(database, *packages("nova-shadow"))
    decided = DecidedRequest(
        id="n1", request="r1", instance="i1", at=1.5, operation="resize", project="p1", flavor="m1",
        instances=2, hosts=("a", "b"), reason="full", code="room", undecided="late", seconds=0.25, lag=0.5,
        free=FreeMemory(total=10, stranded=2, flavor=1, strands={"a": 3}),
        is_searched=False,
    )  # fmt: skip
    outcome = NovaOutcome(
        request="r1", instance="i1", at=2.5, event="refused", operation="resize", host="a", cause="NoHost",
        reason="full",
    )  # fmt: skip
    assert not [name for record in (decided, outcome) for name in default_fields(record)]
    async with database.write() as tx:
        await shadow_store.add_requests(tx, [(decided, Decision(code="room"))])
        await shadow_store.add_outcomes(tx, {"n2": outcome})
    async with database.read() as tx:
        found = await shadow_store.of_instance(tx, "i1", 5)
    assert found == ([(decided, Decision(code="room"))], [outcome])
    assert [each async for each in shadow_store.requests_since(database, 0.0)] == [decided]
    assert [each async for each in shadow_store.outcomes_since(database, 0.0)] == [outcome]


def default_fields(record: DecidedRequest | NovaOutcome) -> list[str]:
    return [field.name for field in fields(record) if getattr(record, field.name) == field.default]
