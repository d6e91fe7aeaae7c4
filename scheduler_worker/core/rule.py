"""Filters and weighers as values: settings, wake-ups of waiting requests and reasons are derived from
them.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bus.aggregates import Aggregate
from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.facts import HostFacts

Bools = npt.NDArray[np.bool_]
Number = Any  # a float of one host, or an array of floats for all that fit: they reckon alike

Refuses = Callable[[HostFacts, Alternative], str | None]
UNKNOWN = float("nan")  # not reported


class View(Protocol):
    """The data that weighers read: floats for one host, or arrays for all fitting hosts.

    The same weigher serves both, so it computes with operators and with the functions of this class, such as
    `where`.
    """

    def free(self, resource_class: str) -> Number:
        """Return the free amount of the class; a plain 0 if no host has the class."""
        ...

    def capacity(self, resource_class: str) -> Number:
        """Return the total amount of the class; a plain 0 if no host has the class."""
        ...

    def has(self, trait: str) -> Number:
        """Return 1 for hosts with the trait, else 0; a plain 0 if no host has it."""
        ...

    def fact(self, name: str, otherwise: float = UNKNOWN) -> Number:
        """Return an attribute of HostState (load, instances, hypervisor_version, enabled, forced_down), or
        the default if it was not reported.

        Further names are known to the scheduler: up, building, sent (builds that the report may not include
        yet), failures. The result is one plain number if all hosts have the same value.
        """
        ...

    def metric(self, name: str) -> Number:
        """Return the reported metric of this name, or UNKNOWN."""
        ...

    def members(self, alternative: Alternative) -> Number:
        """Return the number of members of the request's server group on each host."""
        ...

    def among(self, roots: Collection[str]) -> Number:
        """Return 1 for hosts with one of the roots, else 0."""
        ...

    def within(self, says: Callable[[Aggregate], bool]) -> Number:
        """Return 1 for hosts in an aggregate that satisfies the condition, else 0; a plain 0 if no aggregate
        does.
        """
        ...

    def cached(self, image: str) -> Number:
        """Return 1 for each host that has this image, otherwise 0."""
        ...

    def said(self, value: Number) -> Number:
        """Return where the value is known."""
        ...

    def each(self, value: Callable[[HostFacts], float]) -> Number:
        """Evaluate a function for each host, for data without an array; this costs about a microsecond per
        host.
        """
        ...

    def where(self, condition: Number, then: Number, otherwise: Number) -> Number: ...

    def override(self, key: str, otherwise: float) -> Number:
        """Return the lowest number that a host's aggregates have under this key, or the default."""
        ...


@dataclass(frozen=True)
class Rule:
    """A filter: it refuses a host with a sentence, or lets it pass."""

    name: str
    refuses: Refuses
    code: str = ""  # what programs know the refusal by; empty: its name
    reads: tuple[
        str, ...
    ] = ()  # of the alternative or its request: flavor.name, image, hints.query, group; * for all
    passes: bool = False  # does its refusal pass by itself in seconds?
    # The same for all hosts together: a mask of the accepted hosts. Use it for filters that reject many
    # hosts.
    admits: Callable[[View, Alternative], Bools] | None = None
    # Whether the filter applies to a request; if not, no host is evaluated. None: always.
    concerns: Callable[[Alternative], bool] | None = None


@dataclass(frozen=True)
class Weigher:
    """A function from hosts to numbers, where more is better; a negative multiplier reverses that.

    A score is the sum over weighers of multiplier × (value − lowest) / (highest − lowest), over all fitting
    hosts. The difference is at least `least_span`: then small differences count little. If an aggregate has
    `key`, it is the multiplier of its hosts.
    """

    name: str
    value: Callable[
        [View, Alternative], Number
    ]  # one plain number, whatever the view: all hosts are alike to it
    multiplier: float = 1.0
    lowest: float | None = None  # the begin of the scale, also for lower values; None: the lowest value
    least_span: float = 0.0
    key: str = ""  # in aggregates' metadata; empty: NAME_weight_multiplier
    reads: tuple[str, ...] = ()  # as a rule does

    @cached_property
    def spoken_of_as(self) -> str:
        """Return the metadata key with the multiplier of an aggregate's hosts."""
        return self.key or f"{self.name}_weight_multiplier"
