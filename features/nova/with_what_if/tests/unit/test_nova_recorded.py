"""Notifications of a Nova 34 as they arrived: boots, a multi-create, a refusal, moves, a server group.

Contexts and addresses are left out.
"""

import gzip
from collections import Counter
from pathlib import Path

from bus.messages import BuildRequested
from features.nova.core.cloud import NovaCell
from features.nova.core.notifications import NovaNotification, notification_of
from features.nova.core.translation import BridgeOptions, translated
from features.nova.tests.support.nova_builders import a_cloud, a_host
from features.nova.with_what_if.core.observed_request import (
    check_decidable,
    independent,
    instances_of,
    observed,
)
from tests.support.ids import uid

RECORDED = Path(__file__).parent.parent / "nova.jsonl.gz"
CELL = "ff1ebcab-95ed-4e56-acee-e7b49e05ca03"
CLOUD = a_cloud(
    *(a_host(number, cell=CELL, host=f"host-00{number}") for number in (1, 2, 3)),
    cells=(NovaCell(CELL, "cell1"),),
)
READ = [notification_of(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]
NOTIFICATIONS = [found for found in READ if found is not None]


def requested(notification: NovaNotification) -> BuildRequested:
    assert notification.spec is not None
    spec = observed(notification.spec, None)
    check_decidable(spec)
    instances = instances_of(spec, notification.instance)
    return translated(independent(spec), instances, CLOUD, BridgeOptions(), request=uid(8)).question.request


def test_every_kind_of_notification_is_read() -> None:
    assert Counter(each.event for each in NOTIFICATIONS) == {
        "asked": 19, "selected": 19, "used": 21, "refused": 1
    }  # fmt: skip
    [refusal] = [each for each in NOTIFICATIONS if each.event == "refused"]
    assert (refusal.cause, refusal.operation) == ("NoValidHost", "boot")


def test_every_request_is_translated() -> None:
    requests = [requested(each) for each in NOTIFICATIONS if each.event == "asked"]
    assert {(request.flavor.vcpus, request.flavor.memory_mb) for request in requests} == {(1, 512), (2, 1024)}
    assert Counter(len(request.instances) for request in requests) == {1: 18, 3: 1}
    # a resize, a live migration, a boot and an unshelve into the server group, an evacuation in it
    assert Counter(len(request.ignore_hosts) for request in requests) == {0: 14, 1: 4, 2: 1}
    assert Counter(request.cell for request in requests) == {"": 15, "cell1": 4}
