"""Where runs are kept: each in a file of its own, and the one that is recorded in the repository."""

import subprocess
from pathlib import Path

import msgspec

from bench.figures import BenchRun

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
KEPT = HERE / "runs"


def keep(run: BenchRun, path: Path | None = None) -> Path:
    """Write it down, by itself under its time and commit."""
    if path is None:
        path = KEPT / f"{run.at.replace(':', '').replace('-', '')}-{run.commit}.json"
        path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    return path


def read(path: Path) -> BenchRun:
    return msgspec.json.decode(path.read_bytes(), type=BenchRun)


def last(long: bool) -> tuple[Path, BenchRun] | None:
    """The recorded one; where none has these sizes, the newest that was kept."""
    places = [RECORDED, *sorted(KEPT.glob("*.json"), reverse=True)]
    for path in places:
        if path.exists() and (run := read(path)).long == long:
            return path, run
    return None


def commit() -> str:
    """What is measured; with a plus when something of it is not committed."""
    try:
        short = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{short}+" if changed else short


def _git(*words: str) -> str:
    ran = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=True)
    return ran.stdout.strip()
