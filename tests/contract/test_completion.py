"""Shell completion of names of hosts and cells, from the berth that the settings name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from berth.kit.completion import cell_names, host_names
from berth.kit.testing import connected_as_commands
from bus.delivery.runner import Bus
from tests.support.command_line import a_served_placement
from tests.support.placement_builders import a_report
from tests.support.placement_calls import report
from tests.support.snippets import ROOT

# A shell asks by the name that is typed.
AS_INSTALLED = "import sys; sys.argv[0] = 'berth'; from berth.__main__ import main; main()"


async def test_names_of_hosts_and_cells_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_served_placement(monkeypatch, "c1") as placement, Bus(connected_as_commands()) as bus:
        await report(placement, a_report(1), a_report(2))
        assert await host_names(bus, "host") == ["host-1", "host-2"]
        assert await host_names(bus, "host-2") == ["host-2"]
        assert await cell_names(bus, "c") == ["c1"]
        assert await cell_names(bus, "d") == []


@pytest.mark.parametrize("words", ["host show h", "host list --cell c", "cell disable c", "boot --host h"])
def test_without_a_berth_nothing_is_completed_and_nothing_printed(words: str, tmp_path: Path) -> None:
    number = str(len(words.split()))
    asked = {"_BERTH_COMPLETE": "complete_bash", "COMP_WORDS": f"berth {words}", "COMP_CWORD": number}
    reply = subprocess.run(
        [sys.executable, "-c", AS_INSTALLED],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "COMP_CWORD": str(len(words.split())),
            **asked,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (reply.stdout.strip(), reply.stderr) == ("", "")
