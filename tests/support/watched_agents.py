"""Agents as processes that log when which guests run.

Each is `berth run compute` with a disk that logs every change with the machine's time, so the logs of
several agents can be compared. The guests of a killed process do not run: the test logs that.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec

from berth import simulated_agents, worker_roles
from berth.services import Supervisor
from bus.clock import monotonic
from compute_sim.agent_disk import AgentDisk

NOTES = "BERTH_TESTS_NOTES"  # the directory


class RunningNow(msgspec.Struct, frozen=True):
    at: float
    running: tuple[tuple[str, int, str], ...]


def _noting(method: Callable[..., Any]) -> Any:
    @wraps(method)
    def noted(disk: "NotingDisk", *args: Any, **more: Any) -> Any:
        result = method(disk, *args, **more)
        disk._note()
        return result

    return noted


class NotingDisk(AgentDisk):
    """Writes down which guests run, whenever that changes."""

    def __post_init__(self) -> None:
        self._noted: tuple[tuple[str, int, str], ...] | None = None
        self._reading = True  # its file: what is read there has happened before
        super().__post_init__()
        self._reading = False
        self._note()

    def _note(self) -> None:
        now = tuple(sorted((record.build, record.attempt, record.root) for record in self.running()))
        if now != self._noted and self.file is not None and not self._reading:
            self._noted = now
            note(Path(os.environ[NOTES]) / self.file.path.stem.split(".")[0], now)

    lose_power = _noting(AgentDisk.lose_power)
    wake = _noting(AgentDisk.wake)
    become = _noting(AgentDisk.become)
    rename = _noting(AgentDisk.rename)
    finished = _noting(AgentDisk.finished)
    destroyed = _noting(AgentDisk.destroyed)
    lose = _noting(AgentDisk.lose)


def note(path: Path, running: Sequence[tuple[str, int, str]]) -> None:
    line = msgspec.json.encode(RunningNow(monotonic(), tuple(running))) + b"\n"
    with path.open("ab", buffering=0) as file:
        file.write(line)


class WatchingSupervisor(Supervisor):
    """Runs its agents so."""

    @staticmethod
    def command(together: Sequence[worker_roles.Role]) -> Sequence[str]:
        words, watched = Supervisor.command(together), together[0].worker == "compute"
        return [__name__ if word == "berth" and watched else word for word in words]


if __name__ == "__main__":
    from berth.__main__ import main

    simulated_agents.AgentDisk = NotingDisk  # type: ignore[attr-defined]
    sys.argv = ["berth", *sys.argv[1:]]
    main()
