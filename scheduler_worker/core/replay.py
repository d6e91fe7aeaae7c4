"""A recorded decision made again, from its record alone, by the scheduler's own sums."""

from dataclasses import dataclass

from bus.decisions import Record, RecordedHost
from scheduler_worker.core.scale import score_of_host
from scheduler_worker.core.tie_break import drawn, tie

Place = tuple[int, float, int, int]  # least first: tier, −worth, how often chosen, tie


@dataclass(frozen=True, slots=True)
class Replayed:
    """The host that the record yields, and the order of the hosts."""

    host: RecordedHost | None  # None: the record has no permitted host
    order: tuple[RecordedHost, ...] = ()  # hosts that no filter rejects, best first, before a random draw


def replay(build: str, record: Record) -> Replayed:
    """Return the host that this build gets according to the recorded data of each host."""
    order = sorted((host for host in record.hosts if not host.refused), key=lambda host: place(host, record))
    best = list(order)
    if best:
        best.insert(0, best.pop(drawn(record.seed, build, min(record.subset, len(best)))))
    left = (host for host in best if host.root not in record.turned_down)
    return Replayed(next(left, None), tuple(order))


def place(host: RecordedHost, record: Record) -> Place:
    """Return the position of a host in the order, as core/ranking.py computes it."""
    multipliers = [host.multipliers.get(scale.weigher, scale.multiplier) for scale in record.scales]
    worth = score_of_host(record.scales, host.values, multipliers, record.near)
    return host.outside + host.unknown, -worth, host.chosen, tie(record.seed, host.root)
