"""Writes log lines as text or JSON, each with the ids in the message that the worker handles at that time.

The ids are of requests, builds and moves: `grep ID` in the logs of all workers finds all lines about one.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from berth.settings import BadSetting, Settings, clouds_of_features, settings_by_name
from bus.context import Span, envelopes_handled, trace_by
from bus.masking import masked_text, secrets_in
from bus.protocol import Envelope

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


_LIBRARIES = (
    "httpx", "httpcore", "aio_pika", "aiormq", "asyncio", "sqlalchemy", "aiosqlite", "alembic", "uvicorn",
)  # fmt: skip
_MOST = 20  # ids of each type in a line, if many messages are handled together
_SHORTEST = 4  # shorter passwords are not masked: they occur in ordinary words
_WORD = r"(?:(?<![^\W\d_])|(?<=\\[abfnrtv])){}(?![^\W\d_])"
_RECENT_LENGTH = 20_000  # characters of a recent line
RECENT: deque[str] = deque(maxlen=200)  # the last warnings and errors of this process, as logged
_PUBLIC = {"guest"}  # RabbitMQ's default password, which is no secret, and a usual word of log lines
_KINDS = ("request", "build", "move")


class _Body(msgspec.Struct):
    """The fields of a message that contain ids of requests, builds or moves."""

    request: Any = None
    build: Any = None
    move: Any = None
    instances: Any = ()
    consumer: Any = None
    claims: Any = ()


_body = msgspec.json.Decoder(_Body)


def begin(settings: Settings, process: str = "") -> None:
    """Configure logging to standard error, with the format and level in the settings. `process`: the name of
    this process, for each log line.
    """
    handler = logging.StreamHandler(sys.stderr)
    formats = JsonLines if settings.process.log_format == "json" else TextLines
    formatter = formats(process, secrets_of(settings))
    recent = _RecentLines(logging.WARNING)
    for each in (handler, recent):
        each.setFormatter(formatter)
    logging.basicConfig(level=settings.process.log_level.upper(), handlers=[handler, recent])
    for name in _LIBRARIES:  # libraries that log every request and frame
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.root.level))


class _RecentLines(logging.Handler):
    """Keeps the last warnings and errors in memory, for support bundles."""

    def emit(self, record: logging.LogRecord) -> None:
        RECENT.append(self.format(record)[:_RECENT_LENGTH])


def set_process_name(process: str) -> None:
    """Set the name of this process, which each log line contains."""
    for handler in logging.root.handlers:
        if isinstance(handler.formatter, _Lines):
            handler.formatter.process = process


def secrets_of(settings: Settings) -> tuple[str, ...]:
    """Return the texts in the settings, such as passwords, that must not be logged, the longest first."""
    found: set[str] = set()
    of_features = (cloud for _, cloud in clouds_of_features(settings))
    clouds = settings.ironic.connection.api, *of_features
    for cloud in (cloud for cloud in clouds if cloud and ":" not in cloud):
        from ironic_sync.openstack import secrets_of_cloud  # imports an HTTP client, which loads slowly

        found |= secrets_of_cloud(cloud)
    for value in settings_by_name(settings).values():
        for secret in secrets_in(value):
            found |= {secret, unquote(secret)}
    found -= _PUBLIC
    return tuple(sorted((text for text in found if len(text) >= _SHORTEST), key=len, reverse=True))


def ids_of(envelopes: Iterable[Envelope]) -> dict[str, list[str]]:
    """Return the ids of requests, builds and moves that the messages contain, as lists by the keys `request`,
    `build` and `move`.
    """
    found: dict[str, dict[str, None]] = {kind: {} for kind in _KINDS}
    for envelope in envelopes:
        try:
            body = _body.decode(envelope.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        instances = body.instances if isinstance(body.instances, list) else []
        claims = body.claims if isinstance(body.claims, list) else []
        consumers = [claim.get("consumer") for claim in claims if isinstance(claim, dict)]
        ids: list[tuple[str, Any]] = [(kind, getattr(body, kind)) for kind in _KINDS]
        ids += [("build", id_) for id_ in (body.consumer, *instances, *consumers)]
        for kind, id_ in ids:
            if isinstance(id_, str) and id_:
                found[kind][id_] = None
    return {kind: [*ids_][:_MOST] for kind, ids_ in found.items() if ids_}


def without_secrets(text: str, secrets: Sequence[str]) -> str:
    """Return a text in which asterisks replace passwords in URLs, and the secrets of the settings."""
    if secrets:
        text = _pattern(tuple(secrets)).sub("****", text)
    return masked_text(text)


@cache
def _pattern(secrets: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of the secrets. A secret that may be a part of ordinary words, because it has only
    letters, is found as a whole word, also after an escape such as `\\n`.
    """
    return re.compile("|".join(_WORD.format(each) if each.isalpha() else re.escape(each) for each in secrets))


class _Lines(logging.Formatter):
    def __init__(self, process: str = "", secrets: Sequence[str] = ()) -> None:
        super().__init__()
        self.process = process
        self._secrets = secrets

    def masked(self, text: str) -> str:
        return without_secrets(text, self._secrets)

    def envelopes(self, record: logging.LogRecord) -> Sequence[Envelope]:
        found = getattr(record, "envelopes", None)
        return found if found is not None else envelopes_handled()

    def trace(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class TextLines(_Lines):
    """Formats log lines as text for people; a traceback has several lines."""

    def format(self, record: logging.LogRecord) -> str:
        ids = ids_of(self.envelopes(record))
        about = "".join(f" {kind}={','.join(known)}" for kind, known in ids.items())
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        line = f"{at},{record.msecs:03.0f} {record.levelname} {record.name}: {record.getMessage()}"
        line += f" [{about[1:]}]" if about else ""
        trace = self.trace(record)
        return self.masked(f"{line}\n{trace}" if trace else line)


class JsonLines(_Lines):
    """Formats each log record as one line of JSON for programs, a traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        envelopes = self.envelopes(record)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self.process,
            "pid": record.process,
            "logger": record.name,
            "text": self.masked(record.getMessage()),
        }
        for kind, known in ids_of(envelopes).items():
            line[kind] = known[0] if len(known) == 1 else known
        if len(envelopes) == 1:
            [envelope] = envelopes
            line |= {
                "message": envelope.id,
                "type": envelope.type,
                "correlation": envelope.correlation or envelope.id,
            }
            line |= {"trace": envelope.traceparent[3:35]} if envelope.traceparent else {}
        if trace := self.trace(record):
            line["traceback"] = self.masked(trace)
        return msgspec.json.encode(line).decode()


# Traces messages with OpenTelemetry, which is imported only if an environment variable names an exporter.


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


def begin_traces(environment: Mapping[str, str] = os.environ) -> None:
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
        """Return the span of a handled message; None if the sender's trace is not sampled."""
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
        """Return the span of a query and the context for its receiver; None if no causing trace
        is sampled.
        """
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
        """Begin a trace for a message that no other message caused; return its context."""
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
