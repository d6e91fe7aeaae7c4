"""The scheduler's narrowings and fallbacks: which orders they are asked about, and what their answers do."""

from collections.abc import Sequence
from typing import Any

from bus.messages import BuildPlaced, BuildUnplaceable
from bus.vocabulary import Id
from scheduler_worker.core.order import Order
from scheduler_worker.dependencies import SchedulerOptions
from scheduler_worker.extension import BaseFallback, FallbackAnswer, HostLimit, NoNarrowing, Scope
from scheduler_worker.hosts import KnownHosts
from scheduler_worker.placing import Orders, Scheduler
from tests.support.ids import uid
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request
from tests.support.schedulers import messages_of, scheduler_of
from tests.support.virtual_time import TurnedClock


class RecordedNarrowing(NoNarrowing):
    """A narrowing for requests of the project p, which keeps them from the first host."""

    def __init__(self) -> None:
        self.calls = list[str]()

    def concerns(self, order: Order) -> bool:
        return order.request.project == "p"

    async def prepare(self, orders: Sequence[Order], again: bool) -> Sequence[Order]:
        self.calls.append(f"prepare {len(orders)}")
        return orders

    def limit(self, orders: Sequence[Order]) -> Sequence[Order]:
        self.calls.append(f"limit {len(orders)}")
        limit = HostLimit("reserved", "kept for others", frozenset({uid(1, "c")}), lambda root: "kept")
        return [order.limited(limit) for order in orders]

    def scope(self, order: Order, alternatives: Sequence[Any]) -> Scope:
        self.calls.append("scope")
        return Scope(alone=True)


class Passing(BaseFallback):
    """A fallback that passes all orders, with a reason."""

    def __init__(self) -> None:
        self.asked = list[Id]()

    async def handle(self, orders: Sequence[Order], placing: Scheduler) -> Sequence[FallbackAnswer]:
        self.asked += [order.request.request for order in orders]
        return [order.with_obstacle(f"{order.verdict.obstacle}; {len(self.asked)} asked") for order in orders]


async def test_boots_are_placed_without_any_narrowing_or_fallback() -> None:
    placement, options = FakePlacement(a_candidate(1)), SchedulerOptions()
    hosts = KnownHosts(placement.source, TurnedClock().clock, options.grace, options.policy.cells)
    orders = Orders(placement.source, options.requests, options.policy).follow()
    scheduler = Scheduler(hosts, orders, placement.queries(), options, lambda _: ())
    placed, unplaceable = await messages_of(scheduler, a_request(1), a_request(2, forced_host="unknown"))
    assert isinstance(placed, BuildPlaced) and isinstance(unplaceable, BuildUnplaceable)


async def test_a_narrowing_is_called_once_for_all_orders_that_it_concerns_and_never_for_others() -> None:
    recorded = RecordedNarrowing()
    scheduler = scheduler_of(FakePlacement(a_candidate(1), a_candidate(2)), narrowings=[recorded])
    await messages_of(scheduler, a_request(1), a_request(2))
    assert not recorded.calls
    requests = [a_request(number, project=project) for number, project in enumerate(("p", "q", "p"), 3)]
    messages = await messages_of(scheduler, *requests)
    assert recorded.calls[:2] == ["prepare 2", "limit 2"] and "scope" in recorded.calls
    hosts = [message.chosen.host for message in messages if isinstance(message, BuildPlaced)]
    assert (hosts[0], hosts[2]) == ("host2", "host2")


async def test_fallbacks_are_asked_in_turn_for_orders_without_a_host_only() -> None:
    first, second = Passing(), Passing()
    scheduler = scheduler_of(FakePlacement(a_candidate(1)), fallbacks=[first, second])
    _, ended = await messages_of(scheduler, a_request(1), a_request(2, zone="elsewhere"))
    assert first.asked == second.asked == [uid(2, "a")]
    assert isinstance(ended, BuildUnplaceable) and ended.reason.endswith("; 1 asked; 1 asked")
