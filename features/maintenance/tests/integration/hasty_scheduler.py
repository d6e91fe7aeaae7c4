"""A scheduler process whose maintenance work has short intervals: a killed leader is replaced within 3 s."""

import sys
from collections.abc import Sequence
from functools import partial

from berth import worker_roles
from features.maintenance import controller, scheduler
from features.maintenance.quorum import AgentQuorum
from features.moves import plans
from tests.support.watched_agents import WatchingSupervisor


class HastySupervisor(WatchingSupervisor):
    """Runs such schedulers, and agents that log which guests run."""

    @staticmethod
    def command(together: Sequence[worker_roles.Role]) -> Sequence[str]:
        words, hasty = WatchingSupervisor.command(together), together[0].worker == "scheduler"
        return [__name__ if word == "berth" and hasty else word for word in words]


if __name__ == "__main__":
    from berth.__main__ import main

    controller.LEAD_SECONDS = plans.LEAD_SECONDS = 3.0
    plans.STEP_SECONDS = 0.5
    scheduler.STEP_SECONDS = 0.5  # type: ignore[attr-defined]
    controller.AgentQuorum = partial(AgentQuorum, pause=1.0)  # type: ignore[assignment, attr-defined]
    sys.argv = ["berth", *sys.argv[1:]]
    main()
