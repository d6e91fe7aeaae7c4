"""Traces messages with OpenTelemetry, which is imported only if an environment variable names an exporter."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from berth.settings import BadSetting
from bus.context import Span, trace_by
from bus.protocol import Envelope

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CALLED = {"otlp": "otlp_proto_http"}  # exporter's name → the name of its Python package
_HOW = "pip install 'berth[traces]'"


def exporter_named(environment: Mapping[str, str]) -> str:
    """Return the OpenTelemetry trace exporter that the environment names; empty: tracing is disabled."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    named = environment.get("OTEL_TRACES_EXPORTER", "")
    if not named and any(environment.get(name) for name in _ENDPOINTS):
        named = "otlp"
    return "" if named == "none" else named


def begin(environment: Mapping[str, str] = os.environ) -> None:
    """Start tracing if an exporter is configured; without one, OpenTelemetry is not imported."""
    if not (name := exporter_named(environment)):
        return
    from importlib.metadata import entry_points

    try:
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        resources = importlib.import_module("opentelemetry.sdk.resources")
    except ImportError:
        raise BadSetting(f"OTEL_TRACES_EXPORTER={name}: OpenTelemetry is not here: {_HOW}") from None
    known = {point.name: point for point in entry_points(group="opentelemetry_traces_exporter")}
    found = known.get(_CALLED.get(name, name))
    if found is None:
        available = ", ".join(sorted(known)) or "none"
        raise BadSetting(f"OTEL_TRACES_EXPORTER={name}: no such exporter ({_HOW}); there are: {available}")
    service = {"service.name": environment.get("OTEL_SERVICE_NAME", "berth")}
    provider = sdk.TracerProvider(resource=resources.Resource.create(service))
    provider.add_span_processor(export.BatchSpanProcessor(found.load()()))
    trace_by(SpansOf(provider))


class SpansOf:
    """Creates the spans of berth's traces with an OpenTelemetry tracer provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._api: Any = importlib.import_module("opentelemetry.trace")
        self._nothing = importlib.import_module("opentelemetry.context").Context()  # a span without parent
        self._tracer = provider.get_tracer("berth")

    def handling(self, worker: str, row: str, envelope: Envelope) -> Span | None:
        parent = self._parent(envelope.traceparent)
        if parent is None or not parent.trace_flags.sampled:
            return None
        span = self._tracer.start_span(
            f"{row} {worker}",
            context=self._under(parent),
            kind=self._api.SpanKind.CONSUMER,
            attributes={
                "berth.worker": worker,
                "berth.message": envelope.type,
                "messaging.system": "rabbitmq",
                "messaging.destination.name": envelope.key,
                "messaging.message.id": envelope.id,
                "messaging.message.conversation_id": envelope.correlation or envelope.id,
                "berth.attempt": envelope.attempt,
            },
        )
        envelope.traceparent = _traceparent(span)
        return _Open(span, self._api)

    def asking(self, query: str, causes: Sequence[Envelope]) -> tuple[Span, str] | None:
        parents = [parent for cause in causes if (parent := self._parent(cause.traceparent)) is not None]
        sampled = [parent for parent in parents if parent.trace_flags.sampled]
        if not sampled:
            return None
        span = self._tracer.start_span(
            f"ask {query}",
            context=self._under(sampled[0]),
            kind=self._api.SpanKind.CLIENT,
            links=[self._api.Link(parent) for parent in sampled[1:]],
        )
        return _Open(span, self._api), _traceparent(span)

    def beginning(self, type_: str) -> str:
        kind = self._api.SpanKind.PRODUCER
        span = self._tracer.start_span(f"say {type_}", context=self._nothing, kind=kind)
        span.end()
        return _traceparent(span)

    def _parent(self, traceparent: str) -> Any:
        """Return the parent span in a traceparent header, perhaps of another process; None if the header is
        invalid.
        """
        try:
            trace, span, flags = (int(part, 16) for part in traceparent.split("-")[1:4])
        except ValueError:
            return None
        known = trace and span
        return self._api.SpanContext(trace, span, True, self._api.TraceFlags(flags)) if known else None

    def _under(self, parent: Any) -> Any:
        return self._api.set_span_in_context(self._api.NonRecordingSpan(parent), self._nothing)


class _Open:
    def __init__(self, span: Any, api: Any) -> None:
        self._span, self._api = span, api

    def end(self, problem: BaseException | None = None) -> None:
        if problem is not None:
            why = f"{type(problem).__name__}: {problem}"
            self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, why[:500]))
        self._span.end()


def _traceparent(span: Any) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
