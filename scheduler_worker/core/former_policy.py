"""What an operator decides about choosing: which filters, which weighers, and the cells that take builds."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from bus.messages import BuildRequested
from scheduler_worker.core.filters import FILTERS, MAX_BUILDS, PASSING, Filter, at_most_building
from scheduler_worker.core.host import Host
from scheduler_worker.core.request import shape_of
from scheduler_worker.core.weighers import WEIGHERS, Weight


@dataclass(frozen=True)
class FormerPolicy:
    """What admits a host and what makes one better than another."""

    filters: tuple[Filter, ...] = FILTERS
    weighers: tuple[Weight, ...] = WEIGHERS
    shape: Callable[[BuildRequested], Hashable] = shape_of  # requests alike in this share an evaluation
    passing: frozenset[str] = PASSING  # filters whose refusal passes by itself
    cells: frozenset[str] | None = None  # those with a conductor to hand builds to; None: whichever is named

    @classmethod
    def from_names(
        cls,
        filters: Iterable[str] | None = None,
        weighers: Iterable[str] | Mapping[str, float] | None = None,
        *,
        max_builds: int = MAX_BUILDS,
        cells: Collection[str] | None = None,
    ) -> "FormerPolicy":
        """As an operator writes it: names in order, a mapping when weighers get multipliers, None for all."""
        known = {named(filter_): filter_ for filter_ in (*FILTERS, at_most_building(max_builds))}
        weights = {named(weight.weigher): weight for weight in WEIGHERS}
        chosen = known if filters is None else filters
        weighed = weights if weighers is None else weighers
        for kind, names, all_ in (("filter", chosen, known), ("weigher", weighed, weights)):
            for name in names:
                if name not in all_:
                    raise ValueError(f"unknown {kind} {name!r}; known {kind}s: {', '.join(all_)}")
        if isinstance(weighers, Mapping):
            weights |= {name: replace(weights[name], multiplier=by) for name, by in weighers.items()}
        return cls(
            tuple(known[name] for name in chosen),
            tuple(weights[name] for name in weighed),
            cells=None if cells is None else frozenset(cells),
        )

    def refusal(self, host: Host, request: BuildRequested) -> str | None:
        return next((why for admits in self.filters if (why := admits(host, request)) is not None), None)

    def nobody_builds(self, host: Host) -> str:
        """Why a build for it would reach nobody; empty when it would. No list of filters leaves this out."""
        candidate = host.candidate
        if not candidate.agent or not candidate.cell:
            return "no agent builds on it"
        if self.cells is not None and candidate.cell not in self.cells:
            return f"its cell {candidate.cell!r} is none of ours: {', '.join(sorted(self.cells))}"
        return ""


def named(function: Callable[..., object]) -> str:
    """The name an operator knows a filter or weigher by."""
    return str(getattr(function, "__name__", repr(function)))
