"""A boot, a move and a notification of Ironic are one trace each, with every span below its cause."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="berth[traces] is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from berth.commands.run import ready
from berth.logs import SpansOf
from berth.services import embedded
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.context import trace_by
from bus.delivery.runner import Bus
from bus.ironic import NodeChanged
from bus.messages import BuildRequested
from bus.requests import Flavor
from bus.resources import FindProviders
from features.moves.messages import MOVE_ENDED, MoveRequested
from ironic_sync.core.selection import NodeSelection
from ironic_sync.worker import FollowedIronic, ironic_sync
from tests.support.fake_ironic import FakeIronic, node_number
from tests.support.swept_ironic import ManualNotifications
from tests.support.waiting import in_time, until

SMALL = Flavor(name="small", vcpus=1, memory_mb=512, disk_gb=1)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace_by(SpansOf(provider))
    yield exporter
    trace_by(None)
    provider.shutdown()


def traces(spans: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    """By what they begin with."""
    finished = spans.get_finished_spans()
    started = {span.context.trace_id: span.name for span in finished if span.context and span.parent is None}
    found: dict[str, list[ReadableSpan]] = {}
    for span in finished:
        assert span.context is not None
        found.setdefault(started.get(span.context.trace_id, "nothing"), []).append(span)
    return found


def is_one_tree(trace: list[ReadableSpan]) -> bool:
    ids = {span.context.span_id for span in trace if span.context}
    roots = [span for span in trace if span.parent is None]
    return len(roots) == 1 and all(span.parent is None or span.parent.span_id in ids for span in trace)


def workers(trace: list[ReadableSpan]) -> set[str]:
    return {str((span.attributes or {}).get("berth.worker", "")).split(".")[0] for span in trace} - {""}


ALL_WORKERS = {"scheduler", "placement", "conductor", "agent"}


async def one_trace_over(expected: set[str], spans: InMemorySpanExporter, begins: str) -> None:
    def complete() -> bool:
        trace = traces(spans).get(begins, [])
        return expected <= workers(trace) and is_one_tree(trace)

    await until(complete, begins, picture=lambda: sent(spans))


async def booted(bus: Bus) -> str:
    build = Clock().uuid()
    listener = await bus.listen(topics.BUILD_ENDED.at(reply_to="test"))
    await bus.publish(BuildRequested(request=build, instances=(build,), flavor=SMALL, reply_to="test"))
    ended = await in_time(listener.get())
    assert (ended.build, ended.status) == (build, "active")
    return build


async def test_a_boot_and_a_move_are_one_trace_each(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    settings = Settings().having(
        cells=("c1",),
        simulator={"hosts": 3, "build_time": "constant:0.01"},
        state_dir=str(tmp_path),
        control_room_http="off",
    )
    async with embedded(settings) as berth:
        await ready(berth.bus, settings)
        build = await booted(berth.bus)
        await one_trace_over(ALL_WORKERS, spans, "say BuildRequested")

        listener = await berth.bus.listen(MOVE_ENDED.at(reply_to="test"))
        move = Clock().uuid()
        await berth.bus.publish(MoveRequested(move=move, build=build, kind="migrate", reply_to="test"))
        await in_time(listener.get())
        await one_trace_over(ALL_WORKERS, spans, "say MoveRequested")
    assert "nothing" not in traces(spans)


async def test_an_ironic_notification_is_one_trace(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    settings = Settings().having(
        cells=("c1",), simulator={"hosts": 1}, state_dir=str(tmp_path), control_room_http="off"
    )
    ironic, voice, stopping = FakeIronic(), ManualNotifications(), asyncio.Event()
    ironic.now = int(Clock().now()) - 1000
    node = ironic.have(2)
    followed = FollowedIronic(
        selection=NodeSelection(cell="c1"),
        notifications=voice,  # type: ignore[arg-type]
        api=ironic.api(),
    )
    async with embedded(settings) as berth, asyncio.TaskGroup() as group:
        await ready(berth.bus, settings)
        bus = berth.bus
        by_tool = NodeChanged(
            event="provision_set", node=node_number(1), at=Clock().now(), cell="c1", agent="c1-metal",
            resource_class="gold", provision_state="available",
        )  # fmt: skip
        await bus.publish(by_tool)
        await one_trace_over({"ironic_sync", "placement"}, spans, "say NodeChanged")

        group.create_task(
            bus.serve(ironic_sync(followed, bus.publish, bus.asker(topics.PROVIDERS)), stopping)
        )

        async def known() -> bool:
            asked = FindProviders(ids=(node,))
            return bool((await bus.asker(topics.PROVIDERS)(asked)).providers)

        await until(known, "its first look at everything has told placement of the node")
        for maintenance in (True, False):  # what closes it is believed, what opens it is read first
            spans.clear()
            ironic.change(2, maintenance=maintenance)
            await voice.say("maintenance_set.end", Clock().now(), ironic.nodes[node])
            await one_trace_over(
                {"ironic_sync", "placement"}, spans, "say baremetal.node.maintenance_set.end"
            )
        stopping.set()


def sent(spans: InMemorySpanExporter) -> dict[str, list[str]]:
    return {name: [span.name for span in trace] for name, trace in traces(spans).items()}
