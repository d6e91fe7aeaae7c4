"""Waiting for a berth that starts: as long as something changes, or with the reason why it failed."""

from collections.abc import Callable

import pytest

from berth.readiness import Startup
from bus.errors import Unavailable

QUIET = 60.0


class Start:
    """A berth whose number of known hosts depends on a fake time; each query takes two seconds."""

    def __init__(
        self, hosts: Callable[[float], int | None], failed: Callable[[float], str] = lambda _: ""
    ) -> None:
        self.time = 0.0
        self.hosts = hosts
        self.lines: list[str] = []
        self.startup = Startup(
            self.lines.append, lambda: failed(self.time), QUIET, now=lambda: self.time, sleep=self.sleep
        )

    async def sleep(self, seconds: float) -> None:
        self.time += seconds

    async def ask(self) -> int:
        self.time += 2.0
        known = self.hosts(self.time)
        if known is None:
            raise Unavailable("no answer")
        return known

    async def wait(self, wanted: int) -> int:
        return await self.startup.wait(
            self.ask,
            lambda known: "placement does not answer" if known is None else f"placement knows {known} hosts",
            lambda known: known >= wanted,
        )


async def test_a_slow_start_is_waited_for_while_the_number_of_hosts_grows() -> None:
    start = Start(lambda at: int(at // 50))
    assert await start.wait(20) == 20
    assert start.time > 10 * QUIET
    assert start.lines[0] == "placement knows 0 hosts (after 10 s)"
    assert "placement knows 19 hosts" in start.lines[-1]
    assert len(start.lines) < 100  # one in ten seconds


async def test_workers_that_answer_late_are_waited_for() -> None:
    start = Start(lambda at: None if at < 50 else 0 if at < 100 else 2)
    assert await start.wait(2) == 2


async def test_a_missing_answer_between_others_is_no_change() -> None:
    start = Start(lambda at: None if int(at) % 4 else 1)
    with pytest.raises(Unavailable, match="placement knows 1 hosts, and nothing has changed for 60 s"):
        await start.wait(2)


async def test_a_start_without_change_fails_with_what_to_read() -> None:
    start = Start(lambda _: 1)
    with pytest.raises(Unavailable) as failed:
        await start.wait(2)
    assert str(failed.value) == (
        "placement knows 1 hosts, and nothing has changed for 60 s although all processes run: "
        "see their logs, and `berth doctor`"
    )
    assert QUIET <= start.time < QUIET + 10


async def test_a_start_fails_at_once_if_a_process_keeps_ending() -> None:
    start = Start(
        lambda _: None, lambda at: "" if at < 7 else "agent.c1.a ended 3 times, last with exit code 1"
    )
    with pytest.raises(Unavailable, match=r"placement does not answer: agent.c1.a ended 3 times"):
        await start.wait(2)
    assert start.time < 10
