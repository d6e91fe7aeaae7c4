"""`berth cell agent`: tests drivers of hypervisors and hardware."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from rich.text import Text

from berth.kit.command_groups import Commands
from berth.kit.listing import plain_table
from berth.kit.options import option, positional
from berth.kit.terminal import Cli
from berth.settings import BadSetting, Settings
from bus.masking import printable
from bus.requests import Flavor

if TYPE_CHECKING:
    from compute_sim.driver_kit import DriverStand, RuleResult

commands = Commands()


@dataclass(frozen=True, kw_only=True)
class DriverCheckOptions:
    """The hosts and guests of a driver check, as an operator enters them."""

    host: list[str] | None = option(None, "A host to use; twice for moves (default: check-1, check-2).")
    vcpus: int = option(1, "Processors of each guest.", min=0)
    memory_mb: int = option(64, "Memory of each guest in MB.", min=0)
    disk_gb: int = option(0, "Disk of each guest in GB.", min=0)
    image: str = option("", "Image of each guest.")
    timeout: float = option(60.0, "Time for each rule.", min=0.1, metavar="SECONDS")


@commands.command("check")
async def check_command(
    cli: Cli,
    driver: Annotated[str, positional("The driver.", metavar="MODULE:CLASS")],
    check: DriverCheckOptions,
    options: Annotated[
        list[str] | None, positional("Options of the driver; lists as JSON.", metavar="NAME=VALUE")
    ] = None,
) -> int:
    """Test a hypervisor driver with all operations of an agent, and show which driver rules it follows.

    The driver creates and destroys guests on its hypervisor. The check needs neither a broker nor a database.
    The rules are described in docs/howto/driver.md.
    """
    from compute_sim.driver_kit import DriverStand
    from compute_sim.machines import BadDriver, load_driver

    hosts = (*(check.host or ()), "check-1", "check-2")
    flavor = Flavor(name="check", vcpus=check.vcpus, memory_mb=check.memory_mb, disk_gb=check.disk_gb)
    given = _driver_options(options or ())
    try:
        stand = DriverStand(
            lambda: load_driver(driver, given, strict=False),
            hosts=(hosts[0], hosts[1]),
            timeout=check.timeout,
            flavor=flavor,
            image=check.image,
        )
    except BadDriver as problem:
        raise BadSetting(f"{driver}: {problem.option}{': ' * bool(problem.option)}{problem}") from None
    results = await _results(stand, cli.settings)
    colours = {"passed": "green", "failed": "red", "skipped": "yellow"}
    rows = [
        (each.part, Text(each.outcome, colours[each.outcome]), each.rule, printable(each.reason))
        for each in results
    ]
    cli.rows([asdict(each) for each in results], plain_table(("part", "result", "rule", "reason"), rows))
    failed = sum(each.outcome == "failed" for each in results)
    if not cli.as_json:
        cli.tell(f"{len(results) - failed} of {len(results)} rules without a failure")
    return 1 if failed else 0


async def _results(stand: "DriverStand", settings: Settings) -> "Sequence[RuleResult]":
    from berth.testing import check_driver

    logger = logging.getLogger("compute_sim")
    level = logger.level
    logger.setLevel(logging.ERROR)  # warnings of the rules' agents are expected
    try:
        return await check_driver(stand, settings)
    finally:
        logger.setLevel(level)


def _driver_options(given: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in given:
        name, has_value, value = text.partition("=")
        if not has_value:
            raise BadSetting(f"{text!r}: give an option of the driver as NAME=VALUE")
        try:
            found[name] = msgspec.json.decode(value) if value[:1] in ("[", "{") else value
        except msgspec.DecodeError as problem:
            raise BadSetting(f"{name}: not JSON: {problem}") from None
    return found
