"""`berth ironic diff` and `sweep`, and the worker that repairs what they find, on one bus with placement."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from berth.commands.ironic import diff_command, stuck_command, sweep_command
from berth.commands.ironic_access import access_of
from berth.commands.nodes import NodeOptions, publish_command
from berth.composition import open_placement
from berth.features import packages
from berth.kit.dry_run import ActCli
from berth.kit.listing import ListCli
from berth.kit.terminal import Cli
from berth.settings import BadSetting, Settings
from bus import topics
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.local import LocalBroker, LocalTransport
from bus.resources import FindProviders
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker
from control_room.core.metal import BoardNode, MetalNodes, PlacementRecord
from ironic_sync.core.selection import NodeSelection
from ironic_sync.worker import FollowedIronic, ironic_sync
from placement_worker import placement_worker
from tests.support.command_line import plainly
from tests.support.fake_ironic import FakeIronic, node_number
from tests.support.waiting import until

SELECTION = NodeSelection(cell="c1")


class PlacementBesideIronic:
    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.ironic = FakeIronic()
        self.reply = io.StringIO()
        self.say = Console(file=self.reply, soft_wrap=True, width=200)

    def followed(self) -> FollowedIronic:
        return FollowedIronic(selection=SELECTION, api=self.ironic.api(), pages_per_second=1000.0)

    async def diff(self, as_json: bool = False) -> tuple[int, list[str]]:
        self.reply.truncate(self.reply.seek(0))
        code = await diff_command(Cli(Settings(), as_json, self.say))
        return code, self.reply.getvalue().splitlines()

    async def sweep(self, allow_removals: bool = False, *, dry_run: bool = False) -> None:
        await sweep_command(ActCli(Settings(), say=self.say, dry_run=dry_run), allow_removals)

    @asynccontextmanager
    async def serving(self, worker: Callable[[Bus], Worker]) -> AsyncIterator[None]:
        stopping = asyncio.Event()
        async with Bus(LocalTransport(self.broker)) as bus, asyncio.TaskGroup() as group:
            group.create_task(bus.serve(worker(bus), stopping))
            try:
                yield
            finally:
                stopping.set()

    def following(self, bus: Bus) -> Worker:
        """Return the ironic worker, which sweeps when it starts."""
        return ironic_sync(self.followed(), bus.publish, bus.asker(topics.PROVIDERS), clock=bus.clock)


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlacementBesideIronic]:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/placement.db")
    await migrate(database, *packages("placement"))
    made = PlacementBesideIronic(LocalBroker())
    monkeypatch.setattr("berth.ironic.followed", lambda settings, clock: made.followed())
    monkeypatch.setattr("berth.composition.transport", lambda settings, name: LocalTransport(made.broker))
    async with made.serving(
        lambda bus: placement_worker(open_placement(Settings(), database, Clock()), bus.publish, ("c1",))
    ):
        await until(lambda: "ask:placement.providers" in made.broker.queues)
        yield made
    await database.close()


async def in_step(house: PlacementBesideIronic) -> bool:
    return (await house.diff())[0] == 0


async def synchronized(house: PlacementBesideIronic, *numbers: int) -> None:
    for number in numbers:
        house.ironic.have(number)
    async with house.serving(house.following):
        await until(lambda: in_step(house))


async def claimed(house: PlacementBesideIronic, number: int, build: str) -> None:
    """Claim the node for a build."""
    choice = Choice({node_number(number): {"CUSTOM_GOLD": 1}})
    order = ClaimRequested(claims=(ConsumerClaim(consumer=build, generation=None, choices=(choice,)),))
    async with Bus(LocalTransport(house.broker)) as bus:
        (result,) = (await bus.asker(topics.CLAIM)(order)).results
        assert isinstance(result, Claimed)


async def test_the_diff_lists_instances_that_ironic_does_not_have(
    house: PlacementBesideIronic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ironic_sync.comparison.SETTLING_SECONDS", 0.05)
    await synchronized(house, *range(1, 4))
    builds = [node_number(90 + number) for number in range(4)]
    for number in range(1, 4):
        await claimed(house, number, builds[number])
        house.ironic.change(number, provision_state="active", instance_uuid=builds[number])
    await synchronized(house)
    house.ironic.change(1, provision_state="available", instance_uuid=None)
    house.ironic.change(2, instance_uuid=builds[0])
    code, lines = await house.diff()
    assert code == 1
    assert [line for line in lines if "instance:" in line] == [
        f"n1 ({node_number(1)}): instance: according to placement {builds[1]} holds it,"
        " and Ironic has no instance there",
        f"n2 ({node_number(2)}): instance: according to placement {builds[2]} holds it,"
        f" and Ironic has {builds[0]} there",
    ]


async def emptied(house: PlacementBesideIronic) -> None:
    await synchronized(house, *range(20))
    house.ironic.nodes.clear()


async def test_many_missing_nodes_are_removed_only_if_allowed(house: PlacementBesideIronic) -> None:
    await emptied(house)
    code, lines = await house.diff()
    assert code == 1 and "`berth ironic sweep --allow-removals`" in lines[-1]
    assert lines[-2] == "0 nodes in Ironic, 20 in placement: 20 differ"
    with pytest.raises(OperationRefused, match="use --allow-removals"):
        await house.sweep()
    with pytest.raises(OperationRefused, match="use --allow-removals"):
        await house.sweep(dry_run=True)
    await house.sweep(allow_removals=True, dry_run=True)
    assert "20 nodes were deleted, and would be removed from placement" in house.reply.getvalue()
    assert len((await house.diff())[1]) == 22
    await house.sweep(allow_removals=True)
    assert "20 nodes were deleted" in house.reply.getvalue()
    await until(lambda: in_step(house))
    assert (await house.diff())[1] == ["0 nodes in Ironic, 0 in placement: nothing differs"]


async def test_stuck_nodes_are_listed_by_name(
    house: PlacementBesideIronic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nodes(*_: object) -> MetalNodes:
        record = PlacementRecord(inventory="reserved", closed="failed", updated=1.7e9, cell="c1")
        return MetalNodes(at=1.0, nodes=(BoardNode(id=node_number(1), name="n1", placement_record=record),))

    assert await stuck_command(ListCli(Settings(), say=house.say)) == 0
    assert house.reply.getvalue() == "no node is stuck\n"
    monkeypatch.setattr("berth.control_room_metal.metal", nodes)
    assert await stuck_command(ListCli(Settings(), say=house.say)) == 1
    line = house.reply.getvalue().splitlines()[-1]
    assert line.startswith("n1") and "2023-11-14 22:13" in line and "an operation of Ironic" in line


async def test_an_unknown_cell_of_a_node_is_refused_and_a_known_one_says_its_class(
    house: PlacementBesideIronic,
) -> None:
    cli = Cli(Settings().having(cells=("c1", "c2")), say=house.say)
    with pytest.raises(ExceptionGroup) as refused:
        await publish_command(cli, "metal-9", NodeOptions(cell="c9"))
    assert refused.group_contains(BadSetting, match="--cell 'c9': cells are c1, c2")
    async with Bus(LocalTransport(house.broker)) as bus, house.serving(house.following):
        await until(lambda: _is_answered(bus))
        await publish_command(cli, "metal-9", NodeOptions(cell="c1", resource_class="bare-metal"))
    assert "resource class bare-metal, in placement CUSTOM_BARE_METAL" in house.reply.getvalue()


async def _is_answered(bus: Bus) -> bool:
    return bool(await bus.asker(topics.PROVIDERS)(FindProviders(limit=1)))


async def test_the_diff_requires_an_ironic_api() -> None:
    with pytest.raises(OperationRefused, match="BERTH_IRONIC_API"):
        await diff_command(Cli(Settings()))


CLOUDS = """
clouds:
  ours:
    auth_type: http_basic
    auth: {endpoint: "https://ours", username: us, password: geheim}
"""


@pytest.mark.parametrize(
    ("url", "at", "auth"),
    [
        ("", "https://ours", {"username": "us", "password": "geheim"}),
        ("http://other:6385/", "http://other:6385", {}),  # another Ironic does not receive our password
        (
            "http://me:p%40ss@other/baremetal/",
            "http://other/baremetal",
            {"username": "me", "password": "p@ss"},
        ),
    ],
)
def test_the_ironic_of_the_settings_is_used_unless_another_is_named(
    url: str, at: str, auth: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clouds.yaml").write_text(CLOUDS)
    chosen = access_of(Settings().having(ironic_api="ours"), url)
    assert (chosen.url, chosen.auth_type, chosen.auth) == (at, "http_basic" if auth else "none", auth)
    assert access_of(Settings(), "").url == "http://127.0.0.1:6385"


async def test_a_refusal_by_ironic_is_quoted(house: PlacementBesideIronic) -> None:
    house.ironic.proxy = lambda request: httpx.Response(403)
    with pytest.raises(OperationRefused, match=r"Ironic refused \(403\)"):
        await plainly(house.diff())
