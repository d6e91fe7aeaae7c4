"""The stop switch of rebalancing: on the page of moves, and in the command."""

import pytest

from berth import composition
from berth.operations import publishing
from bus.errors import OperationRefused, Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.worker import Worker, answers
from features.planning import rebalance_command as command
from features.planning.messages import SWITCH_BALANCING, BalancingSwitched, SwitchBalancing
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time
from tests.support.visited_room import a_visited_room


class SwitchingScheduler:
    """A scheduler with the stop switch of rebalancing, and a standing plan."""

    def __init__(self) -> None:
        self.stopped = False
        self.plan = uid(7)
        self.answers = True

    def worker(self) -> Worker:
        return Worker("scheduler", answers=[answers(SWITCH_BALANCING, self._switch)])

    async def _switch(self, asked: SwitchBalancing) -> BalancingSwitched:
        if not self.answers:
            raise Unavailable("the database is unreachable")
        self.stopped = self.stopped if asked.stop is None else asked.stop
        since = 1_700_000_000.0 if self.stopped else 0.0
        return BalancingSwitched(stopped=self.stopped, since=since, plan=self.plan)


async def test_an_operator_stops_and_permits_rebalancing_on_the_page_of_moves() -> None:
    scheduler = SwitchingScheduler()
    async with a_visited_room(scheduler.worker(), answered=(SWITCH_BALANCING.name,)) as room:
        page = await room.page("/moves")
        assert "A plan rebalances the hosts" in page and 'action="/rebalancing"' not in page
        assert (await room.send("/rebalancing", act="stop")).status_code == 403 and not scheduler.stopped
        await room.sign_in("admin")
        assert 'value="stop" id="stop-rebalancing"' in await room.page("/moves")
        assert (await room.send("/rebalancing", act="<x>")).status_code == 400
        assert (await room.send("/rebalancing", act="stop")).status_code == 303 and scheduler.stopped
        page = await room.page("/moves")
        assert "Stopped since 2023-11-14" in page and 'value="permit"' in page
        assert (await room.send("/rebalancing", act="permit")).status_code == 303 and not scheduler.stopped
        scheduler.plan = ""
        room.clock.now += 100
        assert "No standing plan runs" in await room.page("/moves")


@in_virtual_time
async def test_without_a_scheduler_the_page_of_moves_does_not_stop_rebalancing() -> None:
    async with a_visited_room() as alone:
        assert "Whether rebalancing is stopped is unknown" in await alone.page("/moves")
        await alone.sign_in("admin")
        assert (await alone.send("/rebalancing", act="stop")).status_code == 409


async def test_the_command_names_a_missing_answer_of_the_schedulers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker, scheduler = LocalBroker(), SwitchingScheduler()
    monkeypatch.setattr(composition, "transport", lambda settings, name: LocalTransport(broker))
    monkeypatch.setattr(publishing, "_REPEAT_SECONDS", 0.0)
    run = CommandLine("rebalance", command, monkeypatch, capsys)
    async with serving(lambda: LocalTransport(broker), scheduler.worker()):
        scheduler.answers = False
        with pytest.raises(Unavailable, match="database is unreachable"):
            await run()
        scheduler.answers, scheduler.stopped = True, True
        with pytest.raises(OperationRefused, match="rebalancing is stopped"):
            await run()
