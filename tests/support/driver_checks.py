"""The tests that `berth cell agent check` makes for a driver of a hypervisor, and how they are run."""

import types
from collections.abc import Sequence

from berth.testing import check_driver
from compute_sim.agent import SimulatedAgent
from compute_sim.agent_disk import AgentDisk
from compute_sim.core.faults import SimOptions
from compute_sim.driver_kit import DriverStand, RuleResult
from tests.support.snippets import ROOT, snippets

PAGE = ROOT / "docs/howto/driver.md"


def module_of_the_page(name: str) -> types.ModuleType:
    (example,) = [each for each in snippets(PAGE) if each.marks.get("as") == f"{name}.py"]
    module = types.ModuleType(name)
    exec(compile(example.text, name, "exec"), vars(module))
    return module


def broken(results: Sequence[RuleResult]) -> dict[str, str]:
    return {result.rule: result.reason for result in results if result.outcome == "failed"}


async def check(stand: DriverStand) -> Sequence[RuleResult]:
    return await check_driver(stand)


def an_agent(stand: DriverStand) -> SimulatedAgent:
    return SimulatedAgent("a1", SimOptions(), AgentDisk(), driven=stand.driven)
