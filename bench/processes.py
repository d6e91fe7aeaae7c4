"""Measures the processes of a benchmark through the operating system: processor time by type, and memory."""

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_MEGABYTE = 1024.0  # in the kilobytes of /proc

WORKERS = ("scheduler", "placement", "conductor", "compute", "ironic", "nova", "rest")
BESIDE = ("load", "py-spy")  # the measuring processes are not part of the result
# stand for the compute services of a cloud; in the layout `compact` they share processes with conductors
SIMULATED = ("compute",)

ProcessorTime = dict[tuple[int, str], float]  # process id and kind → seconds


def share_of(before: ProcessorTime, after: ProcessorTime, boots: int) -> defaultdict[str, float]:
    """Return the processor time per boot in milliseconds, by type of process, between two readings."""
    cost: defaultdict[str, float] = defaultdict(float)
    for process, seconds in after.items():
        cost[process[1]] += (seconds - before.get(process, 0.0)) * 1000 / boots
    return defaultdict(float, {name: spent for name, spent in cost.items() if spent > 0.005})


def in_all(cost: Mapping[str, float]) -> float:
    """Return the total processor time of berth's workers and servers, without the measuring processes."""
    return sum(spent for name, spent in cost.items() if name not in BESIDE)


def of_berth(cost: Mapping[str, float]) -> float:
    """Return the processor time of berth's workers and servers without the simulated agents."""
    return in_all(cost) - sum(cost.get(name, 0.0) for name in SIMULATED)


def parts_of(cost: Mapping[str, float]) -> str:
    """Return the processor time of each type of berth's processes as text, the largest first."""
    dearest = sorted(cost.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {spent:.2f}" for name, spent in dearest if name not in BESIDE)


def processor_time() -> ProcessorTime:
    """Return the processor seconds used so far by each worker, the broker, the database and this process."""
    ours: ProcessorTime = {}
    for pid, command in family(os.getpid()).items():
        try:
            ours[pid, kind(pid, command)] = processor_seconds(pid)
        except OSError:
            continue
    return ours


def processor_seconds(pid: int) -> float:
    """Return the processor seconds that a process has used so far, in steps of a tick (10 ms)."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(line: str = "VmRSS") -> dict[str, float]:
    """Return the memory in megabytes of the largest worker of each type, from a line of /proc/PID/status:
    VmHWM is the peak.
    """
    largest: dict[str, float] = {}
    for pid, command in family(os.getpid()).items():
        worker = kind(pid, command)
        if worker not in WORKERS:
            continue
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        (has,) = (int(value.split()[1]) / _MEGABYTE for value in lines if value.startswith(f"{line}:"))
        largest[worker] = max(largest.get(worker, 0.0), has)
    return largest


def kind(pid: int, command: str) -> str:
    """Return the type of a process, such as a worker or a server, from its command line."""
    if pid == os.getpid():
        return "load"
    if any(word in command for word in ("beam", "epmd", "erl_child_setup", "inet_gethost", "rabbit_disk")):
        return "RabbitMQ"
    if "postgres" in command:
        return "PostgreSQL"
    if "py-spy" in command:
        return "py-spy"
    for worker in WORKERS:
        if f"berth run {worker}" in command:
            return worker
    return "supervisor" if "berth up" in command else "load" if "berth load" in command else "other"


def family(of: int) -> dict[int, str]:
    """Return a mapping of the ids of a process and all its descendants to their command lines."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat[stat.rindex(")") + 2 :].split()[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    fresh = [of]
    while fresh:
        pid = fresh.pop()
        fresh += children.get(pid, [])
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found
