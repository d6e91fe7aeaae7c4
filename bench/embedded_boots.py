"""Measures boots in one process, on the in-process bus and SQLite, and the duration of `make demo`."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import uvloop

from bench.figures import Figure
from bench.loading import NotClean, check_clean
from berth.commands.run import ready
from berth.loadtest import Load, LoadOutcome, LoadPlan, mixed
from berth.operations.audit import audit
from berth.services import embedded, settle_in
from berth.settings import Settings


def embedded_boots(boots: int, hosts: int, flavors: int = 20) -> tuple[Figure, ...]:
    """Measure a load of boots on an embedded berth in this process."""
    outcome, spent = uvloop.run(_loaded(boots, hosts, flavors))
    return (
        Figure("boots/s", outcome.per_second, "/s", "up"),
        Figure("processor a boot, the load's too", spent * 1000 / boots, "ms", "down", "processor"),
    )


async def _loaded(boots: int, hosts: int, flavors: int) -> tuple[LoadOutcome, float]:
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as directory:
        settings = Settings().having(state_dir=directory, simulator={"hosts": hosts, "fail": 0.1})
        async with embedded(settings) as house:
            await ready(house.bus, settings)
            settle_in()  # like `berth up`
            spent = time.process_time()
            outcome = await Load(house.bus, LoadPlan(boots=boots, flavors=mixed(flavors))).run()
            spent = time.process_time() - spent
        breaches = (await audit(settings, settled=True)).breaches
    check_clean(outcome)
    if breaches:
        raise NotClean(f"the audit found {len(breaches)} breaches: {breaches[0]}")
    return outcome, spent


def demo() -> tuple[Figure, ...]:
    """Measure how long `make demo` takes after its installation."""
    began = time.perf_counter()
    ran = _alone("demo")
    if ran.returncode:
        raise NotClean(f"berth demo failed: {ran.stdout[-2000:]}")
    return (Figure("make demo", time.perf_counter() - began, "s", "down"),)


def _alone(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    command: Sequence[str] = (sys.executable, "-m", "berth", *words)
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
