"""The notifications that the bridge publishes in place of nova-scheduler.

The captured RequestSpecs are as Nova 34 sends them by RPC, with the payloads that its classes make of them.
"""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec import structs

from bus.clock import Clock
from bus.errors import Unavailable
from bus.messages import BuildUnplaceable
from features.nova.core.scheduler_notifications import (
    NotificationOptions,
    Phase,
    legacy_spec,
    notifications_of,
    payload_of,
)
from features.nova.core.translation import BridgeOptions
from features.nova.messages import HostsAnswered, HostsAsked
from features.nova.mirror import Mirror
from features.nova.notifying import SchedulerNotifications
from features.nova.oslo.server import RpcCall, RpcFailure, unpacked
from features.nova.scheduling import NovaScheduling, SchedulingQueries
from features.nova.tests.support.nova_builders import a_cloud, a_spec
from tests.support.conductor_builders import a_placed
from tests.support.foreign_publishers import PublisherWithoutBroker
from tests.support.ids import uid
from tests.support.waiting import until

CAPTURED = Path(__file__).parent.parent / "captures" / "nova_payloads.jsonl.gz"
PAYLOADS = [json.loads(line) for line in gzip.decompress(CAPTURED.read_bytes()).splitlines()]
CONTEXT = {"request_id": "req-1", "user_id": "u1", "auth_token": "secret", "service_catalog": ["secret"]}


@pytest.mark.parametrize("captured", PAYLOADS)
def test_payloads_equal_those_of_nova(captured: dict[str, Any]) -> None:
    assert payload_of(captured["spec"]) == captured["versioned"]
    made, expected = legacy_spec(captured["spec"]), captured["unversioned"]["request_spec"]
    instance = expected["instance_properties"]
    assert made["instance_properties"].items() >= instance.items()
    assert {**made, "instance_properties": instance} == expected


@pytest.mark.parametrize(
    ("form", "published"),
    [
        ("versioned", [("versioned_notifications.info", "nova-scheduler:here")]),
        ("unversioned", [("notifications.info", "scheduler.here")]),
        (
            "both",
            [
                ("notifications.info", "scheduler.here"),
                ("versioned_notifications.info", "nova-scheduler:here"),
            ],
        ),
    ],
)
def test_the_format_decides_the_topics(form: str, published: list[tuple[str, str]]) -> None:
    options = NotificationOptions(form)
    made = list(notifications_of(PAYLOADS[0]["spec"], CONTEXT, "end", "here", options))
    assert [(key, content["publisher_id"]) for key, content in made] == published
    for _, content in made:
        assert content["event_type"] == "scheduler.select_destinations.end"
        assert content["_context_request_id"] == "req-1"
        assert "secret" not in json.dumps(content)


def a_call(spec: Any, **fields: Any) -> RpcCall:
    args = {"spec_obj": spec, "instance_uuids": [uid(1)], **fields}
    return RpcCall("select_destinations", "4.5", "", args, CONTEXT, message_id=uid(8).replace("-", ""))


async def test_the_newest_notifications_wait_while_the_broker_is_away() -> None:
    publisher = PublisherWithoutBroker(Unavailable("away"), limit=2)
    notifications = SchedulerNotifications(publisher, NotificationOptions("versioned"), Clock(), "here")
    for number in (1, 2, 3):
        notifications.add(a_call(a_spec(instance_uuid=uid(number))), "start")
    notifications.add(a_call({"nova_object.data": {"retry": "?"}}), "start")  # unreadable: left out
    running = asyncio.create_task(notifications.run())
    await until(lambda: len(publisher.published) == 2)
    running.cancel()
    found = [
        unpacked(body)["payload"]["nova_object.data"]["instance_uuid"] for _, body in publisher.published
    ]
    assert found == [uid(2), uid(3)]


class RecordedPhases:
    def __init__(self) -> None:
        self.phases: list[Phase] = []

    def add(self, call: RpcCall, phase: Phase) -> None:
        self.phases.append(phase)


@pytest.mark.parametrize(
    ("spec", "is_placed", "phases"),
    [
        ({}, True, ["start", "end"]),
        ({}, False, ["start"]),
        ({"numa_topology": {"cells": []}}, True, []),  # a nova-scheduler decides it, and notifies
    ],
)
async def test_a_call_that_berth_decides_is_published(
    spec: dict[str, Any], is_placed: bool, phases: list[str]
) -> None:
    async def select(question: HostsAsked) -> HostsAnswered:
        if not is_placed:
            instances = question.request.instances
            return HostsAnswered(refused=BuildUnplaceable(request=uid(8), instances=instances, reason="full"))
        build = a_placed()
        chosen = structs.replace(build.chosen, root=uid(1, "a"))  # a host of the cloud
        return HostsAnswered(placed=(structs.replace(build, chosen=chosen),))

    recorded, mirror = RecordedPhases(), Mirror(AsyncMock(), AsyncMock(), unused, Clock())
    mirror.cloud = a_cloud()
    queries = SchedulingQueries(select=select, release=unused)
    options = BridgeOptions()
    scheduling = NovaScheduling(queries, mirror, options, Clock(), notify=recorded.add)
    is_answered = True
    try:
        await scheduling.answer(a_call(a_spec(**spec)))
    except RpcFailure:
        is_answered = False
    assert is_answered == ("end" in phases)
    assert recorded.phases == phases


async def unused(*arguments: Any) -> Any:
    raise AssertionError(arguments)
