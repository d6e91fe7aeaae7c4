"""The mirror of a Nova's hosts."""

from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec import structs

from bus.aggregates import AggregatesFound
from bus.cells import CellsFound
from bus.clock import Clock
from bus.messages import HostReported
from bus.resources import ProvidersFound
from features.nova.core.cloud import DISCOVER, NovaCloud, NovaHost
from features.nova.mirror import Mirror, MirrorQueries
from features.nova.tests.support.nova_builders import a_cloud, a_host

MAPPED, UNMAPPED = a_host(1), a_host(2)
DISABLED = NovaHost(
    UNMAPPED.root, UNMAPPED.host, UNMAPPED.node, UNMAPPED.cell, 74,
    structs.replace(UNMAPPED.state, enabled=False, why_disabled=DISCOVER),
)  # fmt: skip


async def test_a_host_that_is_mapped_to_no_cell_is_reported_as_disabled_with_the_command_that_maps_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = a_cloud(MAPPED)
    clouds = [
        known,
        NovaCloud(known.cells, known.hosts, unmapped={UNMAPPED.root: DISABLED}),
        a_cloud(MAPPED, UNMAPPED),
    ]
    reported: list[HostReported] = []

    async def publish(*messages: HostReported) -> None:
        reported.extend(messages)

    queries: dict[str, Any] = {
        "cells": AsyncMock(return_value=CellsFound(seen=1, cells=())),
        "providers": AsyncMock(return_value=ProvidersFound(providers=())),
        "aggregates": AsyncMock(return_value=AggregatesFound(seen=1, aggregates=())),
        **{name: AsyncMock() for name in ("edit_cell", "edit_owner", "edit_aggregate")},
    }
    mirror = Mirror(AsyncMock(read=AsyncMock(side_effect=clouds)), MirrorQueries(**queries), publish, Clock())
    for _ in clouds:
        await mirror.refresh()
    states = [
        (state.root, state.enabled, state.why_disabled) for message in reported for state in message.hosts
    ]
    assert states == [(UNMAPPED.root, False, DISCOVER), (UNMAPPED.root, True, "")]
    assert f"{UNMAPPED.host}: {DISCOVER}" in caplog.text
