"""docs/howto/first-region.md: every command works on an empty machine."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.first_region import first_region
from tests.support.snippets import ROOT

NEEDED = ("debootstrap", "unshare", "nsenter")


@pytest.mark.soak
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(name) for name in NEEDED),
    reason="it needs root and debootstrap",
)
def test_the_commands_of_the_first_region_work_on_an_empty_debian_within_30_minutes(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/packages", tmp_path], check=True, capture_output=True, text=True
    )
    commands = list(first_region(tmp_path / "machine", Path(made.stdout.split()[-1])))
    assert len(commands) > 60
    assert sum(command.seconds for command in commands) < 1800
