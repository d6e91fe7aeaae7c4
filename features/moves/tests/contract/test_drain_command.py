"""`berth host drain` and `evacuate` close and empty hosts, and name the instances that stay there."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from berth.kit import BadSetting, Marking, disabling, forcing_down, host_named
from bus.errors import OperationRefused
from features.moves.commands import draining
from features.moves.messages import FIND_PLANS, FindPlans
from features.moves.plan_requests import PlanListener, emptying_plan, plan_sentence, start_plan
from features.moves.tests.support.fake_movers import an_instance_there
from features.moves.tests.support.hosts_to_empty import HostsToEmpty, hosts_to_empty
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.waiting import until

Berth = Callable[..., Coroutine[Any, Any, str]]


@pytest.fixture
async def cloud(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HostsToEmpty]:
    async with hosts_to_empty(monkeypatch) as cloud:
        yield cloud


@pytest.fixture
def berth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Berth:
    async def command(word: str, *words: str, ends: int = 0) -> str:
        return await CommandLine(word, monkeypatch, capsys)(*words, ends=ends)

    return command


B1, B2, B3 = uid(1), uid(2), uid(3)


async def test_a_cancelled_drain_stops_and_the_same_command_continues_it(
    cloud: HostsToEmpty, berth: Berth
) -> None:
    cloud.movers.doing = lambda asked: cloud.movers.well(asked) if asked.build == B1 else []
    async with asyncio.TaskGroup() as group:
        draining_it = group.create_task(berth("host", "drain", "host-1"))
        await until(lambda: len(cloud.movers.asked) == 2 and cloud.on(9))
        await until(lambda: _goes_on(cloud, "1 moved, 1 under way, none stays"))
        draining_it.cancel()
    assert await cloud.state(1) == "disabled, because of drain"
    reply = vars(draining)["complain"].file.getvalue()
    assert "stopped: 1 moved, 1 under way, none stays. Moves in progress end by themselves" in reply
    cloud.movers.doing = None
    await cloud.bus.publish(*cloud.movers.well(cloud.movers.asked[1]))
    cloud.movers.have(an_instance_there(3, 1))
    assert (await berth("host", "drain", "host-1")).splitlines()[-1] == "host-1: 1 moved, none stays"
    assert len(cloud.movers.asked) == 3


async def _goes_on(cloud: HostsToEmpty, sentence: str) -> bool:
    found = (await cloud.bus.asker(FIND_PLANS)(FindPlans())).plans
    return [plan_sentence(stands) for stands in found] == [sentence]


async def _at_a_time(cloud: HostsToEmpty, most: int) -> bool:
    found = (await cloud.bus.asker(FIND_PLANS)(FindPlans())).plans
    return [stands.plan.most for stands in found] == [most]


async def test_a_drain_whose_command_was_killed_goes_on_and_is_followed_again(
    cloud: HostsToEmpty, berth: Berth
) -> None:
    cloud.movers.doing = lambda asked: []
    host = await host_named(cloud.bus, "host-1")
    await disabling("drain")(cloud.bus, host)
    plan = emptying_plan([host], "live", 10, because="drain")
    await start_plan(cloud.bus, plan, PlanListener())
    await until(lambda: len(cloud.movers.asked) == 2)

    async def end_them() -> None:
        await until(lambda: _at_a_time(cloud, 1))  # the command has found the plan
        for asked in list(cloud.movers.asked):
            await cloud.bus.publish(cloud.movers.well(asked)[-1])

    sent, _ = await asyncio.gather(berth("host", "drain", "host-1", "--max", "1"), end_them())
    assert sent.splitlines()[-1] == "host-1: 2 moved, none stays"
    assert len(cloud.movers.asked) == 2


async def test_json_output_of_a_drain_has_the_same_content(cloud: HostsToEmpty, berth: Berth) -> None:
    answer = [json.loads(line) for line in (await berth("host", "drain", "host-1", "--json")).splitlines()]
    (last,) = [one for one in answer if "moved" in one]
    del last["plan"]
    assert last == {"hosts": "host-1", "moved": [B1, B2], "gone": 0, "stay": {}}


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        (["host", "drain"], BadSetting, "name the hosts, or give --agent or --cell"),
        (["host", "drain", "host-1", "--cell", "c1"], BadSetting, "name the hosts"),
        (["host", "drain", "host-7"], OperationRefused, "there is no host 'host-7'"),
        (["host", "drain", "--agent", "nobody"], OperationRefused, "no host is reported by agent 'nobody'"),
        (["host", "drain", "--cell", "c7"], BadSetting, "--cell 'c7': cells are c1"),
        (["host", "drain", "host-1", "--to-cell", "c7"], BadSetting, "--to-cell 'c7': cells are c1"),
        (["host", "evacuate", "host-1", "--to-cell", "c7"], BadSetting, "--to-cell 'c7': cells are c1"),
        (["host", "drain", "host-1", "--because", "two words"], BadSetting, "--because 'two words': a name"),
        (["host", "evacuate", "host-7"], OperationRefused, "there is no host 'host-7'"),
    ],
)
async def test_invalid_input_is_refused_with_the_reason(
    cloud: HostsToEmpty, berth: Berth, words: list[str], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as refused:
        await berth(*words)
    assert says in str(refused.value)
    assert (cloud.movers.asked, await cloud.state(1)) == ([], "open")


async def test_an_evacuation_forces_the_host_down_before_it_requests_moves(
    cloud: HostsToEmpty, berth: Berth, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_before = list[int]()

    def forcing_down_seen(there: bool) -> Marking:
        asked_before.append(len(cloud.movers.asked))
        return forcing_down(there)

    monkeypatch.setattr(draining, "forcing_down", forcing_down_seen)
    cloud.movers.have(an_instance_there(4, 1, "building"))
    sent = (await berth("host", "evacuate", "host-1", "--wait", ends=1)).splitlines()
    assert sent[0] == "host-1: forced down; 2 move to other hosts; its cell sees to the 1 that are not active"
    assert "host-1: 2 moved, 1 stay" in sent
    assert f"  {uid(4)} stays: building: its cell sees to it" in sent
    assert {request.kind for request in cloud.movers.asked} == {"evacuate"}
    assert (asked_before, await cloud.state(1)) == ([0], "forced down")


async def test_an_evacuation_without_waiting_requests_all_moves_immediately(
    cloud: HostsToEmpty, berth: Berth
) -> None:
    sent = await berth("host", "evacuate", "host-1")
    assert sent.endswith("asked for: `berth move list --host host-1` shows how they go\n")
    await until(lambda: {request.build for request in cloud.movers.asked} == {B1, B2})
