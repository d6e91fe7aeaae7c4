"""`berth system dead`: output for messages of unknown clients, pages, and selection by id."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from berth import composition, dead_letters
from berth.commands import dead
from berth.kit.dry_run import ActCli
from berth.kit.terminal import Cli
from berth.settings import BadSetting, Settings
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildDeleted, BuildDeleteRequested, BuildRequested
from bus.protocol import DeadLetter, QueueSpec, encode
from bus.requests import Flavor
from tests.support.acting_region import CLOSE, ActingRegion
from tests.support.buses import serving
from tests.support.envelopes import a_json_letter
from tests.support.ids import uid
from tests.support.waiting import until

ESC = "\x1b[2J\x1b]0;owned\x07"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> LocalBroker:
    broker = LocalBroker()
    monkeypatch.setattr(composition, "transport", lambda settings, name, cell="": LocalTransport(broker))
    return broker


@pytest.fixture
def say() -> Console:
    return Console(file=io.StringIO(), highlight=False, soft_wrap=True, width=1000)


def reply(say: Console) -> str:
    assert isinstance(say.file, io.StringIO)
    return say.file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [
        (1_700_000_060.5, "2023-11-14T22:14:20+00:00"),
        (0.0, "unknown"),
        (-1e18, "unknown"),
        (1e300, "unknown"),
        (float("inf"), "unknown"),
        (float("nan"), "unknown"),
        (253_402_300_800.0, "unknown"),
    ],
)
async def test_an_invalid_time_is_shown_as_unknown(
    broker: LocalBroker, say: Console, seconds: float, printed: str
) -> None:
    broker.store_dead_letter(a_json_letter(died=seconds, first_died=seconds))
    await dead.list_letters(Cli(Settings(), False, say))
    assert await dead.show_letter(Cli(Settings(), False, say), "letter") == 0
    assert reply(say).count(printed) == 3


@pytest.mark.parametrize(
    "field", ["id", "queue", "key", "type", "reason", "correlation", "traceback", "body"]
)
@pytest.mark.parametrize(
    ("written", "printed"),
    [
        (ESC, r"\x1b[2J\x1b]0;owned\x07"),
        ("\x9b31mred", r"\x9b31mred"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("back\x08\x7f", r"back\x08\x7f"),
        ("[red]no markup[/red]", "[red]no markup[/red]"),
    ],
)
async def test_control_characters_of_dead_letters_are_escaped(
    broker: LocalBroker,
    say: Console,
    capsys: pytest.CaptureFixture[str],
    field: str,
    written: str,
    printed: str,
) -> None:
    more: dict[str, Any] = {field: written.encode() if field == "body" else written}
    broker.store_dead_letter(a_json_letter(**more))
    await dead.list_letters(Cli(Settings(), False, say))
    await dead.show_letter(Cli(Settings(), False, say), printed if field == "id" else "letter")
    assert written not in reply(say) or written == printed
    assert printed in reply(say)
    await dead.list_letters(Cli(Settings(), True, say))
    line = capsys.readouterr().out
    assert written not in line or written == printed
    if field != "traceback":
        assert json.loads(line)[field] == written


async def test_a_list_is_shown_page_by_page(broker: LocalBroker, say: Console) -> None:
    for number in range(250):
        broker.store_dead_letter(a_json_letter(f"{number:03}"))
    await dead.list_letters(Cli(Settings(), False, say))
    *lines, more = reply(say).splitlines()
    assert [line.split()[0] for line in lines] == [f"{number:03}" for number in range(100)]
    assert more == "there are more: berth system dead list --after 099"
    say.file = io.StringIO()
    await dead.list_letters(Cli(Settings(), False, say), 200, "099")
    assert [int(line.split()[0]) for line in reply(say).splitlines()] == list(range(100, 250))


@pytest.mark.parametrize("ids", [[""], ["  "], ["letter", ""], ["all", ""]])
async def test_an_empty_id_is_refused(broker: LocalBroker, say: Console, ids: list[str]) -> None:
    broker.store_dead_letter(a_json_letter())
    for command in (dead.drop, dead.replay):
        with pytest.raises(BadSetting, match="an empty id matches every id: give `all`"):
            await command(ActCli(Settings(), say=say), ids)
    with pytest.raises(BadSetting, match="an empty id"):
        await dead.show_letter(Cli(Settings(), False, say), ids[-1])
    assert list(broker.dead) == ["letter"]


async def test_all_and_ids_exclude_each_other(broker: LocalBroker, say: Console) -> None:
    broker.store_dead_letter(a_json_letter())
    with pytest.raises(BadSetting, match="`all` includes every id"):
        await dead.drop(ActCli(Settings(), False, say), ["all", "letter"])
    assert await dead.drop(ActCli(Settings(), False, say), ["all"]) == 0
    assert (reply(say), broker.dead) == ("1 dropped\n", {})


async def test_a_dry_run_counts_the_letters_by_queue_and_leaves_them(
    broker: LocalBroker, say: Console
) -> None:
    for id_, queue in (("aa", "q1"), ("ab", "q2"), ("b", "q1")):
        broker.store_dead_letter(a_json_letter(id_, queue=queue))
    cli = ActCli(Settings(), False, say, dry_run=True)
    assert await dead.drop(cli, ["a", "x"]) == 0
    assert await dead.replay(cli, ["all"]) == 0
    assert await dead.drop(cli, ["x"]) == 1
    assert reply(say).splitlines() == [
        "no dead letter's id begins with 'x'", "2 would be dropped: 1 of q1, 1 of q2",
        "3 would be replayed: 2 of q1, 1 of q2", "no dead letter's id begins with 'x'", "0 would be dropped",
    ]  # fmt: skip
    assert {*broker.dead} == {"aa", "ab", "b"}


async def test_a_unique_prefix_of_an_id_names_a_letter(broker: LocalBroker, say: Console) -> None:
    for id_ in ("aa", "ab", "b", "c"):
        broker.store_dead_letter(a_json_letter(id_))
    assert await dead.drop(ActCli(Settings(), False, say), ["a", "b", "x"]) == 0
    assert list(broker.dead) == ["c"]
    assert reply(say) == "no dead letter's id begins with 'x'\n3 dropped\n"


async def test_json_output_names_replayed_and_remaining_letters(
    broker: LocalBroker, say: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.declare(QueueSpec("scheduler:build.requested"))
    for id_, queue in (("a", "gone"), ("b", "scheduler:build.requested")):
        broker.store_dead_letter(a_json_letter(id_, queue=queue))
    assert await dead.replay(ActCli(Settings(), True, say), ["all"]) == 1
    assert await dead.show_letter(Cli(Settings(), True, say), "a") == 0
    assert await dead.drop(ActCli(Settings(), True, say), ["all"]) == 0
    replayed, shown, dropped = map(json.loads, capsys.readouterr().out.splitlines())
    assert replayed == {"replayed": 1, "staying": ["a stays: there is no queue 'gone'"]}
    assert (shown["id"], shown["queue"], shown["body"]) == ("a", "gone", '{"n":1}')
    assert dropped == {"dropped": 1}
    assert reply(say) == ""


@pytest.mark.parametrize(
    ("cell", "queue", "may"),
    [
        ("c1", "placement:inventory.reported.c1", False),
        ("c1", "scheduler:build.requested", False),
        ("c1", "conductor.c2:agent.report.c2", False),
        ("c1", "ask:cell.builds.c2", False),
        ("?", "conductor.c1:agent.report.c1", False),
        ("c1", "conductor.c1:agent.report.c1", True),
        ("c1", "agent.c1.a:agent.build.c1.a", True),
        ("c1", "ask:cell.builds.c1", True),
        ("", "conductor.c1:agent.report.c1", True),
        ("", "scheduler:build.requested", True),
    ],
)
async def test_a_letter_of_a_cell_is_replayed_only_into_a_queue_of_its_cell(
    broker: LocalBroker, say: Console, cell: str, queue: str, may: bool
) -> None:
    broker.declare(QueueSpec(queue))
    broker.store_dead_letter(a_json_letter(queue=queue, cell=cell))
    assert await dead.replay(ActCli(Settings(), False, say), ["all"]) == (0 if may else 1)
    assert (len(broker.queues[queue].items), len(broker.dead)) == ((1, 0) if may else (0, 1))
    assert may or ("letter stays" in reply(say) and queue in reply(say))


def forged(id_: str = "letter", **more: Any) -> DeadLetter:
    """Return a boot that a client sent by its own exchange, as a consumer refused it."""
    boot = BuildRequested(request=uid(1), instances=(uid(1),), flavor=Flavor(name="vm", vcpus=1), project="q")
    return a_json_letter(id_, body=encode(boot), sender="client.shop.0", **more)


async def test_a_letter_of_a_refused_sender_is_not_replayed(broker: LocalBroker, say: Console) -> None:
    broker.declare(QueueSpec("scheduler:build.requested"))
    broker.store_dead_letter(forged())
    assert await dead.replay(ActCli(Settings(), False, say), ["all"]) == 1
    assert list(broker.dead) == ["letter"]
    assert not broker.queues["scheduler:build.requested"].items
    assert "refused because of its sender, 'client.shop.0'" in reply(say)
    assert await dead.show_letter(Cli(Settings(), False, say), "letter") == 0
    assert "sender: client.shop.0\n" in reply(say)


async def test_an_operator_publishes_a_letter_as_an_own_message_shown_and_recorded(
    broker: LocalBroker, say: Console
) -> None:
    region, queue = ActingRegion(), "scheduler:build.requested"
    broker.declare(QueueSpec(queue))
    for id_ in ("a", "b"):
        broker.store_dead_letter(forged(id_))
    cli = ActCli(Settings(), False, say)
    with pytest.raises(BadSetting, match="takes ids, not `all`"):
        await dead.replay(cli, ["all"], as_operator=True)
    async with serving(lambda: LocalTransport(broker), region.worker()):
        assert await dead.replay(cli, ["a"], as_operator=True) == 0
        await until(lambda: [record.outcome for record in region.records] == ["started", "done"])
    record = region.records[-1]
    assert (record.act, record.target) == ("dead letters", "a")
    assert record.asked.startswith(f"replay --as-operator BuildRequested of client.shop.0 to {queue}: {{")
    assert reply(say).startswith("a as your own: BuildRequested of client.shop.0 to ")
    (item,) = broker.queues[queue].items
    assert (item.envelope.key, list(broker.dead)) == (queue, ["b"])


@pytest.mark.parametrize(
    ("message", "act"),
    [
        (BuildDeleteRequested(build=uid(1), cell="c1"), "dead letters"),
        (CLOSE, "cell"),
        (BuildDeleted(build=uid(1), cell="c1"), "repair"),
    ],
    ids=["an operator may request it", "it takes an admin", "a worker's"],
)
def test_publishing_a_letter_as_an_own_message_takes_the_role_of_its_act(message: Any, act: str) -> None:
    letter = a_json_letter(body=encode(message), type=type(message).__name__, sender="client.shop")
    assert dead_letters.act_of(letter) == act
