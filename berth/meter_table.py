"""Every metric there is, with its labels: for people, for pages, as JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

from prometheus_client.metrics import MetricWrapperBase

# The worker that serves each module's metrics. An embedded `berth up` serves all of them.
MODULES: Mapping[str, str] = {
    "berth.meters": "every process",
    "bus.delivery.settling": "every worker",
    "bus.rabbit.reconnecting": "every worker, on RabbitMQ",
    "bus.sql.failures": "placement, scheduler, conductor",
    "bus.sql.database": "placement, scheduler, conductor",
    "placement_worker.change_log": "placement",
    "placement_worker.worker": "placement",
    "placement_worker.http.app": "placement, where it serves HTTP",
    "scheduler_worker.roster": "scheduler",
    "cell_conductor.applying": "conductor",
    "bus.ferry.passage": "ferry",
    "ironic_sync.notifications": "ironic",
}
_ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@dataclass(frozen=True)
class Meter:
    name: str  # as Prometheus has it; of a histogram without its _bucket, _sum and _count
    kind: str
    labels: tuple[str, ...]
    says: str
    by: str


def meters() -> list[Meter]:
    return [
        Meter(_name(base), str(base._type), tuple(base._labelnames), base._documentation, by)
        for module, by in MODULES.items()
        for base in _of(module)
    ]


def series() -> dict[str, frozenset[str]]:
    """Return the names of all Prometheus series with their labels."""
    found: dict[str, frozenset[str]] = {}
    for module in MODULES:
        for base in _of(module):
            for ending in _ENDINGS[str(base._type)]:
                labels = {*base._labelnames, "le"} if ending == "_bucket" else set(base._labelnames)
                found[base._name + ending] = frozenset(labels)
    return found


def markdown() -> str:
    lines = ["| metric | type | labels | meaning | served by |", "|---|---|---|---|---|"]
    lines += [
        f"| `{meter.name}` | {meter.kind} | {', '.join(meter.labels)} | {meter.says} | {meter.by} |"
        for meter in meters()
    ]
    return "\n".join(lines) + "\n"


def _of(module: str) -> Iterator[MetricWrapperBase]:
    """Yield the metrics of a module, in the order of its source."""
    for one in vars(import_module(module)).values():
        if isinstance(one, MetricWrapperBase):  # its names are nowhere public before something was counted
            yield one


def _name(base: MetricWrapperBase) -> str:
    return str(base._name) + ("_total" if base._type == "counter" else "")
