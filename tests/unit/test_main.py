"""The places where Python finds the modules of the command `berth`."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.berth_processes import ROOT


def test_the_command_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    for module in ("typer", "msgspec", "platform"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('a module of the working directory')")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", "berth", "--version"], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
