"""Describes the machine of a benchmark run: its hardware, and its speed at the moment."""

import json
import os
import platform
import re
import statistics
import subprocess
import time
from pathlib import Path

import msgspec

from bench.durable import durable_rates
from bench.figures import MachineFacts, Yardstick
from berth.settings import usable_cores
from deploy.servers import find_binaries

_TURNS = 5
_TURN = 0.08  # seconds
_WORDS = {
    "request": "b0a3c3a2-53a8-4ec5-9f33-6b2f3a3f0d0e",
    "flavor": {"name": "mix-7", "vcpus": 4, "memory_mb": 4096, "disk_gb": 6},
    "hosts": [
        {"root": number, "used": {"VCPU": number % 7, "MEMORY_MB": 512 * number}} for number in range(20)
    ],
}


def yardstick(amqp_url: str, database_url: str) -> Yardstick:
    """Measure how often a loop of Python and JSON runs, and the rates of the servers at the URLs. Never
    change the loop, or recorded runs cannot be compared.
    """
    turns = [_turn() for _ in range(_TURNS)]
    rates = durable_rates(amqp_url, database_url)
    return Yardstick(
        clock=statistics.median(turn.clock for turn in turns),
        processor=statistics.median(turn.processor for turn in turns),
        publishes=rates.publishes,
        inserts=rates.inserts,
    )


def between(before: Yardstick, after: Yardstick) -> Yardstick:
    pairs = zip(msgspec.structs.astuple(before), msgspec.structs.astuple(after), strict=True)
    return Yardstick(*((one + other) / 2 for one, other in pairs))


def _turn() -> Yardstick:
    went = 0
    began, spent = time.perf_counter(), time.process_time()
    while (clock := time.perf_counter() - began) < _TURN:
        _once()
        went += 1
    processor = max(time.process_time() - spent, 1e-6)
    return Yardstick(went / clock, went / processor)


def _once() -> int:
    hosts = json.loads(json.dumps(_WORDS))["hosts"]
    free = {host["root"]: 64 - host["used"]["VCPU"] for host in hosts}
    return sum(sorted(free.values(), reverse=True)[:5])


def facts() -> MachineFacts:
    return MachineFacts(
        processor=_processor(),
        cores=usable_cores(),
        load=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        rabbitmq=_rabbitmq(),
        postgresql=_postgresql(),
    )


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def _rabbitmq() -> str:
    return _version(str(find_binaries().rabbitmq.server.with_name("rabbitmqctl")), "version")


def _postgresql() -> str:
    return _version(str(find_binaries().postgres.postgres), "--version")


def _version(*command: str) -> str:
    output = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    found = re.search(r"\d+\.[\d.]*\d", output)
    return found[0] if found else "unknown"
