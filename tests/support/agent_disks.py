"""The disk of an agent with a file of guests, also after the agent was killed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.agent_builds import AgentBuilds
from compute_sim.agent_disk import AgentDisk, GuestFile


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., AgentDisk]]:
    """Yield a function that opens the agent's disk, as a new process of the agent does."""
    opened: list[AgentDisk] = []

    def open_(builds: AgentBuilds | None = None) -> AgentDisk:
        opened.append(AgentDisk(builds or AgentBuilds(), file=GuestFile(tmp_path / "agents" / "a.guests")))
        return opened[-1]

    yield open_
    for disk in opened:
        disk.close()


def killed(disk: AgentDisk) -> None:
    """Close the file as a kill does: without the changes that are not committed."""
    assert disk.file is not None
    disk.file._changed.clear()
    disk.close()
