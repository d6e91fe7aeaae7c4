"""A process notices that the one before it was not stopped, on the files of their runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from berth.process_runs import recorded_run

ROOT = Path(__file__).parents[2]
RUNS_UNTIL_KILLED = """
import sys, time
from pathlib import Path
from berth.process_runs import recorded_run
with recorded_run("conductor.c1", Path(sys.argv[1])):
    print("runs", flush=True)
    time.sleep(600)
"""


def test_a_process_that_was_stopped_is_no_restart(tmp_path: Path) -> None:
    for _ in range(2):
        with recorded_run("conductor.c1", tmp_path) as is_restart:
            assert not is_restart
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_killed_process_is_noticed_once_and_replicas_and_other_processes_are_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUNS_UNTIL_KILLED, str(tmp_path)]
    killed = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ})
    assert killed.stdout is not None and killed.stdout.readline() == b"runs\n"
    with recorded_run("conductor.c1", tmp_path) as is_restart:
        assert not is_restart, "the other one is a replica that runs"
    killed.kill()
    killed.wait()
    killed.stdout.close()
    for name, expected in (("conductor.c10", False), ("conductor.c1", True), ("conductor.c1", False)):
        with recorded_run(name, tmp_path) as is_restart:
            assert is_restart == expected


def test_a_process_that_ends_by_an_error_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), recorded_run("scheduler", tmp_path):
        raise ZeroDivisionError
    with recorded_run("scheduler", tmp_path) as is_restart:
        assert is_restart


def test_a_directory_that_cannot_be_written_stops_no_process(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with recorded_run("scheduler", tmp_path) as is_restart:
        assert not is_restart
