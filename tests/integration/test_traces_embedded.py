"""One boot is one trace through every worker, each span beneath the one that led to it; so is a move."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="berth[traces] is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from berth.commands.run import ready
from berth.embedded import embedded
from berth.settings import Settings
from berth.traces import SpansOf
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from bus.moves import MoveRequested
from bus.requests import Flavor
from bus.tracing import trace_by
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
    begun = {one.context.trace_id: one.name for one in finished if one.context and one.parent is None}
    found: dict[str, list[ReadableSpan]] = {}
    for one in finished:
        assert one.context is not None
        found.setdefault(begun.get(one.context.trace_id, "nothing"), []).append(one)
    return found


def is_one_tree(trace: list[ReadableSpan]) -> bool:
    ids = {one.context.span_id for one in trace if one.context}
    roots = [one for one in trace if one.parent is None]
    return len(roots) == 1 and all(one.parent is None or one.parent.span_id in ids for one in trace)


def workers(trace: list[ReadableSpan]) -> set[str]:
    return {str((one.attributes or {}).get("berth.worker", "")).split(".")[0] for one in trace} - {""}


async def booted(bus: Bus) -> str:
    build = Clock().uuid()
    heard = await bus.listen(topics.BUILD_ENDED.at(reply_to="test"))
    await bus.publish(BuildRequested(request=build, instances=(build,), flavor=SMALL, reply_to="test"))
    ended = await in_time(heard.get())
    assert (ended.build, ended.status) == (build, "active")
    return build


async def test_a_boot_and_a_move_are_each_one_trace_over_all_who_had_a_part_in_it(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    settings = Settings().having(
        cells=("c1",), hosts=3, build_time="constant:0.01", state_dir=str(tmp_path), control_room_http="off"
    )
    async with embedded(settings) as berth:
        await ready(berth.bus, settings)
        build = await booted(berth.bus)
        # who said that it had ended is done with it a moment later
        await until(lambda: is_one_tree(traces(spans)["say BuildRequested"]))
        boot = traces(spans)["say BuildRequested"]
        assert workers(boot) >= {"scheduler", "placement", "conductor", "agent"}, workers(boot)

        heard = await berth.bus.listen(topics.MOVE_ENDED.at(reply_to="test"))
        move = Clock().uuid()
        await berth.bus.publish(MoveRequested(move=move, build=build, kind="migrate", reply_to="test"))
        await in_time(heard.get())
        await until(lambda: is_one_tree(traces(spans)["say MoveRequested"]))
    move_trace = traces(spans)["say MoveRequested"]
    assert workers(move_trace) >= {"scheduler", "placement", "conductor", "agent"}, workers(move_trace)
    assert "nothing" not in traces(spans)  # heartbeats, and what timers ask, make none
