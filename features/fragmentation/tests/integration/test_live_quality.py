"""The benchmark of placement quality, through berth on RabbitMQ and PostgreSQL, and in memory."""

from collections.abc import Callable

import pytest

from bench.quality import gpu_trace, vm_trace
from bench.quality.__main__ import in_memory, live
from bench.quality.cloud import OpenCloud
from deploy.servers import find_binaries
from tests.support.servers import installed

pytestmark = [pytest.mark.services, pytest.mark.soak]
Figures = dict[str, float]


def gpus(opened: OpenCloud) -> Figures:
    return gpu_trace.with_berth(gpu_trace.synthetic(1), 1, opened)


def machines(opened: OpenCloud) -> Figures:
    trace = vm_trace.trace_of(vm_trace.synthetic(1).machines[:300])
    return vm_trace.with_berth(trace, trace.hosts(0.75), opened, 1)


@pytest.mark.parametrize("replay", [gpus, machines])
def test_figures_are_those_of_the_replay_in_memory(replay: Callable[[OpenCloud], Figures]) -> None:
    installed(find_binaries)
    balanced, spread = replay(in_memory("balanced")), replay(in_memory("spread"))
    assert balanced != spread, "the trace must tell the policies apart"
    assert replay(live("balanced")) == balanced
