"""Placing batches: claims, messages, redelivery, conflicts and full clouds."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from bus.candidates import SenselessQuery
from bus.claims import (
    ClaimAnswered,
    ClaimRequested,
    Held,
    Moved,
    NoSuchProvider,
    Refused,
    ReleaseAnswered,
    ReleaseRequested,
    RuleRefused,
)
from bus.errors import AnswerRefused, NoAnswer, Poison, Retry, Unavailable
from bus.messages import BuildEndRequested, BuildPlaced, BuildRequested, BuildUnplaceable, HostFailed
from bus.queries import FindCandidates
from bus.requests import Flavor
from bus.vocabulary import Contended
from placement_worker.indexed_source import HostSearch
from scheduler_worker import ChoicePolicy, replay
from scheduler_worker.core.build_specs import MAX_SPEC_BYTES, MAX_SPECS_BYTES
from scheduler_worker.core.demand import weight_at
from scheduler_worker.placing.scheduler import Scheduler
from tests.support.claims_in_memory import Holding
from tests.support.ids import uid
from tests.support.index_source import RecordingSource
from tests.support.rule_builders import failed_builds
from tests.support.scheduler_builders import SMALL, FakePlacement, a_candidate, a_heartbeat, a_request
from tests.support.schedulers import messages_of, scheduler_of
from tests.support.virtual_time import TurnedClock

BIG = Flavor(name="big", vcpus=8, memory_mb=1024)
PLENTY = ChoicePolicy.from_names(max_builds=1000)


def a_scheduler(
    placement: FakePlacement, time: TurnedClock | None = None, *, policy: ChoicePolicy | None = None
) -> Scheduler:
    return scheduler_of(placement, policy=policy, clock=(time or TurnedClock()).clock)


def hosts(count: int, **fields: object) -> FakePlacement:
    return FakePlacement(*(a_candidate(number, **fields) for number in range(count)))  # type: ignore[arg-type]


async def placed(scheduler: Scheduler, *requests: BuildRequested) -> list[BuildPlaced]:
    messages = await messages_of(scheduler, *requests)
    assert all(isinstance(message, BuildPlaced) for message in messages), messages
    return [message for message in messages if isinstance(message, BuildPlaced)]


async def unplaceable(scheduler: Scheduler, request: BuildRequested) -> BuildUnplaceable:
    (message,) = await messages_of(scheduler, request)
    assert isinstance(message, BuildUnplaceable)
    return message


async def retry(scheduler: Scheduler, request: BuildRequested) -> Retry:
    (verdict,) = await scheduler.place_many([request])
    assert isinstance(verdict, Retry), verdict
    return verdict


async def test_a_request_gets_a_claimed_host_and_alternates() -> None:
    placement = hosts(5)
    request = a_request(reply_to="me", project="p", user="u", metadata={"name": "web"})
    (message,) = await placed(a_scheduler(placement), request)
    assert (message.build, message.request, message.reply_to) == (request.instances[0], request.request, "me")
    assert (message.cell, message.generation) == ("cell1", 1)
    assert placement.held[message.build].allocations == message.chosen.choice.allocations
    assert message.chosen.agent == message.chosen.host.replace("host", "agent")
    assert message.chosen.choice.shapes == {message.chosen.root: 1}
    assert len({one.root for one in (message.chosen, *message.alternates)}) == 3
    assert (message.spec.flavor, message.spec.project, message.spec.user) == (SMALL, "p", "u")
    assert message.spec.metadata == {"name": "web"}
    (order,) = placement.orders
    assert (order.claims[0].generation, order.claims[0].project, order.claims[0].user) == (None, "p", "u")


async def test_choices_count_before_placement_shows_them() -> None:
    placement = hosts(8, free={"VCPU": 8, "MEMORY_MB": 1024, "DISK_GB": 0})
    placement.source.lag = True
    scheduler = a_scheduler(placement, policy=ChoicePolicy.from_names(weighers=[]))
    messages = [(await placed(scheduler, a_request(number, flavor=BIG)))[0] for number in range(8)]
    assert len({message.chosen.root for message in messages}) == 8
    assert all(message.decision.refused == () for message in messages)


async def test_a_redelivered_request_is_answered_from_its_allocations() -> None:
    placement = hosts(5)
    scheduler = a_scheduler(placement)
    (first,) = await placed(scheduler, a_request())
    (again,) = await placed(scheduler, a_request())
    assert again.chosen.root == first.chosen.root
    assert again.chosen.choice.allocations == first.chosen.choice.allocations
    assert (again.generation, again.cell, again.chosen.agent) == (1, first.cell, first.chosen.agent)
    assert len(again.alternates) == 2
    assert first.chosen.root not in {alternate.root for alternate in again.alternates}
    assert len(placement.held) == 1


async def test_the_index_is_updated_for_a_claim_on_a_host_that_it_lacks() -> None:
    new = a_candidate(2)
    placement, request = FakePlacement(a_candidate(1), unpublished=[new]), a_request(alternates=0)
    placement.held[request.instances[0]] = Holding(1, dict(new.allocations))
    (again,) = await placed(a_scheduler(placement), request)
    assert (again.chosen.root, placement.source.levelled) == (new.root, 1)


@pytest.mark.parametrize(("ram", "several"), [(1.0, 2), (-1.0, 6)])
async def test_builds_get_more_alternates_while_hosts_with_little_memory_are_preferred(
    ram: float, several: int
) -> None:
    policy = ChoicePolicy.from_names(weighers={"ram": ram})
    (message,) = await placed(a_scheduler(hosts(24), policy=policy), a_request())
    assert len(message.alternates) == several


async def test_redelivered_request_that_names_a_removed_host_keeps_its_claim_without_alternates() -> None:
    placement = hosts(5)
    (first,) = await placed(a_scheduler(placement), a_request())
    (again,) = await placed(a_scheduler(placement), a_request(wanted_host="host-that-was-removed"))
    assert (again.chosen.root, again.alternates) == (first.chosen.root, ())


async def test_a_foreign_consumer_with_allocations_is_unplaceable_and_keeps_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    placement = hosts(3)
    (instance,) = a_request().instances
    holders = placement.held[instance] = Holding(4, {uid(99, "c"): {"VCPU": 1}})
    message = await unplaceable(a_scheduler(placement), a_request())
    assert (message.instances, placement.held) == ((instance,), {instance: holders})
    held = f"{instance} holds resources of {uid(99, 'c')} already"
    assert message.reason == f"{held}, where no agent builds: it is no build of ours"
    assert placement.retired == {}
    assert message.reason in caplog.text


async def test_a_consumer_emptied_by_another_client_is_unplaceable() -> None:
    placement = hosts(3)
    (instance,) = a_request().instances
    placement.held[instance] = Holding(4, {})
    message = await unplaceable(a_scheduler(placement), a_request())
    assert (message.instances, placement.held) == ((instance,), {})
    assert message.reason == f"what {instance} held was released by another client"
    assert instance in placement.retired
    assert await unplaceable(a_scheduler(placement), a_request()) == message


async def test_a_cell_publishes_the_end_of_its_build_again_if_the_request_is_repeated() -> None:
    placement, request = hosts(3), a_request(reply_to="me")
    (instance,) = request.instances
    placement.retired[instance], placement.ended_in[instance] = "error: no alternate is left", "c1"
    scheduler = a_scheduler(placement)
    (published,) = await scheduler.place_many([request])
    why = "error: no alternate is left"
    asked = BuildEndRequested(build=instance, cell="c1", request=request.request, why=why, reply_to="me")
    content = scheduler.orders.begin(request, 0.0).content
    assert content and published == (replace(asked, content=content),)
    assert placement.held == {}


@pytest.mark.parametrize("shelved", [False, True])
async def test_a_build_that_another_client_ended_or_that_is_shelved_is_not_mentioned_again(
    shelved: bool,
) -> None:
    placement = hosts(3)
    (instance,) = a_request().instances
    placement.retired[instance] = "shelved" if shelved else "active, then deleted"
    if shelved:
        placement.ended_in[instance] = "c1"
        placement.revivable.add(instance)
    assert await a_scheduler(placement).place_many([a_request()]) == [()]
    assert placement.held == {}


async def test_instances_of_a_request_are_claimed_together_on_different_hosts() -> None:
    placement = hosts(6)
    messages = await placed(a_scheduler(placement), a_request(instances=5))
    assert len(placement.orders) == 1
    assert len({message.chosen.root for message in messages}) == 5
    assert [message.build for message in messages] == list(a_request(instances=5).instances)


async def test_an_instance_deleted_before_placement_does_not_delay_the_others() -> None:
    placement = hosts(5)
    request = a_request(instances=3)
    placement.retired[request.instances[0]] = "deleted"
    assert [one.build for one in await placed(a_scheduler(placement), request)] == list(request.instances[1:])


async def test_a_host_that_fills_up_gives_way_to_the_next_choice() -> None:
    placement = hosts(3)
    placement.source.lag = True
    (loser,) = await placed(a_scheduler(placement), a_request())
    placement.held.clear()
    placement.source.packing.release(loser.chosen.choice.allocations)
    placement.take(loser.chosen.root, {"VCPU": 7})
    scheduler = a_scheduler(placement)
    (message,) = await placed(scheduler, a_request())
    assert message.chosen.root != loser.chosen.root
    assert placement.source.taken(message.chosen.root) == {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}
    assert placement.source.taken(loser.chosen.root) == {}
    assert message.decision.refused == (f"{loser.chosen.host}: {loser.chosen.root}: asked 1 VCPU, 0 free",)
    assert loser.chosen.root not in {alternate.root for alternate in message.alternates}
    record = message.decision.record
    assert record is not None and record.turned_down == (loser.chosen.root,)
    replayed = replay(message.build, record).host
    assert replayed is not None and replayed.root == message.chosen.root


@pytest.mark.parametrize("refusal", [Moved, NoSuchProvider], ids=["moved", "gone"])
async def test_a_changed_host_is_retried_and_a_deleted_one_comes_last(
    refusal: type[Moved | NoSuchProvider],
) -> None:
    sizes = {1: 1, 2: 9, 3: 9, 4: 9, 5: 1}
    placement = FakePlacement(*(a_candidate(number, free={"VCPU": n}) for number, n in sizes.items()))
    refusing = [refusal]
    claim_many = placement.claim_many

    async def refuse_once(orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        if not refusing:
            return await claim_many(orders)
        refused = refusing.pop()
        roots = [root for choice in orders[0].claims[0].choices for root in choice.allocations]
        return [ClaimAnswered(results=(Refused(refusals=tuple(refused(provider=one) for one in roots)),))]

    scheduler = scheduler_of(placement, claim_many=refuse_once, clock=TurnedClock().clock)
    (message,) = await placed(scheduler, a_request(flavor=Flavor(name="f", vcpus=1)))
    tried_again = message.chosen.host in {"host2", "host3", "host4"}
    assert tried_again == (refusal is Moved)
    assert len(message.decision.refused) == 3


async def test_a_host_that_refuses_again_and_again_is_named_once() -> None:
    placement = hosts(1)

    async def crowded(orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        crowd = RuleRefused(rule="groups", code="server_group", why="anti-affinity", provider=uid(0, "c"))
        return [ClaimAnswered(results=(Refused(refusals=(crowd,)),)) for _ in orders]

    time = TurnedClock()
    scheduler = scheduler_of(placement, claim_many=crowded, clock=time.clock)
    await retry(scheduler, a_request())
    time.now += 31
    await scheduler.handle(a_heartbeat(0))
    message = await unplaceable(scheduler, a_request())
    assert len(message.decision.refused) == 1
    assert message.reason.count("anti-affinity") == 1


async def test_a_contended_claim_is_retried_less_often_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    placement, time = hosts(3), TurnedClock()

    async def contended(orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        return [ClaimAnswered(results=(Contended(),)) for _ in orders]

    scheduler = scheduler_of(placement, claim_many=contended, clock=time.clock)
    assert 0.05 <= (await retry(scheduler, a_request())).after <= 0.2
    assert not placement.source.packing.taken and not caplog.records
    time.now += 31
    for number in range(3):
        await scheduler.handle(a_heartbeat(number))
    assert (await retry(scheduler, a_request())).after == 5.0
    assert f"request {a_request().request} has waited 31 s: its claim is contended" in caplog.text


async def test_a_placement_by_another_scheduler_precedes_no_host() -> None:
    placement = hosts(2)
    (first,) = await placed(a_scheduler(placement), a_request())
    for root in placement.hosts:
        placement.free[root]["VCPU"] = 0
    scheduler = a_scheduler(placement)
    await scheduler.handle(a_heartbeat(int(first.chosen.host[4:])))
    (again,) = await placed(scheduler, a_request())
    assert again.chosen.root == first.chosen.root
    assert placement.retired == {}


async def test_a_reason_never_outgrows_its_field() -> None:
    placement = hosts(1)
    request = a_request(zone="z" * 10_000)
    message = await unplaceable(a_scheduler(placement), request)
    assert len(placement.retired[request.instances[0]]) <= 4000
    assert len(message.reason) <= 4000


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param(
            {"metadata": {"notes": "x" * 65_536}}, "metadata: 65548 bytes, at most 65536", id="metadata"
        ),
        pytest.param(
            {"flavor": Flavor(name="f", vcpus=1, extra_specs={"notes": "x" * 300_000})},
            f"bytes together, at most {MAX_SPEC_BYTES} can be built",
            id="a large flavor",
        ),
        pytest.param(
            {"metadata": {"notes": "x" * 20_000}, "instances": 1000},
            f"bytes in all, at most {MAX_SPECS_BYTES} in one request",
            id="some metadata for many instances",
        ),
    ],
)
async def test_a_request_too_large_for_a_message_is_refused_before_claiming(
    fields: dict[str, object], reason: str
) -> None:
    placement = hosts(3)
    message = await unplaceable(a_scheduler(placement), a_request(**fields))  # type: ignore[arg-type]
    assert reason in message.reason
    assert placement.orders == []


async def test_many_large_requests_take_turns() -> None:
    placement = hosts(40, free={"VCPU": 1000, "MEMORY_MB": 10**7, "DISK_GB": 10**6})
    scheduler = a_scheduler(placement, policy=PLENTY)
    large = [a_request(n, instances=400, metadata={"notes": "x" * 20_000}) for n in range(5)]
    small, turns = a_request(99), []
    waiting = [*large, small]
    while waiting:
        verdicts = await scheduler.place_many(waiting)
        later = [one for one, reply in zip(waiting, verdicts, strict=True) if isinstance(reply, Retry)]
        turns.append(len(waiting) - len(later))
        waiting = later
    assert turns == [3, 2, 1]
    assert len(placement.held) == 5 * 400 + 1


async def test_an_unreachable_placement_is_not_reported_as_no_capacity() -> None:
    class Away(RecordingSource):
        def search(self, question: FindCandidates, *, empty: bool = False) -> HostSearch:
            raise Unavailable("placement's memory is not loaded yet")

    placement = hosts(2)
    scheduler = scheduler_of(placement, source=Away())
    requests = [a_request(1), a_request(2, flavor=BIG)]
    with pytest.raises(Unavailable):
        await scheduler.place_many(requests)
    assert placement.retired == {}


async def test_a_claim_without_an_answer_counts_until_it_must_have_been_seen() -> None:
    placement, time = hosts(1), TurnedClock()

    async def away(orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        raise NoAnswer("placement.claim: no answer within 10 s")

    scheduler = scheduler_of(placement, claim_many=away, clock=time.clock)
    with pytest.raises(Unavailable):
        await scheduler.place_many([a_request()])
    assert placement.source.taken(uid(0, "c"))
    time.now += 60
    scheduler.pending.expire()
    assert not placement.source.packing.taken


async def test_a_query_that_placement_refuses_does_not_fail_the_batch() -> None:
    class Particular(RecordingSource):
        def search(self, question: FindCandidates, *, empty: bool = False) -> HostSearch:
            if question.groups[0].resources.get("VCPU") == 3:
                raise SenselessQuery("no such resource class")
            return super().search(question, empty=empty)

    placement = hosts(4)
    placement.source = Particular(tuple(placement.hosts.values()), placement.free)
    claim_many = placement.claim_many

    async def strict(orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        if any(order.claims[0].project == "bad" for order in orders):
            raise AnswerRefused("placement.claim: project")
        return await claim_many(orders)

    scheduler = scheduler_of(placement, claim_many=strict)
    fields: list[dict[str, Any]] = [{}, {"flavor": Flavor(name="f", vcpus=3)}, {"project": "bad"}, {}]
    requests = [a_request(number, **given) for number, given in enumerate(fields)]
    one, two, three, four = await messages_of(scheduler, *requests)
    assert isinstance(one, BuildPlaced) and isinstance(four, BuildPlaced)
    assert isinstance(two, BuildUnplaceable) and two.reason == "no such resource class"
    assert isinstance(three, BuildUnplaceable) and three.reason == "placement.claim: project"


async def test_an_unplaceable_request_that_cannot_be_fenced_is_retried() -> None:
    placement = hosts(0)

    async def refuse(question: ReleaseRequested) -> ReleaseAnswered:
        raise AnswerRefused("placement.release: consumer")

    async def contend(question: ReleaseRequested) -> ReleaseAnswered:
        return ReleaseAnswered(result=Contended())

    async def hold(question: ReleaseRequested) -> ReleaseAnswered:
        return ReleaseAnswered(result=Held(generation=1, allocations={}))

    for release, expected in ((refuse, Poison), (contend, Retry), (hold, Retry)):
        scheduler = scheduler_of(placement, release=release)
        (verdict,) = await scheduler.place_many([a_request()])
        assert isinstance(verdict, expected)


async def test_claims_are_released_if_no_conductor_consumes_them_for_a_minute() -> None:
    """However often its request came before: it may have waited for room, and the conductor just starts."""
    placement, time = hosts(1), TurnedClock()
    scheduler = a_scheduler(placement, time)
    first, second = await placed(scheduler, a_request(1, instances=2))
    for _ in range(6):
        with pytest.raises(Retry) as again:
            await scheduler.ending.undo_placed(first)
        assert 0 < again.value.after <= 10
        assert placement.held.keys() == {first.build, second.build}
        time.now += 9.9
    time.now += 1
    for one in (first, second):
        ended = await scheduler.ending.undo_placed(one)
        assert ended is not None and ended.instances == (one.build,)
    assert placement.held == {}


async def test_failures_on_unknown_roots_are_ignored() -> None:
    """A cell may name as many roots as it likes; each would take memory in every scheduler."""
    scheduler = a_scheduler(hosts(2))
    unknown = HostFailed(root=uid(9, "d"), host="h", agent="a", cell="cell1", build=uid(1), attempt=1)
    await scheduler.on_host_failed(unknown)
    assert failed_builds(scheduler.book, "cell1", unknown.root, scheduler.clock.monotonic()) == 0.0


async def test_a_request_counts_once_as_demand_however_often_it_is_tried() -> None:
    scheduler = a_scheduler(hosts(3))
    scheduler.begin([a_request()])
    scheduler.begin([a_request()], again=True)
    [weight] = scheduler.demand.taken().values()
    assert weight == weight_at(scheduler.clock.now())
