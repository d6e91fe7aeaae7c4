"""Stores the results of benchmark runs, a file for each run, and reads the recorded run in the repository."""

import re
import subprocess
from pathlib import Path

import msgspec

from bench.figures import BenchRun

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
KEPT = HERE / "runs"


def keep(run: BenchRun, path: Path | None = None) -> Path:
    """Write the run to a file, a line for each figure; by default its name has the run's time and commit."""
    if path is None:
        path = KEPT / f"{run.at.replace(':', '').replace('-', '')}-{run.commit}.json"
        path.parent.mkdir(exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(run), indent=1)
    path.write_bytes(re.sub(rb"\{[^{}]*\}", lambda found: b" ".join(found[0].split()), text) + b"\n")
    return path


def read(path: Path) -> BenchRun:
    return msgspec.json.decode(path.read_bytes(), type=BenchRun)


def last(long: bool) -> tuple[Path, BenchRun] | None:
    """Return the recorded run or, if it has other sizes than `long` asks for, the newest stored run with the
    right sizes; None if there is no run.
    """
    places = [RECORDED, *sorted(KEPT.glob("*.json"), reverse=True)]
    for path in places:
        if path.exists() and (run := read(path)).long == long:
            return path, run
    return None


def commit() -> str:
    """Return the git commit that is measured, with a plus sign if there are uncommitted changes; "unknown"
    without git.
    """
    try:
        short = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{short}+" if changed else short


def _git(*words: str) -> str:
    ran = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=True)
    return ran.stdout.strip()
