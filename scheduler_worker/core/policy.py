"""An operator's choice of filters and weighers, and how the best host is selected."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

import msgspec

from bus.messages import BuildRequested
from scheduler_worker.core.alternative import Alternative, as_anybodys
from scheduler_worker.core.choosable import (
    EVERYTHING,
    Options,
    Own,
    check_options,
    rules_named,
    weighers_named,
)
from scheduler_worker.core.rule import Rule, Weigher
from scheduler_worker.core.rules import DEFAULT_RULES, RULES
from scheduler_worker.core.rules.neighbours import GROUP

_HEEDED_BY = {
    "same_host": "same_host",
    "different_host": "different_host",
    "build_near_host_ip": "simple_cidr_affinity",
    "query": "json",
}
_OF_ROOM = ("ram", "cpu", "disk")  # weighers of how much is free
_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True)
class ChoicePolicy:
    """The enabled filters and weighers with their options."""

    rules: tuple[Rule, ...] = field(default_factory=lambda: rules_named(None, {}, {}))
    weighers: tuple[Weigher, ...] = field(default_factory=lambda: weighers_named(None, {}, {}))
    # cells with a conductor in the settings; registered ones are added; None: any
    cells: frozenset[str] | None = None
    subset: int = 1  # among how many of the best one is drawn
    near: float = 0.0  # scores within this are alike, and then chance decides
    halved_after: float = 300.0  # seconds until a host's failed build counts half

    @classmethod
    def from_names(
        cls,
        filters: Iterable[str] | None = None,
        weighers: Iterable[str] | Mapping[str, float] | None = None,
        *,
        options: Options | None = None,
        own: Own | None = None,
        max_builds: int | None = None,
        cells: Collection[str] | None = None,
        subset: int = 1,
        near: float = 0.0,
        halved_after: float = 300.0,
    ) -> "ChoicePolicy":
        """Return the policy for names of filters and weighers, or the defaults for None.

        Weighers are names in order, or a mapping from names to multipliers. `options` are the options of
        each filter and weigher by its name.
        """
        given: dict[str, Mapping[str, Any]] = dict(options or {})
        if max_builds is not None:
            given["io_ops"] = {"max_io_ops_per_host": max_builds, **given.get("io_ops", {})}
        own = own or {}
        if filters is None:  # an operator who sets options of a filter wants it enabled
            filters = (*DEFAULT_RULES, *(name for name in given if name in RULES and name != "metrics"))
        check_options(given, own)
        rules = rules_named(filters, given, own)
        weighed = weighers_named(weighers, given, own)
        counted = given.get("metrics", {})
        if counted.get("weight_setting") and counted.get("required", True):
            rules = tuple(
                {one.name: one for one in (*rules, *rules_named(("metrics",), given, own))}.values()
            )
        ours = None if cells is None else frozenset(cells)
        return cls(rules, weighed, ours, subset, near, halved_after)

    def reads(self, name: str) -> bool:
        """Return whether a filter or weigher reads this field of a request."""
        return any(read == EVERYTHING or read.partition(".")[0] == name for read in self._read)

    @cached_property
    def packs(self) -> bool:
        """Return whether fuller hosts weigh more, so that all requests want the same hosts."""
        return any(weigher.name in _OF_ROOM and weigher.multiplier < 0 for weigher in self.weighers)

    def unheeded(self, request: BuildRequested) -> tuple[str, ...]:
        """Return a sentence for each hint that no enabled filter reads."""
        on = {rule.name for rule in self.rules}
        return tuple(
            [
                f"hints.{hint}: nothing here goes by it: the filter {name} is off"
                for hint, name in _HEEDED_BY.items()
                if getattr(request.hints, hint) and name not in on
            ]
        )

    def kind(self, alternative: Alternative) -> Hashable:
        """Return the equivalence class of the alternative: alternatives of one class share evaluations,
        because everything that is read of them is equal.
        """
        said = tuple([read(alternative) for read in self._reads])
        question = msgspec.structs.replace(alternative.question, seed="")
        forced = bool(alternative.request.forced_host)
        return (
            alternative.alternative_index,
            alternative.notes,
            forced,
            alternative.same,
            alternative.different,
            alternative.own,
            _encode((question, said)),
        )

    @cached_property
    def _reads(self) -> tuple[Callable[[Alternative], Any], ...]:
        return tuple([_reader(name) for name in sorted(self._read)])

    @cached_property
    def _read(self) -> set[str]:
        read = {name for rule in self.rules for name in rule.reads}
        return read | {name for weigher in self.weighers for name in weigher.reads}


def _reader(name: str) -> Callable[[Alternative], Any]:
    """Return a function that reads a named part of a `Wish`: one of its fields, a field of the request, or
    the group.
    """
    if name == EVERYTHING:
        return lambda alternative: (as_anybodys(alternative.request), alternative.group, alternative.members)
    if name == GROUP:
        return lambda alternative: (alternative.group, alternative.members)
    path = attrgetter(name)
    if name.partition(".")[0] in Alternative.__dataclass_fields__:
        return path
    return lambda alternative: path(alternative.request)
