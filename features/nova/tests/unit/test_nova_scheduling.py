"""The versions of the scheduler's RPC that the bridge answers."""

from typing import Any
from unittest.mock import AsyncMock

import pytest

from bus.clock import Clock
from features.nova.core.translation import BridgeOptions
from features.nova.mirror import Mirror
from features.nova.oslo.server import RpcCall, RpcFailure, RpcResult
from features.nova.scheduling import UNSUPPORTED, NovaScheduling, SchedulingQueries
from features.nova.tests.support.nova_builders import a_cloud, a_spec
from tests.support.ids import uid


async def unused(*arguments: Any) -> Any:
    raise AssertionError(arguments)


def a_scheduling() -> NovaScheduling:
    mirror = Mirror(AsyncMock(), AsyncMock(), unused, Clock())
    mirror.cloud = a_cloud()
    queries = SchedulingQueries(select=unused, release=unused)
    return NovaScheduling(queries, mirror, BridgeOptions(), Clock())


@pytest.mark.parametrize(
    ("method", "version"),
    [
        ("select_destinations", "4.0"),
        ("select_destinations", "4.4"),
        ("select_destinations", "4.6"),
        ("select_destinations", "5.5"),
        ("update_instance_info", "3.0"),
        ("update_instance_info", "4.x"),
    ],
)
async def test_a_call_in_another_version_is_refused(method: str, version: str) -> None:
    args = {"spec_obj": a_spec(), "instance_uuids": [uid(1)]}
    with pytest.raises(RpcFailure, match=f"{method} in version {version}") as refused:
        await a_scheduling().answer(RpcCall(method, version, "", args, {}))
    assert f"{refused.value.module}.{refused.value.name}" == UNSUPPORTED


async def test_casts_are_taken_in_their_older_versions() -> None:
    cast = RpcCall("update_instance_info", "4.2", "", {}, {})
    assert await a_scheduling().answer(cast) == RpcResult()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"instance_uuids": [uid(1)]}, "not a RequestSpec"),
        ({"spec_obj": a_spec(), "instance_uuids": []}, "names no instance"),
        ({"spec_obj": a_spec()}, "names no instance"),
    ],
)
async def test_a_call_without_a_request_or_instances_is_refused(args: dict[str, Any], why: str) -> None:
    with pytest.raises(RpcFailure, match=why):
        await a_scheduling().answer(RpcCall("select_destinations", "4.5", "", args, {}))


async def test_without_server_groups_their_requests_are_refused_with_the_reason() -> None:
    scheduling = a_scheduling()
    group = {"uuid": uid(9), "policy": "anti-affinity"}
    args = {"spec_obj": a_spec(instance_group=group), "instance_uuids": [uid(1)]}
    with pytest.raises(RpcFailure, match="berth cannot decide about its server group: this berth has no"):
        await scheduling.answer(RpcCall("select_destinations", "4.5", "", args, {}))
