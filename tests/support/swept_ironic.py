"""An Ironic that is swept or followed, in virtual time, with a placement in memory."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bus.clock import Clock
from bus.messages import InventoryReported
from bus.rabbit.foreign.listener import Gap, HandleBodies
from bus.resources import FindProviders, Provider, ProvidersFound
from ironic_sync.comparison import diff
from ironic_sync.core.known_state import KnownStateRules, Moment
from ironic_sync.core.node import Place, from_rest
from ironic_sync.core.rule import report
from ironic_sync.core.selection import NodeSelection
from ironic_sync.survey import Survey, SurveyedNode
from ironic_sync.sweep import Sweep
from placement_worker.core.reports import reported
from placement_worker.core.trees import Tree
from tests.support.fake_ironic import FakeIronic, node_number
from tests.support.ironic_builders import a_notification

SELECTION = NodeSelection(cell="c1", aggregates_by=("properties.rack",), zone_by="properties.az")


_OF_PROVIDERS = ("name", "parent", "generation", "inventories", "used", "traits", "aggregates")
_OF_TREES = ("root", "host", "cell", "agent", "zone", "sequence", "gone")


class PlacedTrees:
    """A placement that stores reported trees as they are, and answers queries for providers."""

    def __init__(self) -> None:
        self.trees: dict[str, Tree] = {}
        self.questions: list[FindProviders] = []
        self.before: Callable[[FindProviders], None] = lambda query: None

    def report(self, *reports: InventoryReported) -> None:
        for each in reports:
            self.trees[each.root] = reported(self.trees.get(each.root, Tree(each.root)), each)

    def hold(self, number: int, amount: int = 1) -> None:
        tree = self.trees[node_number(number)]
        (provider,) = tree.providers
        used = dict.fromkeys(provider.inventories, amount)
        self.trees[tree.root] = replace(tree, providers=(replace(provider, used=used),))

    async def find(self, query: FindProviders) -> ProvidersFound:
        self.questions.append(query)
        self.before(query)
        behind = sorted(root for root, tree in self.trees.items() if tree.agent in query.agents)
        page = [root for root in behind if root > query.after and self.trees[root].providers][: query.limit]
        matching = [self.trees[root] for root in query.ids or page if root in self.trees]
        found = [
            Provider(
                id=provider.uuid,
                **{name: getattr(provider, name) for name in _OF_PROVIDERS},
                **{name: getattr(tree, name) for name in _OF_TREES},
                label_sources=tree.labels,
            )
            for tree in matching
            for provider in tree.providers
        ]
        return ProvidersFound(providers=tuple(found))

    def open(self) -> set[int]:
        """Return the numbers of the nodes on which an instance can be placed."""
        providers = [provider for tree in self.trees.values() for provider in tree.providers]
        return {
            int(one.uuid[-12:], 16)
            for one in providers
            if any(inventory.reserved == 0 for inventory in one.inventories.values())
        }

    def is_open(self, number: int) -> bool:
        return number in self.open()


class SweptIronic:
    """A small Ironic, a placement, and the sweep that compares them. Only the test advances the clock."""

    def __init__(self, selection: NodeSelection = SELECTION, ironic: FakeIronic | None = None, **more: Any):
        self.ironic = ironic or FakeIronic()
        self.placed = PlacedTrees()
        self.now = 1_800_000_000.0
        self.sent: list[list[SurveyedNode]] = []
        self.clock = Clock(lambda: self.now, random.Random(1), lambda: self.now)
        reads = selection.only_reads_place
        self.rules = KnownStateRules(place=selection.place, can_read=True, only_reads_place=reads)
        page, find = more.pop("page", 500), more.pop("find", self.placed.find)
        self.api = self.ironic.api(clock=self.clock)
        self.survey = Survey(self.api, find, selection, self.rules, self.moment, page=page)
        self.sweep = Sweep(self.survey, self.tell, self.clock, **{"pages_per_second": 1e9} | more)

    async def __aenter__(self) -> "SweptIronic":
        await self.api.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.api.close()

    async def swept(self, count: int, **fields: Any) -> None:
        """Enroll `count` nodes, numbered from 0, and sweep once."""
        for number in range(count):
            self.ironic.have(number, **fields)
        await self.sweep.round()

    def moment(self) -> Moment:
        self.now += 1
        return Moment(self.now, 0)

    async def tell(self, seen: Sequence[SurveyedNode]) -> None:
        self.sent.append(list(seen))
        self.placed.report(*(reply for one in seen if (reply := one.report(self.rules)) is not None))

    def event(self, number: int, at: float, **node: Any) -> None:
        self.ironic.change(number, **node)
        self.say(number, at)

    def say(self, number: int, at: float) -> None:
        node, place = self.ironic.nodes[node_number(number)], Place(cell="c1", agent="c1-metal")
        reply = report(from_rest(node), place, int(at * 1e6))
        assert reply is not None
        self.placed.report(reply)

    async def differences(self) -> list[str]:
        return [difference.what for difference in (await diff(self.survey)).differences]

    def reported(self) -> set[int]:
        return {int(one.uuid[-12:], 16) for seen in self.sent for one in seen}


class ManualNotifications:
    """A source of Ironic's notifications without a broker: a test sends them."""

    def __init__(self) -> None:
        self.bound = asyncio.Event()
        self.subscribed = False
        self._handle: HandleBodies
        self._gap: Gap

    async def run(self, handle: HandleBodies, gap: Gap) -> None:
        self._handle, self._gap = handle, gap
        self.subscribed = True
        gap()
        self.bound.set()
        await asyncio.get_running_loop().create_future()

    async def say(self, event: str, at: float, node: dict[str, Any]) -> None:
        await self.bound.wait()
        await self._handle([a_notification(event, at, node)])

    async def say_bytes(self, *bodies: bytes) -> None:
        await self.bound.wait()
        await self._handle(bodies)

    def disconnect(self) -> None:
        """Simulate that the broker becomes unreachable."""
        self.subscribed = False

    def reconnect(self) -> None:
        self.subscribed = True
        self._gap()
