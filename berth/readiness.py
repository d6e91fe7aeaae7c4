"""Waits until a berth that was just started can carry out builds.

A busy machine delays a start as long as it likes, so no time limit applies while anything progresses.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from bus.clock import monotonic
from bus.errors import Unavailable, Unroutable

R = TypeVar("R")

QUIET_SECONDS = 180.0  # without any change, after which a start has failed
SHOW_SECONDS = 10.0  # between two lines about the progress


def _all_run() -> str:
    return ""


@dataclass(frozen=True)
class Startup:
    """Waits for the answers of workers that are starting."""

    show: Callable[[str], object] = lambda _: None  # shows the progress
    failed: Callable[[], str] = _all_run  # why a process of workers does not run; empty: all run
    quiet: float = QUIET_SECONDS
    now: Callable[[], float] = monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    async def wait(
        self,
        ask: Callable[[], Awaitable[R]],
        describe: Callable[[R | None], str],
        enough: Callable[[R], bool] = lambda _: True,
    ) -> R:
        """Repeat a query until `enough` accepts the answer, and return the answer. `describe`: what an answer
        shows (None: no answer yet). Raise Unavailable with the reason if a process of workers does not
        run, or if the descriptions have not changed for `quiet` seconds.
        """
        began = changed = shown = self.now()
        state, seen = "", set[str]()
        while True:
            answer: R | None = None
            try:
                answer = await ask()
                if enough(answer):
                    return answer
            except (Unavailable, Unroutable):  # the worker has no queue yet, or is busy
                pass
            if answer is not None or not state:
                state = describe(answer)
            at = self.now()
            if state not in seen:  # a former state is no progress
                seen.add(state)
                changed = at
            if why := self.failed():
                raise Unavailable(f"{state}: {why}")
            if at - changed >= self.quiet:
                raise Unavailable(
                    f"{state}, and nothing has changed for {self.quiet:.0f} s although all processes run: "
                    "see their logs, and `berth doctor`"
                )
            if at - shown >= SHOW_SECONDS:
                shown = at
                self.show(f"{state} (after {at - began:.0f} s)")
            await self.sleep(0.05)
