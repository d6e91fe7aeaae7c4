"""`berth instance move` and related commands: requests, output and exit codes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from msgspec.structs import replace

from berth.kit import BadSetting
from berth.kit.testing import FEATURES, commands_connect_by
from bus import topics
from bus.clock import Clock
from bus.errors import OperationRefused, Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.requests import Image
from bus.resources import AllocationsFound, FindAllocations
from bus.vocabulary import Message
from bus.worker import Worker, answers
from features.moves import moving
from features.moves.messages import MoveRequested, MovesFound, MoveStands, PhaseOver
from features.moves.tests.support.fake_movers import FakeMovers, an_instance_there
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.request_parts import field_of
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

Berth = Callable[..., Any]


@pytest.fixture
async def movers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeMovers]:
    broker, fake = LocalBroker(), FakeMovers()
    fake.have(an_instance_there(1, 1), an_instance_there(2, 2, image=Image(name="debian")))
    commands_connect_by(lambda: LocalTransport(broker), monkeypatch)
    monkeypatch.setattr(moving, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("BERTH_CELLS", "c1")
    # Without an answer about allocations, the audit trail of each command would wait 2 s for it.
    placement = Worker("placement", answers=[answers(topics.ALLOCATIONS, no_allocations)])
    async with serving(lambda: LocalTransport(broker), fake.worker(), placement):
        yield fake


async def no_allocations(asked: FindAllocations) -> AllocationsFound:
    return AllocationsFound(consumers=(), generations={})


@pytest.fixture
def berth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Berth:
    """Return a function that runs a command of berth about moves, as in `berth("instance", "move", ...)`."""

    async def command(word: str, *words: str, ends: int = 0) -> str:
        line = CommandLine(word, monkeypatch, capsys)
        return await line(*words, ends=ends)

    return command


# Requests

B1, B2 = uid(1), uid(2)
ASKED: list[tuple[list[str], dict[str, Any]]] = [
    (["instance", "move", B1], {"kind": "migrate", "build": B1, "cell": "c1"}),
    (["instance", "move", B1, "--live"], {"kind": "live", "verify": False}),
    (["instance", "move", B1, "--to", "host-3"], {"wanted_host": "host-3", "forced_host": ""}),
    (["instance", "move", B1, "--force-to", "host-3"], {"forced_host": "host-3", "wanted_host": ""}),
    (["instance", "move", B1, "--not", "a", "--not", "b"], {"ignore_hosts": ("a", "b")}),
    (["instance", "move", B1, "--verify"], {"verify": True, "verify_for": ""}),
    (["instance", "move", B1, "--verify-for", "30m"], {"verify": True, "verify_for": "30m"}),
    (["instance", "resize", B1, "--vcpus", "4"], {"kind": "resize", "verify": True, "same_host": False}),
    (
        ["instance", "resize", B1, "--vcpus", "4", "--no-verify", "--same-host"],
        {"verify": False, "same_host": True},
    ),
    (["instance", "move", B1, "--to-cell", "c2"], {"kind": "migrate", "to_cell": "c2"}),
    (["instance", "resize", B1, "--vcpus", "4", "--to-cell", "c2"], {"kind": "resize", "to_cell": "c2"}),
    (["instance", "unshelve", B1, "--to-cell", "c2"], {"kind": "unshelve", "to_cell": "c2"}),
    (["instance", "shelve", B1], {"kind": "shelve"}),
    (["instance", "unshelve", B1, "--to", "host-3"], {"kind": "unshelve", "wanted_host": "host-3"}),
    (["instance", "rebuild", B1, "--image", "new"], {"kind": "rebuild", "image": Image(name="new")}),
    (["instance", "rebuild", B2], {"kind": "rebuild", "image": Image(name="debian")}),
]
needs_waiting = pytest.mark.skipif("waiting" not in FEATURES, reason="options of the feature waiting")
WAITS = [
    pytest.param(words, has, marks=needs_waiting)
    for words, has in (
        (["instance", "move", B1, "--wait", "30m", "--priority", "3"], {"wait": "30m", "priority": 3}),
        (["instance", "move", B1, "--wait", "--to", "host-3"], {"wait": "", "wanted_host": "host-3"}),
        (["instance", "resize", B1, "--vcpus", "4", "--wait", "1h"], {"wait": "1h", "verify": True}),
        (["instance", "unshelve", B1, "--wait", "1h"], {"kind": "unshelve", "wait": "1h"}),
    )
]


@pytest.mark.parametrize(("words", "has"), [*ASKED, *WAITS])
async def test_options_and_the_moves_they_request(
    movers: FakeMovers, berth: Berth, monkeypatch: pytest.MonkeyPatch, words: list[str], has: dict[str, Any]
) -> None:
    monkeypatch.setenv("BERTH_CELLS", "c1,c2")
    await berth(*words, *([] if "--wait" in words else ["--wait"]))
    (asked,) = movers.asked
    assert {name: field_of(asked, name) for name in has} == has


@pytest.mark.parametrize(
    ("words", "name", "figures", "specs"),
    [
        (["--vcpus", "4"], "small with vcpus=4", (4, 512, 1), {"hw:x": "1"}),
        (["--memory-mb", "9"], "small with memory_mb=9", (2, 9, 1), {"hw:x": "1"}),
        (["--vcpus", "4", "--flavor", "large"], "large", (4, 512, 1), {"hw:x": "1"}),
        (["--spec", "hw:x=", "--spec", "hw:y=2"], "small with hw:x=,hw:y=2", (2, 512, 1), {"hw:y": "2"}),
    ],
)  # fmt: skip
async def test_a_resize_changes_only_the_named_sizes(
    movers: FakeMovers,
    berth: Berth,
    words: list[str],
    name: str,
    figures: tuple[int, int, int],
    specs: dict[str, str],
) -> None:
    await berth("instance", "resize", B1, *words)
    await until(lambda: movers.asked)
    flavor = movers.asked[0].flavor
    assert flavor is not None
    assert (flavor.name, flavor.extra_specs) == (name, specs)
    assert (flavor.vcpus, flavor.memory_mb, flavor.disk_gb) == figures


NONE = uid(7)
WRONG: list[tuple[list[str], type[Exception], str]] = [
    (["instance", "move", B1, "--to-cell", "c9"], BadSetting, "--to-cell 'c9': cells are c1"),
    (["instance", "move", "x"], BadSetting, "'x' is not the uuid of a build"),
    (["instance", "move", NONE], OperationRefused, f"no cell knows a build {NONE}"),
    (["instance", "move", B1, "--to", "a", "--force-to", "b"], BadSetting, "--to and --force-to"),
    (["instance", "move", B1, "--to", "a", "--not", "a"], BadSetting, "--not a: that is the destination"),
    (["instance", "move", B1, "--live", "--verify"], BadSetting, "--live and --verify"),
    (["instance", "move", B1, "--verify-for", "soon"], BadSetting, "--verify-for soon: takes a time"),
    (["instance", "resize", B1], BadSetting, f"{B1} has this flavor already: change it"),
    (["instance", "resize", B1, "--vcpus", "2"], BadSetting, "has this flavor already"),
    (
        ["instance", "resize", B1, "--vcpus", "4", "--verify-for", "1h", "--no-verify"],
        BadSetting,
        "--verify-for and",
    ),
    (["instance", "resize", B1, "--spec", "hw:z="], BadSetting, "--extra-spec hw:z=: the flavor has no such"),
    (["instance", "rebuild", B1], BadSetting, f"{B1} was built without an image: name one with --image"),
    (["instance", "rebuild", B1, "--image-property", "a=b"], BadSetting, "name it with --image"),
    (["move", "confirm", B1], OperationRefused, f"{B1}: no move of it is under way"),
    (["move", "abort", B1], OperationRefused, f"{B1}: no move of it is under way"),
    (["move", "show", B1], OperationRefused, f"no cell has a record of a move {B1}"),
    (["move", "list", "--cell", "c7"], BadSetting, "--cell 'c7': cells are c1"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "error", "says"), WRONG)
async def test_invalid_input_is_refused_and_requests_nothing(
    movers: FakeMovers, berth: Berth, words: list[str], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as refused:
        await berth(*words)
    assert says in str(refused.value)
    assert movers.asked == []


def then(*reply: Callable[[FakeMovers, MoveRequested], Message]) -> Callable[[FakeMovers], None]:
    def arrange(movers: FakeMovers) -> None:
        movers.doing = lambda asked: [each(movers, asked) for each in reply]

    return arrange


ENDS: list[tuple[list[str], Callable[[FakeMovers], None], int, list[str]]] = [
    (["instance", "move", B1], then(lambda m, a: m.ended(a)), 0, [f"{B1} moved to host-9"]),
    (["instance", "resize", B1, "--vcpus", "3"], then(lambda m, a: m.ended(a)), 0, [f"{B1} resized,"
        " on host-9"]),
    (["instance", "shelve", B1], then(lambda m, a: m.ended(a)), 0, [f"{B1} shelved"]),
    (
        ["instance", "move", B1],
        then(*(lambda m, a, p=p: m.sent(a, "prepare", percent=p) for p in (0, 5)), lambda m, a: m.ended(a)),
        0,
        [f"{B1} gets its place on host-9", f"{B1} moved to host-9"],
    ),
    (
        ["instance", "shelve", B1],
        then(lambda m, a: replace(m.sent(a, "send"), host=""), lambda m, a: m.ended(a)),
        0,
        [f"{B1} is stopped, and its image made", f"{B1} shelved"],
    ),
    (["instance", "move", B1], then(lambda m, a: m.refused(a)), 1, [f"{B1} refused [no_host]: no host"
        " would do"]),
    (
        ["instance", "move", B1],
        then(lambda m, a: m.ended(a, "error", "host-1", "nobody could start it")),
        1,
        [f"{B1} not done: it is on host-1: nobody could start it", "  start on host-9: failed: no boot disk"],
    ),
    (["instance", "move", B1], then(lambda m, a: m.ended(a, "reverted", "host-1")), 1, [f"{B1} went back"
        " to host-1"]),
    (["instance", "move", B1], then(lambda m, a: m.ended(a, "deleted", "")), 1, [f"{B1} deleted meanwhile"]),
    (
        ["instance", "move", B1, "--verify"],
        then(lambda m, a: m.sent(a, "verify")),
        0,
        [
            f"{B1} waits to be confirmed, on host-9",
            f"  `berth move confirm {B1}` keeps it there, `berth move revert {B1}` brings it back",
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("words", "arrange", "ends", "says"), ENDS)
async def test_a_move_is_followed_to_its_end(
    movers: FakeMovers,
    berth: Berth,
    words: list[str],
    arrange: Callable[[FakeMovers], None],
    ends: int,
    says: list[str],
) -> None:
    arrange(movers)
    assert (await berth(*words, "--wait", ends=ends)).splitlines() == says


@pytest.mark.parametrize(
    ("phase", "host", "says"), [("send", 9, "leaves for host-9"), ("resume", 1, "goes on, on host-1")]
)
async def test_a_phase_that_is_received_and_read_is_printed_once(
    movers: FakeMovers, berth: Berth, phase: str, host: int, says: str
) -> None:

    def begins(asked: MoveRequested) -> list[Message]:
        movers.keeps(1, 1, phase, move=asked.move)
        return [movers.sent(asked, phase, host, percent) for percent in (0, 50)]

    movers.doing = begins
    following_it = asyncio.create_task(berth("instance", "move", B1, "--wait"))
    await until(lambda: movers.asked)
    looked = movers.looked
    await until(lambda: movers.looked > looked + 2)
    movers.keeps(1, 1, "done", move=movers.asked[0].move, ended=1001.0)
    assert await following_it == f"{B1} {says}\n{B1} moved to host-9\n"


MIGRATE = MoveRequested(move=uid(1, "e"), build=B1, cell="c1", kind="migrate")


def failing_bus(meanwhile: Callable[[], None] = lambda: None) -> Mock:
    """Return a bus whose first publication fails, after `meanwhile`, and whose cells know no moves."""
    bus = Mock(clock=Clock(monotonic=asyncio.get_running_loop().time))

    async def publish(*messages: Message) -> None:
        if bus.publish.await_count == 1:
            meanwhile()
            raise Unavailable("no broker")

    bus.publish = AsyncMock(side_effect=publish)
    bus.asker.return_value = AsyncMock(return_value=MovesFound(moves=()))
    return bus


@in_virtual_time
async def test_a_move_that_could_not_be_published_is_not_requested_again() -> None:
    bus = failing_bus()
    followed = moving.FollowedMoves(bus, "me", moving.MoveListener())
    with pytest.raises(Unavailable):
        await followed.ask(MIGRATE)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3 * moving.AGAIN_SECONDS):
            await followed.poll()
    assert bus.publish.await_count == 1


@in_virtual_time
async def test_a_move_whose_publication_was_not_confirmed_may_have_a_result() -> None:
    bus = failing_bus(lambda: followed.refused(FakeMovers().refused(MIGRATE)))
    followed = moving.FollowedMoves(bus, "me", moving.MoveListener())
    assert (await followed.ask(MIGRATE)).end == moving.REFUSED


async def test_at_the_timeout_the_moves_under_way_are_named(movers: FakeMovers, berth: Berth) -> None:
    movers.doing = lambda asked: [movers.sent(asked, "send")]
    with pytest.raises(OperationRefused, match=r"not followed any longer, and under way after 0\.2 s: "):
        await berth("instance", "move", B1, "--wait", "--timeout", "0.2")


@needs_waiting
async def test_a_waiting_move_prints_its_missing_resources_once(
    movers: FakeMovers, berth: Berth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "AGAIN_SECONDS", 0.0)
    movers.doing = lambda asked: []

    async def has_room() -> None:
        await until(lambda: movers.asked)
        waits = movers.waits(1, 1)
        movers.waiting[:] = [replace(waits, request=movers.asked[0].move)]
        await until(lambda: movers.reported_waiting > 2)
        movers.keeps(1, 1, "done", move=movers.asked[0].move, ended=1001.0)

    async with asyncio.TaskGroup() as group:
        group.create_task(has_room())
        sent = (await berth("instance", "move", B1, "--wait", "30m")).splitlines()
    assert sent == [
        f"{B1} waits: place 2 in its line: no room; would be woken by 2 VCPU",
        f"{B1} moved to host-9",
    ]


# Steering


async def test_a_dry_run_of_an_order_is_judged_as_the_order(movers: FakeMovers, berth: Berth) -> None:
    movers.moves = {uid(5, "e"): in_progress("verify"), uid(6, "e"): in_progress("send", 6, B2)}
    sent = await berth("move", "confirm", B1, B2, "--dry-run", ends=1)
    assert sent.splitlines() == [
        f"{B1} would stay on host-9, and its capacity on host-1 would be released",
        f"{B2}: it does not wait to be confirmed: send",
    ]
    assert await berth("move", "revert", B1, "--dry-run") == f"{B1} would return to host-1\n"
    assert await berth("move", "abort", uid(6, "e"), "--dry-run") == f"{B2} would stay on host-1\n"
    refused = await berth("move", "force", B2, "--dry-run", ends=1)
    assert refused == f"{B2}: only the copying of a live migration ends sooner: send\n"
    assert (movers.steered, movers.cancelled) == ([], [])


async def test_a_move_that_waits_would_be_cancelled(movers: FakeMovers, berth: Berth) -> None:
    movers.waits(7, 1)
    assert await berth("move", "abort", B1, "--dry-run") == f"{B1}: its move would not wait any more\n"
    assert movers.cancelled == []


async def test_moves_of_several_builds_are_requested_whatever_becomes_of_one(
    movers: FakeMovers, berth: Berth
) -> None:
    sent = await berth("instance", "move", B1, uid(8), B2, ends=1)
    assert f"no cell knows a build {uid(8)}" in sent
    await until(lambda: {move.build for move in movers.asked} == {B1, B2})


async def test_an_instance_is_named_by_the_first_characters_of_its_id(
    movers: FakeMovers, berth: Berth
) -> None:
    with pytest.raises(OperationRefused, match=f"2 ids begin with cccccccc: {B1}, {B2}"):
        await berth("instance", "move", "cccccccc")
    with pytest.raises(BadSetting, match="'dddddddd' is not the uuid of a build, and no id begins so"):
        await berth("instance", "move", "dddddddd")
    movers.moves = {uid(5, "e"): in_progress("verify")}
    assert await berth("move", "revert", "eeeeeeee-0", "--dry-run") == f"{B1} would return to host-1\n"
    movers.builds.pop(B2)
    assert B1 in await berth("instance", "shelve", "CCCCCCCC")


def in_progress(phase: str, number: int = 5, build: str = "") -> MoveStands:
    return MoveStands(
        move=uid(number, "e"), build=build or B1, cell="c1", kind="migrate", phase=phase, source="host-1",
        host="host-9",
    )  # fmt: skip


async def test_a_move_that_begins_during_its_cancellation_is_aborted(
    movers: FakeMovers, berth: Berth
) -> None:
    movers.waits(1, 1)
    movers.cancels, movers.started = False, [movers.keeps(1, 1, "prepare")]
    movers.moves.clear()
    movers.steering = lambda steered: [movers.sent(steered, "abort")]
    sent = await berth("move", "abort", B1)
    assert f"{B1}: abort is requested" in sent
    assert [move.to for move in movers.steered] == ["abort"]


async def test_a_late_command_is_refused_with_the_reason(movers: FakeMovers, berth: Berth) -> None:
    movers.keeps(1, 1, "start")
    movers.steering = lambda steered: [movers.sent(steered, "start", refused="it is started there already")]
    # the progress that was read before the cell replied may be printed first
    assert (await berth("move", "abort", B1, ends=1)).splitlines()[-1] == f"{B1}: it is started there already"


async def test_an_ended_move_cannot_be_steered(movers: FakeMovers, berth: Berth) -> None:
    stands = movers.keeps(1, 1, "done", ended=1001.0)
    with pytest.raises(OperationRefused, match=f"move {stands.move} of {B1} is over: done"):
        await berth("move", "revert", B1)


# Listing


async def test_a_move_is_shown_phase_by_phase(movers: FakeMovers, berth: Berth) -> None:
    phases = (
        PhaseOver("prepare", "host-9", "done", "", 1.0, 2.5),
        PhaseOver("send", "host-1", "failed", "full"),
    )
    movers.keeps(1, 1, "error", ended=1009.0, phases=phases, reason="it could not be copied")
    lines = (await berth("move", "show", B1)).splitlines()
    assert lines[0].endswith(f"of {B1}, from host-1 to host-9 in cell c1: ended error")
    assert lines[1] == "  it could not be copied"
    assert [line.split() for line in lines[3:]] == [
        ["prepare", "host-9", "done", "1.5s"],
        ["send", "host-1", "failed", "full"],
    ]
