"""docs/howto/first-region.md: every command works on an empty machine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.snippets import ROOT

NEEDED = ("debootstrap", "unshare", "nsenter")


@pytest.mark.soak
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(name) for name in NEEDED),
    reason="it needs root and debootstrap",
)
def test_the_commands_of_the_first_region_work_on_an_empty_debian(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/packages", tmp_path], check=True, capture_output=True, text=True
    )
    tried = subprocess.run(
        [sys.executable, ROOT / "scripts/try-first-region", tmp_path / "machine", made.stdout.split()[-1]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stdout[-5000:] + tried.stderr[-5000:]
    begun, *_, ended = (float(seconds) for seconds in re.findall(r"^## .* (\d+\.\d+)$", tried.stdout, re.M))
    assert ended - begun < 1800
