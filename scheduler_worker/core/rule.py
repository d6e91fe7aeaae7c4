"""What a rule is, and a weigher: values, from which the settings, the waiting and the reasons are derived."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bus.aggregates import Aggregate
from scheduler_worker.core.facts import HostFacts
from scheduler_worker.core.wish import Wish

Bools = npt.NDArray[np.bool_]
Number = Any  # a float of one host, or an array of floats for all that fit: they reckon alike

Refuses = Callable[[HostFacts, Wish], str | None]
UNKNOWN = float("nan")  # what nobody said


class View(Protocol):
    """What weighers read: of one host (then these are floats) or of all that fit at once (then arrays).

    The same weigher serves both, so it reckons with operators and with `where` and the like of here.
    """

    def free(self, resource_class: str) -> Number:
        """One plain 0 where there is none of it anywhere."""
        ...

    def capacity(self, resource_class: str) -> Number:
        """The same."""
        ...

    def has(self, trait: str) -> Number:
        """1 or 0; one plain 0 if nobody has it."""
        ...

    def fact(self, name: str, otherwise: float = UNKNOWN) -> Number:
        """Of HostState: load, instances, hypervisor_version, enabled, forced_down; where not said, the other.

        And what is known of it here: up, building, sent (the builds of these that it may not count yet),
        failures. One plain number if all hosts say the same.
        """
        ...

    def metric(self, name: str) -> Number:
        """What hosts report under this name; UNKNOWN where they do not."""
        ...

    def members(self, wish: Wish) -> Number:
        """How many of the request's server group are there."""
        ...

    def among(self, roots: Collection[str]) -> Number:
        """1 for a host with one of these roots, or 0."""
        ...

    def within(self, says: Callable[[Aggregate], bool]) -> Number:
        """1 for a host with an aggregate of which this is true, or 0; one plain 0 if it is true of none."""
        ...

    def cached(self, image: str) -> Number:
        """1 for a host that has this image, or 0."""
        ...

    def said(self, value: Number) -> Number:
        """True where it is not UNKNOWN."""
        ...

    def each(self, value: Callable[[HostFacts], float]) -> Number:
        """For what has no array: worked out host by host, which costs about a microsecond each."""
        ...

    def where(self, condition: Number, then: Number, otherwise: Number) -> Number: ...

    def override(self, key: str, otherwise: float) -> Number:
        """The least number that a host's aggregates give under this key; where they give none, the other."""
        ...


@dataclass(frozen=True)
class Rule:
    """A filter: it refuses a host with a sentence, or lets it pass."""

    name: str
    refuses: Refuses
    code: str = ""  # what programs know the refusal by; empty: its name
    reads: tuple[
        str, ...
    ] = ()  # of the wish or its request: flavor.name, image, hints.query, group; * for all
    passes: bool = False  # does its refusal pass by itself in seconds?
    # The same for all hosts at once: those it lets pass. For what refuses many hosts on most requests.
    admits: Callable[[View, Wish], Bools] | None = None
    # Has it a say on this wish at all? Where it has not, no host is asked. None: always.
    concerns: Callable[[Wish], bool] | None = None


@dataclass(frozen=True)
class Weigher:
    """More is better; a negative multiplier turns it round.

    A score is the sum over weighers of multiplier × (value − lowest) / (highest − lowest), these being of all
    that fit, and at least `least_span` apart: then small differences count little. Where an aggregate says
    `key`, that is the multiplier of its hosts.
    """

    name: str
    value: Callable[[View, Wish], Number]  # one plain number, whatever the view: all hosts are alike to it
    multiplier: float = 1.0
    lowest: float | None = None  # where its scale begins, what is below counts as that; None: at the least
    least_span: float = 0.0
    key: str = ""  # in aggregates' metadata; empty: NAME_weight_multiplier
    reads: tuple[str, ...] = ()  # as a rule does

    @cached_property
    def spoken_of_as(self) -> str:
        """Under which aggregates say its multiplier."""
        return self.key or f"{self.name}_weight_multiplier"
