"""`berth resource provider`, `class`, `trait` and `usage` list placement's records; hosts are assigned to
cells.
"""

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from rich.console import Console
from typer.testing import CliRunner

from berth.__main__ import app
from berth.commands import providers
from berth.commands.providers import reset, reset_the_ownerless
from berth.kit import hosts
from berth.kit.dry_run import ActCli
from berth.settings import BadSetting, Settings
from bus.claims import Claimed
from bus.errors import OperationRefused
from bus.reports import Inventory
from bus.resources import MakeProvider, SetInventories, SetTraits
from placement_worker import Placement
from tests.support.command_line import CommandLine, a_served_placement, plainly
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, an_order
from tests.support.placement_calls import claim, edit, find_providers

SETTINGS = Settings().having(cells=("c1", "c2"))


@pytest.fixture
async def placement(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placement]:
    """Yield a placement in which cell c1 has reported host 1, which belongs to cell c2."""
    async with a_served_placement(monkeypatch, "c1", "c2") as placement:
        assert await placement.reports.report_many([a_report(1, sequence=7)]) == [None]
        yield placement


async def reply(root: str, cell: str, as_json: bool = False) -> str:
    text = io.StringIO()
    await reset(ActCli(SETTINGS, as_json, Console(file=text, width=200)), root, cell)
    return text.getvalue().strip()


async def test_a_host_is_assigned_to_the_named_cell(placement: Placement) -> None:
    assert await reply("host-1", "c2") == (
        f"{uid(1, 'a')} is of cell c2; it was of cell c1, agent agent-1, last report 7"
    )
    assert placement.memory.index.rows[uid(1, "a")].cell == "c2"
    assert await placement.reports.report_many([a_report(1, cell="c2", sequence=1)], cell="c2") == [None]


async def test_invalid_input_is_refused_with_the_reason(placement: Placement) -> None:
    wrong = (
        ("host-9", "c2", OperationRefused, "no provider host-9"),
        (uid(9, "a"), "c2", OperationRefused, "no root provider"),
        ("host-1", "c9", BadSetting, "--cell 'c9': cells are c1, c2"),
    )
    for root, cell, kind, why in wrong:
        with pytest.raises(kind) as refused:
            await plainly(reply(root, cell))
        assert why in str(refused.value)


