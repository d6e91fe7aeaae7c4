"""Sweeps bring placement to what Ironic says, whatever happens meanwhile, and never take away too much."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from bus.clock import Clock
from bus.errors import NoAnswer, Unavailable
from bus.messages import FindProviders, InventoryReported
from ironic_sync import sweep
from ironic_sync.api import IronicRefused
from ironic_sync.core.belief import BeliefRules, Moment
from ironic_sync.core.node import Place, from_rest
from ironic_sync.core.rule import report
from ironic_sync.core.selection import NodeSelection
from ironic_sync.side_by_side import Comparison, diff
from ironic_sync.survey import Survey, SurveyedNode
from ironic_sync.sweep import Sweep
from tests.fake_ironic import FakeIronic, fault, node_number
from tests.followed_ironic import PlacedTrees

SELECTION = NodeSelection(cell="c1", aggregates_by=("properties.rack",), zone_by="properties.az")


class Everything:
    """A little Ironic, a placement, and a sweep between them. Its clock stands still unless it is moved."""

    def __init__(
        self, selection: NodeSelection = SELECTION, ironic: FakeIronic | None = None, **more: Any
    ) -> None:
        self.ironic = ironic or FakeIronic()
        self.placed = PlacedTrees()
        self.now = 1_800_000_000.0
        self.heard = 0
        self.told: list[list[SurveyedNode]] = []
        self.clock = Clock(lambda: self.now, random.Random(1), lambda: self.now)
        self.rules = BeliefRules(
            place=selection.place, can_read=True, only_reads_place=selection.only_reads_place
        )
        page = more.pop("page", 500)
        self.api = self.ironic.api(clock=self.clock)
        self.survey = Survey(self.api, self.placed.find, selection, self.rules, self.moment, page=page)
        self.sweep = Sweep(self.survey, self.tell, self.clock, **{"pages_per_second": 1e9} | more)

    async def __aenter__(self) -> "Everything":
        await self.api.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.api.close()

    def moment(self) -> Moment:
        self.now += 1
        return Moment(self.now, self.heard)

    async def tell(self, seen: Sequence[SurveyedNode]) -> None:
        self.told.append(list(seen))
        self.placed.report(*(said for one in seen if (said := one.report(self.rules)) is not None))

    def event(self, number: int, at: float, **node: Any) -> None:
        """Ironic's node changes, and placement hears of it at once, as of this time."""
        self.ironic.change(number, **node)
        self.say(number, at)

    def say(self, number: int, at: float) -> None:
        said = report(
            from_rest(self.ironic.nodes[node_number(number)]), Place(cell="c1", agent="c1-metal"), 0
        )
        assert said is not None
        self.placed.report(InventoryReported(**{**_fields(said), "sequence": int(at * 1e6)}))

    async def differences(self) -> list[str]:
        return [one.what for one in (await diff(self.survey)).differences]

    def told_of(self) -> set[int]:
        return {int(one.uuid[-12:], 16) for seen in self.told for one in seen}


def _fields(message: InventoryReported) -> dict[str, Any]:
    return {field: getattr(message, field) for field in message.__struct_fields__}


# Everything


async def test_all_of_ironic_comes_to_placement() -> None:
    async with Everything() as all_:
        all_.ironic.have(1, traits=["CUSTOM_A"], properties={"rack": "r1", "az": "z1"})
        all_.ironic.have(2, provision_state="active", instance_uuid=node_number(99))
        all_.ironic.have(3, resource_class="Bare Metal")
        await all_.sweep.round()
        assert await all_.differences() == []
        assert all_.placed.open() == {1, 3}
        (tree,) = [tree for tree in all_.placed.trees.values() if tree.root == node_number(1)]
        assert (tree.cell, tree.agent, tree.zone) == ("c1", "c1-metal", "z1")
        assert tree.providers[0].traits == ("CUSTOM_A",) and len(tree.providers[0].aggregates) == 1


CHANGES: dict[str, dict[str, Any]] = {
    "closed": {"maintenance": True},
    "another class": {"resource_class": "tin"},
    "a trait": {"traits": ["CUSTOM_B"]},
    "another rack": {"properties": {"rack": "r2"}},
    "another zone": {"properties": {"az": "z2"}},
}


