"""Options of this feature in commands of a new process: those of other tests are forked from a process that
has the messages of all features already.
"""

import subprocess
import sys
from pathlib import Path

import pytest

MOVE = "00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    "arguments",
    [
        "boot --wait 30m --priority 3",
        "request what-if --priority 3",
        "host drain host1 --wait 1m",
        f"instance move {MOVE} --wait 1m",
    ],
)
def test_a_new_process_knows_the_options_of_features(arguments: str, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(Path(__file__).parents[4])}
    command = [sys.executable, "-m", "berth", *arguments.split()]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("no berth answers at "), done.stderr