async def test_all_imported_hosts_are_assigned_to_a_cell_except_pools(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts 2 to 6 were imported, 7 is a pool made by an operator, and host 1 has a cell already."""
    monkeypatch.setattr(hosts, "A_PAGE", 2)
    monkeypatch.setattr(providers, "_AT_ONCE", 2)
    for number in range(2, 8):
        name = "pool" if number == 7 else f"rack{number % 2}-{number}"
        await edit(placement, MakeProvider(provider=uid(number, "a"), name=name))
    await edit(placement, SetTraits(provider=uid(7, "a"), traits=("MISC_SHARES_VIA_AGGREGATE",)))
    await edit(placement, MakeProvider(provider=uid(8, "a"), name="child", parent=uid(2, "a")))

    async def given(match: str, dry_run: bool = False) -> str:
        text = io.StringIO()
        out = Console(file=text, width=200)
        await reset_the_ownerless(ActCli(SETTINGS, False, out, dry_run=dry_run), "c2", match)
        return text.getvalue().strip()

    assert await given("rack1-*", dry_run=True) == "2 hosts would go to cell c2: rack1-3, rack1-5"
    assert await given("rack1-*") == "2 hosts are of cell c2 now: rack1-3, rack1-5"
    assert await given("*") == "3 hosts are of cell c2 now: rack0-2, rack0-4, rack0-6"
    assert await given("*") == "0 hosts are of cell c2 now"
    cells = {provider.name: provider.cell for provider in await find_providers(placement, parts=("owner",))}
    assert {name for name, cell in cells.items() if cell == "c2"} >= {f"rack{n % 2}-{n}" for n in range(2, 7)}
    assert (cells["pool"], cells["host-1"]) == ("", "c1")
    assert await placement.reports.report_many([a_report(2, cell="c2", name="rack0-2")], cell="c2") == [None]


@pytest.mark.parametrize("words", [("--cell", "c1"), ("host-1", "--cell", "c1", "--all-without-owner")])
def test_a_reset_requires_a_root_or_all_without_owner(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["resource", "provider", "reset", *words])
    assert isinstance(result.exception, BadSetting) and "a root, or --all-without-owner" in str(
        result.exception
    )


# Providers and their consumers

Berth = Callable[..., Awaitable[str]]


@pytest.fixture
async def berth(
    placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Berth:
    """Return a runner of commands. Host 1 has a NUMA node with a trait and with an instance of project p1."""
    await edit(placement, MakeProvider(provider=uid(2, "a"), name="numa0", parent=uid(1, "a")))
    stock = {"PCPU": Inventory(total=4, allocation_ratio=2.0)}
    await edit(placement, SetInventories(provider=uid(2, "a"), inventories=stock))
    await edit(placement, SetTraits(provider=uid(2, "a"), traits=("HW_NUMA_ROOT",)))
    [claimed] = await claim(placement, an_order(a_claim(1, {uid(2, "a"): {"PCPU": 3}})))
    assert isinstance(claimed, Claimed)

    async def run(group: str, *words: str) -> str:
        return await CommandLine(group, monkeypatch, capsys)(*words)

    return run


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("resource", "provider", "list"), {"host-1", "numa0"}),
        (("resource", "provider", "list", "--match", "numa*"), {"numa0"}),
        (("resource", "provider", "list", "--cell", "c2"), set()),
        (("resource", "provider", "list", "--class", "VCPU"), {"host-1"}),
        (("resource", "provider", "list", "--class", "VCPU", "--trait", "HW_NUMA_ROOT"), set()),
        (("resource", "provider", "list", "--trait", "HW_NUMA_ROOT"), {"numa0"}),
        (("resource", "provider", "list", "--class", "PCPU"), {"numa0"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_providers_are_found_by_name_cell_class_and_trait(
    berth: Berth, words: tuple[str, ...], names: set[str]
) -> None:
    rows = [json.loads(line) for line in (await berth(*words, "--json")).splitlines()]
    assert {row["name"] for row in rows} == names
    for row in rows:
        if row["name"] == "numa0":
            assert (row["host"], row["inventories"]) == ("host-1", {"PCPU": {"used": 3, "capacity": 8}})
    listed = await berth(*words)
    assert f"{len(names)} providers" in listed and ("PCPU 3/8" in listed) == ("numa0" in names)


@pytest.mark.parametrize("provider", ["numa0", uid(2, "a"), uid(2, "a").upper()])
async def test_a_provider_is_shown_with_its_place_and_who_holds_it(berth: Berth, provider: str) -> None:
    shown = await berth("resource", "provider", "show", provider)
    for text in (f"parent     {uid(1, 'a')}", "HW_NUMA_ROOT", "PCPU", uid(1), "PCPU 3"):
        assert text in shown
    [found] = json.loads(f"[{await berth('resource', 'provider', 'show', provider, '--json')}]")
    assert found["allocations"] == {uid(1): {"PCPU": 3}}


async def test_classes_and_traits_are_listed(berth: Berth) -> None:
    assert "PCPU" in await berth("resource", "class", "list")
    assert [json.loads(await berth("resource", "trait", "list", "--used", "--json"))["name"]] == [
        "HW_NUMA_ROOT"
    ]
    assert "HW_CPU_X86_AVX2" in await berth("resource", "trait", "list", "--prefix", "HW_CPU_")


async def test_the_usage_of_a_project_is_shown_by_type(berth: Berth) -> None:
    facts = json.loads(await berth("project", "usage", "p1", "--json"))
    assert facts == {"type": "INSTANCE", "consumers": 1, "holds": {"PCPU": 3}}
    assert "PCPU 3" in await berth("project", "usage", "p1", "--user", "u1")
    assert "holds nothing" in await berth("project", "usage", "p1", "--user", "u2")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("resource", "provider", "show", "nowhere"), "there is no provider nowhere"),
        (
            ("resource", "provider", "list", "--trait", "HW_NOTHING"),
            "there is no trait HW_NOTHING: `berth resource trait list`",
        ),
        (
            ("resource", "provider", "list", "--class", "CUSTOM_NO"),
            "there is no resource class CUSTOM_NO: `berth resource class list`",
        ),
    ],
)
async def test_a_missing_provider_class_or_trait_is_refused(
    berth: Berth, words: tuple[str, ...], why: str
) -> None:
    with pytest.raises(OperationRefused, match=why):
        await berth(*words)
