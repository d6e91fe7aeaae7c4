"""Profiles a boot: workers are sampled with py-spy during a load, and the samples are summed by function.

The measured processor time per boot of a worker is divided among its functions in proportion to their
samples. A sample counts for the innermost function of berth on its stack, or for the event loop if there is
none. Samples of a waiting thread are omitted.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.loading import a_berth, load_parser
from bench.processes import ProcessorTime, processor_time
from berth.loadtest import LoadPlan, mixed

_PACKAGES = (
    "bus",
    "placement_worker",
    "scheduler_worker",
    "cell_conductor",
    "compute_sim",
    "ironic_sync",
    "berth",
    "features",
)
_WAITING = ("asyncio/runners.py", "concurrent/futures/thread.py", "/socket.py", "berth/process_watch.py")
_KINDS = ("scheduler", "placement", "conductor", "compute")


def main() -> None:
    parser = load_parser(__doc__, boots=20_000, hosts=10_000)
    parser.add_argument("--hertz", type=int, default=80)
    parser.add_argument("--top", type=int, default=25, help="lines a worker")
    parser.add_argument("--keep", type=Path, help="a directory for the raw samples")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        kept = given.keep or Path(temporary)
        kept.mkdir(parents=True, exist_ok=True)
        with a_berth(given.hosts, given.cells, simulator_fail=given.fail, layout=given.layout) as berth:
            with _sampled(processor_time(), kept, given.hertz):
                run = berth.load(LoadPlan(boots=given.boots, rate=given.rate, flavors=mixed(given.mix)))
        print(f"{run.outcome.per_second:.0f} boots/s, {run.in_all:.2f} ms of processor a boot")
        for kind, milliseconds in sorted(run.cost.items(), key=lambda one: -one[1]):
            print(f"\n{kind}: {milliseconds:.3f} ms a boot")
            if kind in _KINDS:
                _print_samples(kept, kind, milliseconds, given.top)


@contextmanager
def _sampled(processes: ProcessorTime, kept: Path, hertz: int) -> Iterator[None]:
    """Run py-spy on each worker until the block ends; py-spy then writes its samples to files in the folder
    `kept`.
    """
    spy = Path(sys.executable).with_name("py-spy")
    spies = [
        subprocess.Popen(
            [
                *(str(spy), "record", "--full-filenames", "-F", "-r", str(hertz)),
                *("-d", "3600", "-f", "raw", "-o", str(kept / f"{kind}.{pid}.raw"), "--pid", str(pid)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for pid, kind in processes
        if kind in _KINDS
    ]
    try:
        yield
    finally:
        for popen in spies:
            popen.send_signal(signal.SIGINT)
        for popen in spies:
            popen.wait()


def _print_samples(kept: Path, kind: str, milliseconds: float, top: int) -> None:
    counts = summed([raw.read_text() for raw in sorted(kept.glob(f"{kind}.*.raw"))], os.getcwd() + os.sep)
    for title, counted in counts.items():
        total = counted.total() or 1
        print(f"  by {title}")
        for name, count in counted.most_common(top):
            print(f"    {count / total * milliseconds * 1000:7.1f} µs {count / total:6.1%}  {name}")


def summed(raws: list[str], here: str) -> dict[str, Counter[str]]:
    """Return counts of the samples in py-spy's raw output: by package and by function of berth, and by the
    package or library of the innermost frame. `here`: the repository.
    """
    packages: Counter[str] = Counter()
    below: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for line in (line for raw in raws for line in raw.splitlines()):
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if any(place in frames[-1] for place in _WAITING):
            continue
        ours = next((frame for frame in reversed(frames) if _own_package(frame, here)), None)
        packages[_own_package(ours, here) if ours else "event loop"] += int(count)
        functions[ours.replace(here, "") if ours else "event loop"] += int(count)
        below[_package(frames[-1], here)] += int(count)
    return {"package": packages, "whose code": below, "function": functions}


def _own_package(frame: str, here: str) -> str:
    """Return the package of berth that a frame is in, such as `bus/delivery`; "" if the frame is in no
    package of berth.
    """
    path = frame[frame.rfind("(") + 1 :]
    if not path.startswith(here) or "site-packages" in path:
        return ""
    parts = path[len(here) :].split(os.sep)
    return os.sep.join(parts[:-1]) if parts[0] in _PACKAGES else ""


def _package(frame: str, here: str) -> str:
    if own := _own_package(frame, here):
        return own
    path = frame[frame.rfind("(") + 1 :]
    if "site-packages" in path:
        return path.split("site-packages" + os.sep)[1].split(os.sep)[0]
    return "python: " + Path(path.split(":")[0]).stem


if __name__ == "__main__":
    main()
