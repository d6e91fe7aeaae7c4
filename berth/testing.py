"""The names that tests of drivers, filters and weighers import, in addition to `berth.drivers` and
`berth.rules`.
"""

from collections.abc import Sequence
from typing import Any

from berth.features import parts_of
from berth.settings import Settings
from bus.messages import BuildRequested
from bus.requests import Flavor
from compute_sim.core.drivers import build_tree
from compute_sim.core.faults import SimOptions
from compute_sim.driver_kit import DriverStand, RuleResult
from compute_sim.driver_kit import check_driver as check_rules
from compute_sim.extension import AgentNeeds, ForAgent
from scheduler_worker.core.extension import Alternative, OneHost
from scheduler_worker.core.request import RequestOptions, alternatives_of

__all__ = [
    "DriverStand",  # a driver under test, with two hosts
    "OneHost",  # one host as a View: `rule.admits(OneHost(host), alternative)`
    "RuleResult",  # whether a driver follows one rule
    "an_alternative",  # a request as filters and weighers read it
    "build_tree",  # the provider tree that hardware drivers make
    "check_driver",  # the checks of `berth cell agent check`
]
_FLAVOR = Flavor(name="small", vcpus=1, memory_mb=1024, disk_gb=10)
_ID = "00000000-0000-4000-8000-000000000001"


def an_alternative(flavor: Flavor = _FLAVOR, **fields: Any) -> Alternative:
    """Return the alternative of a request for one instance. `fields`: further fields of BuildRequested.

    Raise ValueError if the request contradicts itself.
    """
    request = BuildRequested(request=_ID, instances=(_ID,), flavor=flavor, **fields)
    return alternatives_of(request, RequestOptions(), lambda host: (host,))[0]


async def check_driver(stand: DriverStand, settings: Settings | None = None) -> Sequence[RuleResult]:
    """Test a driver with all operations of an agent, and return the result of each rule.

    `settings`: the features with operations of their own, such as moves; by default all.
    """
    parts = parts_of(ForAgent, "agent", AgentNeeds(options=SimOptions()), settings or Settings())
    return await check_rules(stand, {part.name: part.driver_rules(stand) for part in parts})
