"""Interfaces for Ironic's fake hardware, controlled by a node's driver_info. Loaded by Ironic.

berth_power   unreachable, error: the BMC's answer
berth_deploy  fail, wait: the next deployments; berth_tear_down fail
berth_clean   fail, or the seconds that cleaning takes
"""

import time
from typing import Any

from ironic.common import exception, states
from ironic.drivers import base
from ironic.drivers.modules import fake


class FaultyPower(fake.FakePower):  # type: ignore[misc]  # Ironic is where this is loaded
    def get_power_state(self, task: Any) -> Any:
        wanted = task.node.driver_info.get("berth_power")
        if wanted == "unreachable":
            raise exception.PowerStateFailure(pstate="read (unreachable BMC)")
        if wanted == "error":
            return states.ERROR
        known = task.node.power_state
        return states.POWER_OFF if known in (None, states.ERROR) else known

    def set_power_state(self, task: Any, power_state: str, timeout: int | None = None) -> None:
        if task.node.driver_info.get("berth_power"):
            raise exception.PowerStateFailure(pstate=power_state)
        super().set_power_state(task, power_state, timeout)


class FaultyDeploy(fake.FakeDeploy):  # type: ignore[misc]  # Ironic is where this is loaded
    @base.deploy_step(priority=100)  # type: ignore[untyped-decorator]  # Ironic's
    def deploy(self, task: Any) -> Any:
        wanted = task.node.driver_info.get("berth_deploy")
        if wanted == "fail":
            raise exception.InstanceDeployFailure(reason="the image could not be written")
        return states.DEPLOYWAIT if wanted == "wait" else None

    def tear_down(self, task: Any) -> Any:
        if task.node.driver_info.get("berth_tear_down") == "fail":
            raise exception.InstanceDeployFailure(reason="the ports could not be removed")
        return states.DELETED

    @base.clean_step(priority=10)  # type: ignore[untyped-decorator]  # Ironic's
    def erase(self, task: Any) -> None:
        wanted = task.node.driver_info.get("berth_clean", 0)
        if wanted == "fail":
            raise exception.NodeCleaningFailure(node=task.node.uuid, reason="a disk could not be erased")
        time.sleep(float(wanted))
