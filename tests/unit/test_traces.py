"""When traces are made, and what a message carries of them."""

from collections.abc import Iterator, Sequence

import pytest

from berth import traces
from berth.settings import BadSetting
from berth.traces import exporter_named
from bus.clock import Clock
from bus.context import Span, current_tracer, envelope_of, trace_by
from bus.messages import BuildCancelRequested, HostFailed
from bus.protocol import Envelope
from bus.vocabulary import Message
from tests.support.ids import uid

ROOT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, ""),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, ""),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, ""),
    ],
)
def test_traces_are_exported_if_the_environment_names_an_exporter(
    environment: dict[str, str], named: str
) -> None:
    assert exporter_named(environment) == named


def test_an_unknown_exporter_is_refused_with_what_to_install() -> None:
    with pytest.raises(BadSetting, match=r"OTEL_TRACES_EXPORTER=jaeger_of_old: .*berth\[traces\]"):
        traces.begin({"OTEL_TRACES_EXPORTER": "jaeger_of_old"})
    assert current_tracer() is None


class PlainTracer:
    def handling(self, worker: str, row: str, envelope: Envelope) -> Span | None:
        return None

    def asking(self, query: str, causes: Sequence[Envelope]) -> tuple[Span, str] | None:
        return None

    def beginning(self, type_: str) -> str:
        return ROOT


@pytest.fixture
def traced() -> Iterator[None]:
    trace_by(PlainTracer())
    yield
    trace_by(None)


CANCEL = BuildCancelRequested(build=uid(1))


def carried(message: Message, cause: str | None = None) -> str:
    led = None if cause is None else envelope_of(CANCEL, Clock())
    if led is not None:
        led.traceparent = cause or ""
    return envelope_of(message, Clock(), led).traceparent


def test_without_a_tracer_each_message_has_a_name_of_its_own_in_the_trace() -> None:
    said = carried(CANCEL, ROOT)
    assert said != ROOT
    assert said.startswith(ROOT[:36]) and said.endswith("-01")


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("cause", "carries"),
    [(ROOT, ROOT), (ROOT[:-2] + "00", ROOT[:-2] + "00"), ("nonsense", ROOT), (None, ROOT)],
)
def test_with_one_it_carries_the_span_that_led_to_it_or_one_that_begins(
    cause: str | None, carries: str
) -> None:
    assert carried(CANCEL, cause) == carries


@pytest.mark.usefixtures("traced")
def test_a_message_without_a_cause_begins_no_trace() -> None:
    told = HostFailed(root=uid(1, "a"), host="h1", agent="a1", cell="c1", build=uid(1), attempt=1)
    assert carried(told).endswith("-00")