@pytest.mark.parametrize("full", [True, False], ids=["by reading everything", "by what changed"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_what_no_event_told_is_found(change: dict[str, Any], full: bool) -> None:
    async with Everything(full_every=1 if full else 99) as all_:
        for number in range(5):
            all_.ironic.have(number, properties={"rack": "r1"})
        await all_.sweep.round()
        all_.told.clear()
        all_.ironic.change(3, **change)
        assert len(await all_.differences()) >= 1
        await all_.sweep.round()
        assert await all_.differences() == []
        assert all_.told_of() == {3}


async def test_who_is_as_he_should_be_is_not_told_of() -> None:
    async with Everything(full_every=1) as all_:
        for number in range(5):
            all_.ironic.have(number)
        await all_.sweep.round()
        all_.told.clear()
        await all_.sweep.round()
        assert all_.told == []


async def test_a_class_that_is_still_held_under_its_old_name_is_no_difference() -> None:
    async with Everything(full_every=1) as all_:
        all_.ironic.have(1)
        await all_.sweep.round()
        all_.placed.hold(1)
        all_.ironic.change(1, resource_class="tin")
        await all_.sweep.round()
        assert await all_.differences() == []


async def test_what_people_must_put_right_is_listed_and_left_alone() -> None:
    async with Everything(NodeSelection(cell="c1", owners=("me", "us")), full_every=1) as all_:
        for number in range(4):
            all_.ironic.have(number, owner="me")
        await all_.sweep.round()
        all_.told.clear()
        all_.ironic.change(0, owner="you")
        all_.ironic.change(1, resource_class=None)
        all_.ironic.change(2, resource_class="x" * 300)
        all_.ironic.have(7, owner="you")
        await all_.sweep.round()
        found = (await diff(all_.survey)).differences
        assert [(one.what, one.node, one.stays) for one in found] == [
            ("bad", node_number(2), True),
            ("no class", node_number(1), True),
            ("not ours", node_number(0), True),
        ]
        assert all_.told == [] and node_number(7) not in all_.placed.trees


# What changed lately


async def test_rounds_in_between_only_read_what_changed() -> None:
    async with Everything(full_every=3) as all_:
        for number in range(1000):
            all_.ironic.have(number)
        all_.ironic.change(5)
        await all_.sweep.round()
        pages = []
        for _ in range(3):
            before = len(all_.ironic.requests)
            all_.ironic.change(7, maintenance=not all_.ironic.nodes[node_number(7)]["maintenance"])
            all_.ironic.have(len(all_.ironic.nodes))  # a new one
            await all_.sweep.round()
            pages.append([one.url.params.get("sort_key", "") for one in all_.ironic.requests[before:]])
            assert await all_.differences() == []
        lately = ["updated_at", "created_at"]
        assert pages == [lately, lately, [*lately, "", "", ""]]  # the third reads everything
        assert all_.told_of() >= {7, 1000, 1001, 1002}


async def test_what_was_written_just_before_the_last_round_and_seen_only_now_is_not_missed() -> None:
    async with Everything(full_every=99) as all_:
        for number in range(1, 4):
            all_.ironic.have(number)
        all_.ironic.change(1)
        await all_.sweep.round()
        all_.ironic.now -= 2
        all_.ironic.change(2, maintenance=True)  # dated before what was seen already
        await all_.sweep.round()
        assert await all_.differences() == []


async def test_when_too_much_changed_everything_is_read() -> None:
    async with Everything(full_every=99) as all_:
        for number in range(1300):
            all_.ironic.have(number)
        all_.ironic.change(7)
        await all_.sweep.round()
        for number in range(1300):
            all_.ironic.change(number, maintenance=True)
        before = len(all_.ironic.requests)
        await all_.sweep.round()
        assert any("sort_key" not in one.url.params for one in all_.ironic.requests[before:])
        assert all_.placed.open() == set() and await all_.differences() == []


@pytest.mark.parametrize("never_updated", [1, 150])
async def test_an_ironic_whose_database_cannot_sort_by_time_is_read_whole(never_updated: int) -> None:
    """PostgreSQL lists those that were never updated before the newest, and paging then loses some."""
    ironic = FakeIronic(nulls_first=True)
    async with Everything(ironic=ironic, full_every=2) as all_:
        for number in range(never_updated + 1):
            ironic.have(number)
        ironic.change(0)
        await all_.sweep.round()
        ironic.change(0, maintenance=True)
        before = len(ironic.requests)
        await all_.sweep.round()
        assert len(ironic.requests) == before  # it is left to the next that is whole
        await all_.sweep.round()
        assert await all_.differences() == []


@pytest.mark.parametrize("nulls_first", [False, True])
async def test_as_long_as_no_node_was_ever_updated_there_is_nothing_to_sort(nulls_first: bool) -> None:
    ironic = FakeIronic(nulls_first=nulls_first)
    async with Everything(ironic=ironic, full_every=99) as all_:
        for number in range(150):
            ironic.have(number)
        await all_.sweep.round()
        ironic.have(777)
        await all_.sweep.round()
        assert 777 in all_.placed.open()
        ironic.change(7, maintenance=True)
        await all_.sweep.round()
        assert 7 not in all_.placed.open()


# Meanwhile


def when_listed(all_: Everything, page: int, then: Callable[[], None]) -> None:
    """Something happens while this page is on its way: it is older than that."""
    answer, pages = all_.ironic._list, [0]

    def listing(params: dict[str, str], fields: list[str] | None) -> httpx.Response:
        answered = answer(params, fields)
        answered.read()
        if "sort_key" not in params:
            pages[0] += 1
            if pages[0] == page:
                then()
        return answered

    all_.ironic._list = listing  # type: ignore[method-assign]


@pytest.mark.parametrize("skew", [0.0, 3600.0], ids=["clocks agree", "Ironic's is an hour ahead"])
async def test_an_event_during_the_sweep_is_not_undone_by_an_older_page(skew: float) -> None:
    async with Everything(full_every=1) as all_:
        all_.ironic.have(1, provision_state="active")
        all_.ironic.have(2)
        await all_.sweep.round()
        all_.event(1, all_.now + 5 + skew, provision_state="cleaning")
        all_.ironic.change(1, provision_state="available")  # no event
        when_listed(all_, 1, lambda: all_.event(1, all_.now + 10 + skew, maintenance=True))
        await all_.sweep.round()
        assert all_.placed.open() == {2}
        await all_.sweep.round()
        assert await all_.differences() == []


async def test_what_an_hours_wrong_clock_dated_is_repaired_when_it_is_missed_later() -> None:
    """By order, not by date: placement heard nothing since before the node was read."""
    async with Everything(full_every=1) as all_:
        all_.ironic.have(1)
        all_.event(1, all_.now + 3600)
        all_.ironic.change(1, maintenance=True)  # no event
        await all_.sweep.round()
        assert all_.placed.open() == set()


async def test_between_reading_and_telling_placement_is_looked_at_again() -> None:
    async with Everything(full_every=1) as all_:
        all_.ironic.have(1)
        await all_.sweep.round()
        all_.told.clear()
        all_.ironic.change(1, maintenance=True)

        def event_before_telling(query: FindProviders) -> None:
            if query.ids:
                all_.say(1, all_.now - 0.5)

        all_.placed.before = event_before_telling
        await all_.sweep.round()
        assert all_.told == []


async def test_a_node_that_appears_between_pages_is_seen() -> None:
    async with Everything(page=3) as all_:
        for number in range(7):
            all_.ironic.have(number)
        when_listed(all_, 2, lambda: None if node_number(77) in all_.ironic.nodes else _have(all_, 77))
        await all_.sweep.round()
        assert 77 in all_.placed.open() and await all_.differences() == []


def _have(all_: Everything, number: int) -> None:
    all_.ironic.have(number)


async def test_a_node_the_listing_left_out_is_read_before_it_is_called_gone() -> None:
    """It was made after the last page, and an event told of it."""
    async with Everything(full_every=1) as all_:
        all_.ironic.have(1)
        await all_.sweep.round()
        listing = all_.ironic._list
        all_.ironic._list = (  # type: ignore[method-assign]
            lambda params, fields: (
                httpx.Response(200, json={"nodes": []})
                if "sort_key" not in params
                else listing(params, fields)
            )
        )
        await all_.sweep.round()
        assert all_.placed.open() == {1}


AWAY = {
    "Ironic, at once": 1,
    "Ironic, in the middle": 3,
}


@pytest.mark.parametrize("page", AWAY.values(), ids=AWAY.keys())
async def test_ironic_going_away_ends_the_round_and_the_next_reads_all(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_sleep(seconds: float) -> None: ...

    async with Everything(page=3, full_every=99) as all_:
        for number in range(12):
            all_.ironic.have(number)
        await all_.sweep.round()
        for number in range(12):
            all_.ironic.change(number, maintenance=True)
        for number in range(12, 14):
            all_.ironic.have(number)
        asked: list[str] = []

        def before(request: httpx.Request) -> httpx.Response | None:
            if request.url.path == "/v1/nodes":
                asked.append(request.url.path)
            return fault(503, "away") if len(asked) >= page else None

        all_.sweep._rounds_to_full = 0
        all_.ironic.before = before
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", no_sleep)
            with pytest.raises(Unavailable):
                await all_.sweep.round()
        assert len(all_.placed.open()) == 12 - 3 * (page - 1)  # what had been read is told
        assert len(all_.placed.trees) == 12  # and nobody is called gone
        all_.ironic.before = lambda request: None
        await all_.sweep.round()
        assert await all_.differences() == [] and len(all_.placed.trees) == 14


async def test_after_trouble_the_next_round_reads_all_for_what_went_leaves_no_mark() -> None:
    async with Everything(full_every=99) as all_:
        for number in range(3):
            all_.ironic.have(number)
        await all_.sweep.round()
        all_.placed.before = _away
        all_.ironic.change(2, maintenance=True)
        with pytest.raises(Unavailable):
            await all_.sweep.round()
        all_.placed.before = lambda query: None
        del all_.ironic.nodes[node_number(1)]
        await all_.sweep.round()
        assert all_.placed.open() == {0} and await all_.differences() == []


def _away(query: FindProviders) -> None:
    raise NoAnswer("nobody")


async def test_placement_being_away_ends_the_round_too() -> None:
    async with Everything() as all_:
        all_.ironic.have(1)
        all_.placed.before = _away
        with pytest.raises(Unavailable):
            await all_.sweep.round()
        all_.placed.before = lambda query: None
        await all_.sweep.round()
        assert await all_.differences() == []


async def test_an_ironic_that_refuses_ends_the_round_as_well() -> None:
    async with Everything() as all_:
        all_.ironic.have(1)
        all_.ironic.before = lambda request: fault(403, "you may not list nodes")
        with pytest.raises(IronicRefused, match="you may not list nodes"):
            await all_.sweep.round()
        all_.ironic.before = lambda request: None
        await all_.sweep.round()
        assert all_.placed.open() == {1}


# Gone


async def test_a_node_that_is_gone_is_removed() -> None:
    async with Everything(full_every=1) as all_:
        for number in range(5):
            all_.ironic.have(number)
        await all_.sweep.round()
        del all_.ironic.nodes[node_number(3)]
        assert await all_.differences() == ["gone"]
        await all_.sweep.round()
        assert all_.placed.open() == {0, 1, 2, 4} and await all_.differences() == []


async def test_what_is_gone_but_held_stays_closed_and_is_no_news() -> None:
    async with Everything(full_every=1) as all_:
        all_.ironic.have(1)
        all_.ironic.have(2)
        await all_.sweep.round()
        all_.placed.hold(1)
        del all_.ironic.nodes[node_number(1)]
        await all_.sweep.round()
        assert all_.placed.open() == {2} and node_number(1) in all_.placed.trees
        all_.told.clear()
        await all_.sweep.round()
        assert all_.told == [] and await all_.differences() == []
        all_.ironic.have(1)
        await all_.sweep.round()
        assert all_.placed.open() == {1, 2}


@pytest.mark.parametrize(
    "nodes, gone, share, removed",
    [(100, 10, 0.1, 10), (100, 11, 0.1, 0), (5, 3, 0.1, 3), (5, 4, 0.1, 0), (5, 5, 1.0, 5), (200, 0, 0.1, 0)],
)
async def test_many_at_once_look_like_a_mistake(
    nodes: int, gone: int, share: float, removed: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with Everything(full_every=1, share=share) as all_:
        for number in range(nodes):
            all_.ironic.have(number)
        await all_.sweep.round()
        for number in range(gone):
            del all_.ironic.nodes[node_number(number)]
        all_.ironic.change(nodes - 1, traits=["CUSTOM_A"]) if gone < nodes else None
        await all_.sweep.round()
        assert len(all_.placed.open()) == nodes - removed
        assert ("berth ironic sweep --allow-removals" in caplog.text) == (removed < gone)
        assert await all_.differences() == ["gone"] * (gone - removed)  # all else is repaired, and this seen


async def test_until_it_is_allowed() -> None:
    async with Everything(full_every=1) as all_:
        for number in range(20):
            all_.ironic.have(number)
        await all_.sweep.round()
        all_.ironic.nodes.clear()
        await all_.sweep.round()
        assert len(all_.placed.open()) == 20
        allowed = Sweep(all_.survey, all_.tell, all_.clock, pages_per_second=1e9, allow_removals=True)
        await allowed.everything()
        assert all_.placed.open() == set() and await all_.differences() == []


async def test_a_guard_that_stops_does_not_read_every_missing_node_first() -> None:
    async with Everything(full_every=1) as all_:
        for number in range(500):
            all_.ironic.have(number)
        await all_.sweep.round()
        all_.ironic.nodes.clear()
        before = len(all_.ironic.requests)
        await all_.sweep.round()
        assert len(all_.ironic.requests) - before < 80


async def test_hosts_of_the_same_agent_that_are_no_nodes_are_never_taken_away() -> None:
    from bus.vocabulary import Inventory, ProviderReport

    async with Everything(full_every=1) as all_:
        all_.ironic.have(1)
        root = node_number(55)
        host = ProviderReport(id=root, name="host-55", inventories={"VCPU": Inventory(total=8)})
        all_.placed.report(
            InventoryReported(
                root=root, host="host-55", cell="c1", agent="c1-metal", sequence=1, providers=(host,)
            )
        )
        await all_.sweep.round()
        assert all_.placed.trees[root].providers and await all_.differences() == []


async def test_what_became_another_cells_moves_there() -> None:
    selection = NodeSelection(cell_by="properties.site", cells={"w": "west", "e": "east"})
    async with Everything(selection, full_every=1) as all_:
        all_.ironic.have(1, properties={"site": "w"})
        await all_.sweep.round()
        all_.ironic.change(1, properties={"site": "e"})
        await all_.sweep.round()
        tree = all_.placed.trees[node_number(1)]
        assert (tree.cell, tree.agent) == ("east", "east-metal") and await all_.differences() == []


# Many


@pytest.mark.slow
async def test_ten_thousand_nodes_in_pages_without_holding_up_events() -> None:
    async with Everything(full_every=1) as all_:
        for number in range(10_000):
            all_.ironic.have(number)
        turns = [0]

        async def events() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(events())
        await all_.sweep.round()
        other.cancel()
        assert turns[0] > 10_000 / 50  # however long it took, others had their turn
        assert len(all_.placed.open()) == 10_000
        all_.told.clear()
        for number in range(0, 10_000, 100):
            all_.ironic.change(number, maintenance=True)
        await all_.sweep.round()
        assert len(all_.told_of()) == 100 and len(all_.placed.open()) == 9_900
        assert all(len(one.ids) <= 200 and one.limit <= 200 for one in all_.placed.questions)


@pytest.mark.parametrize("took, least, most", [(0.0, 0.2, 0.3), (0.1, 0.1, 0.2), (0.5, 0.0, 0.0)])
async def test_pages_come_no_faster_than_they_may(
    took: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four a second, whatever each took, and never in step with others."""
    waited: list[float] = []
    now = [0.0]
    real: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await real(0)

    async with Everything(page=10, pages_per_second=4) as all_:
        for number in range(95):
            all_.ironic.have(number)
        listing = all_.ironic._list

        def slow(params: dict[str, str], fields: list[str] | None) -> httpx.Response:
            now[0] += took
            return listing(params, fields)

        all_.ironic._list = slow  # type: ignore[method-assign]
        monkeypatch.setattr(sweep, "monotonic", lambda: now[0])
        monkeypatch.setattr(sweep, "asyncio", SimpleNamespace(sleep=sleep))
        await all_.sweep.round()
    assert len(waited) == 10 and all(least - 1e-9 <= seconds <= most + 1e-9 for seconds in waited)
    assert len(set(waited)) > 1 or most == 0


async def test_the_comparison_counts_both_sides() -> None:
    async with Everything() as all_:
        for number in range(3):
            all_.ironic.have(number)
        await all_.sweep.round()
        all_.ironic.have(4)
        compared = await diff(all_.survey)
        assert isinstance(compared, Comparison)
        assert (compared.nodes, compared.placed, len(compared.differences)) == (4, 3, 1)
