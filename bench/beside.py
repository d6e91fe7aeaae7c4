"""Compares the processor time of a boot of this checkout with that of earlier commits, in one run.

Each commit is checked out into a temporary git worktree with an environment of its own. The commits take
turns, so that all meet the same load of other programs, and the ratios of medians are compared. The exit code
is 1 if this checkout needs more than `--most` times the processor time of the first commit.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import runs

ROOT = Path(__file__).resolve().parent.parent
HERE = "this checkout"

_LINE = re.compile(r"^ +(?P<rate>\d+) +(?P<p50>\d+) +(?P<p99>\d+) +(?P<cost>\d+\.\d+) ", re.MULTILINE)


@dataclass(frozen=True)
class BootCost:
    """The result of one run of bench.boots."""

    boots_a_second: float
    p50_ms: float
    p99_ms: float
    processor_ms: float


@dataclass(frozen=True)
class ComparedLoad:
    """A load: flavors in the mix, and boots a second (0: as fast as possible)."""

    mix: int
    rate: float

    def __str__(self) -> str:
        pace = f"{self.rate:g} boots/s" if self.rate else "as fast as possible"
        return f"{self.mix} flavors, {pace}" if self.mix != 1 else f"one flavor, {pace}"


Costs = Mapping[str, Sequence[BootCost]]  # checkout → the cost in each round


def cost_in(printed: str) -> BootCost:
    """Return the cost that bench.boots printed; all commits print the line in the same form."""
    found = _LINE.search(printed)
    if found is None:
        raise SystemExit(f"bench.boots printed no result:\n{printed}")
    return BootCost(*(float(found[name]) for name in ("rate", "p50", "p99", "cost")))


def ratio(costs: Costs, of: str, to: str) -> float:
    """Return the ratio of the medians of the processor time of two checkouts."""
    return median(cost.processor_ms for cost in costs[of]) / median(cost.processor_ms for cost in costs[to])


def table(load: ComparedLoad, costs: Costs, first: str) -> str:
    """Return the medians of all rounds as Markdown, with each ratio to the first commit."""
    lines = [
        f"| {load} | boots/s | p50 ms | p99 ms | processor ms a boot | of {first} |",
        "|---|---|---|---|---|---|",
    ]
    for name, rounds in costs.items():
        rate, p50 = median(cost.boots_a_second for cost in rounds), median(cost.p50_ms for cost in rounds)
        p99, cost = median(cost.p99_ms for cost in rounds), median(cost.processor_ms for cost in rounds)
        figures = f"{rate:.0f} | {p50:.0f} | {p99:.0f} | {cost:.2f} | {ratio(costs, name, first):.2f}"
        lines.append(f"| {name} | {figures} |")
    return "\n".join(lines)


@contextmanager
def checked_out(commit: str, parent: Path) -> Iterator[Path]:
    """Check a commit out into a worktree with an environment of its own, for the `with` block."""
    folder = parent / commit
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, commit], cwd=ROOT, check=True)
    try:
        print(f"{commit}: installing ...", file=sys.stderr)
        subprocess.run(["make", ".venv/.stamp-dev"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        yield folder
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


def measured(folder: Path, load: ComparedLoad, boots: int, hosts: int) -> BootCost:
    """Run bench.boots of a checkout."""
    words = ["-m", "bench.boots", "--boots", str(boots), "--hosts", str(hosts), "--cells", "4"]
    words += ["--mix", str(load.mix), "--rate", str(load.rate), "--fail", "0.1"]
    ran = subprocess.run(
        [folder / ".venv/bin/python", *words], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
    )
    return cost_in(ran.stdout)


def compare(
    commits: Sequence[str], loads: Sequence[ComparedLoad], rounds: int, boots: int, hosts: int
) -> Iterator[tuple[ComparedLoad, Costs]]:
    """Measure all checkouts in turns; yield for each load the costs by checkout."""
    with tempfile.TemporaryDirectory(prefix="berth-beside-") as parent, ExitStack() as stack:
        folders = {commit: stack.enter_context(checked_out(commit, Path(parent))) for commit in commits}
        folders[HERE] = ROOT
        for load in loads:
            costs: dict[str, list[BootCost]] = {name: [] for name in folders}
            for number in range(rounds):
                for name, folder in folders.items():
                    costs[name].append(measured(folder, load, boots, hosts))
                    cost = costs[name][-1].processor_ms
                    print(f"{load}, round {number + 1}: {name} {cost:.2f} ms", file=sys.stderr)
            yield load, costs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commits", nargs="*", help="the first is what the others are compared with")
    parser.add_argument("--most", type=float, default=1.05, help="greatest ratio to the first commit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mix", type=int, nargs="+", default=[20, 1], help="flavors in the mix")
    parser.add_argument("--rate", type=float, nargs="+", default=[0.0], help="boots a second; 0: no limit")
    parser.add_argument("--boots", type=int, default=8000)
    parser.add_argument("--hosts", type=int, default=10_000)
    given = parser.parse_args()
    commits = given.commits or [runs.read(runs.RECORDED).commit]
    loads = [ComparedLoad(mix, rate) for rate in given.rate for mix in given.mix]
    worst = 0.0
    for load, costs in compare(commits, loads, given.rounds, given.boots, given.hosts):
        print(table(load, costs, commits[0]), end="\n\n", flush=True)
        worst = max(worst, ratio(costs, HERE, commits[0]))
    print(f"{HERE}: at most {worst:.2f} of the processor time of {commits[0]}; allowed are {given.most:g}")
    sys.exit(1 if worst > given.most else 0)


if __name__ == "__main__":
    main()
