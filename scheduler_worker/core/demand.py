"""Remembers which shapes of requests are usual: decayed counts of what instances ask for.

A shape is what an instance needs of one host, without names and without conditions on the host. Weighers read
it to value what remains free on hosts, because the next requests will be like the last ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import inf

import msgspec

from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.vocabulary import Value

HALF_LIFE = 7 * 86_400.0  # seconds after which a request counts half
BEGIN = 1_767_225_600.0  # 2026-01-01, from which on weights grow
MOST_SHAPES = 256  # the least frequent shape is forgotten first
MOST_USUAL = 32  # the most frequent ones that weighers see; with more, they decide no better
MOST_PARTS = 8  # groups, and traits, of a shape; larger ones are not counted
MOST_CLASSES = 16  # that a shape may ask for
DRIFT = 0.1  # part of the demand that must have changed until weighers see the change


class ShapeGroup(Value, frozen=True, kw_only=True):
    """Several equal request groups of a shape; each is for one provider, unless `is_split`."""

    resources: tuple[tuple[str, int], ...]  # class and amount, sorted
    count: int = 1
    required: tuple[str, ...] = ()
    required_any: tuple[tuple[str, ...], ...] = ()
    forbidden: tuple[str, ...] = ()
    is_split: bool = False  # the group without a suffix: several providers of a host may supply it

    @property
    def traits(self) -> tuple[str, ...]:
        """Return all traits that the group names."""
        return (*self.required, *chain.from_iterable(self.required_any), *self.forbidden)


class Shape(Value, frozen=True, kw_only=True):
    """The amounts that an instance asks of one host. With `apart`, groups need different providers."""

    groups: tuple[ShapeGroup, ...]
    apart: bool = False

    @property
    def amounts(self) -> Mapping[str, int]:
        """Return the total amount of each resource class."""
        found: dict[str, int] = {}
        for group in self.groups:
            for name, amount in group.resources:
                found[name] = found.get(name, 0) + group.count * amount
        return found

    @property
    def traits(self) -> Iterable[str]:
        """Return all traits that its groups name."""
        return chain.from_iterable(group.traits for group in self.groups)


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Shape).decode


def encoded(shape: Shape) -> str:
    """Return a shape as the database stores it."""
    return _encode(shape).decode()


def shape_of(question: FindCandidates) -> Shape:
    """Return the shape of the instances for which a query finds candidates."""
    counts: dict[bytes, tuple[ResourceGroup, int]] = {}
    for group in question.groups:
        if not any(group.resources.values()):
            continue
        traits = sorted(group.required), sorted(map(sorted, group.required_any)), sorted(group.forbidden)
        key = _encode((bool(group.suffix), dict(group.resources), traits))
        first, count = counts.get(key, (group, 0))
        counts[key] = first, count + 1
    groups = [
        ShapeGroup(
            resources=tuple([(name, amount) for name, amount in sorted(group.resources.items()) if amount]),
            count=count,
            required=tuple(sorted(group.required)),
            required_any=tuple(sorted(tuple(sorted(some)) for some in group.required_any)),
            forbidden=tuple(sorted(group.forbidden)),
            is_split=not group.suffix,
        )
        for _, (group, count) in sorted(counts.items())
    ]
    several = sum(group.count for group in groups if not group.is_split) > 1
    return Shape(groups=tuple(groups), apart=several and question.group_policy == "isolate")


@dataclass(frozen=True)
class UsualShapes:
    """The usual shapes as weighers see them: each with its part of all requests. It changes rarely."""

    shapes: tuple[Shape, ...] = ()
    parts: tuple[float, ...] = ()  # of the requests with these shapes; their sum is 1
    version: int = 0

    @cached_property
    def classes(self) -> frozenset[str]:
        return frozenset(name for shape in self.shapes for name in shape.amounts)

    @cached_property
    def traits(self) -> frozenset[str]:
        return frozenset(trait for shape in self.shapes for trait in shape.traits)


UNKNOWN_DEMAND = UsualShapes()


def weight_at(now: float) -> float:
    """Return the weight of a request at a time, in seconds since 1970. It doubles with each HALF_LIFE, so
    later requests count more, and stored weights can be added up unchanged. It is finite until 2045.
    """
    return float(2.0 ** min(max((now - BEGIN) / HALF_LIFE, -1000.0), 1000.0))


class DemandCounts:
    """Counts the shapes of requests, by weights of `weight_at`."""

    def __init__(self) -> None:
        self._new: dict[str, float] = {}  # encoded shape → weight that is not in the database yet
        self._counts: dict[str, float] = {}  # encoded shape → weight
        self._seen = UsualShapes()
        self._parts_seen: Mapping[str, float] = {}
        self._unseen = 0.0  # part of the weight that was counted since `_seen` was computed or compared

    def count(self, shapes: Iterable[tuple[Shape, int]], now: float) -> None:
        """Count requested instances by their shapes."""
        weight = weight_at(now)
        for shape, several in shapes:
            traits = set(shape.traits)
            if max(len(shape.groups), len(traits)) > MOST_PARTS or len(shape.amounts) > MOST_CLASSES:
                continue
            key = encoded(shape)
            self._new[key] = self._new.get(key, 0.0) + several * weight
            self._counts[key] = self._counts.get(key, 0.0) + several * weight
            self._unseen += several * weight
        self._forget_rare()

    def taken(self) -> dict[str, float]:
        """Return what was counted since the last call, by encoded shapes."""
        new, self._new = self._new, {}
        return new

    def put_back(self, counted: Mapping[str, float]) -> None:
        """Count again what could not be stored."""
        for key, weight in counted.items():
            self._new[key] = self._new.get(key, 0.0) + weight

    def replace(self, stored: Mapping[str, float]) -> None:
        """Take over the counts of all schedulers, and add those that are not stored yet."""
        self._counts = dict(stored)
        for key, weight in self._new.items():
            self._counts[key] = self._counts.get(key, 0.0) + weight
        self._unseen = inf
        self._forget_rare()

    def _forget_rare(self) -> None:
        counts = self._counts
        if len(counts) > 2 * MOST_SHAPES:  # so that a new shape has time to become frequent
            for key in sorted(counts, key=lambda key: (counts[key], key))[: len(counts) - MOST_SHAPES]:
                del counts[key]
                self._new.pop(key, None)

    def usual(self) -> UsualShapes:
        """Return the usual shapes. They change once a tenth of the demand has changed."""
        if self._unseen:
            total = sum(self._counts.values())
            if self._unseen >= DRIFT * total:
                self._unseen = 0.0
                parts = {key: weight / total for key, weight in self._counts.items()}
                known = self._parts_seen
                change = sum(abs(parts.get(key, 0.0) - known.get(key, 0.0)) for key in {*parts, *known}) / 2
                if change >= DRIFT:
                    ordered = sorted(parts, key=lambda key: (-parts[key], key))[:MOST_USUAL]
                    shapes = tuple([_decode(key) for key in ordered])
                    of_these = sum(parts[key] for key in ordered)
                    shares = tuple([parts[key] / of_these for key in ordered])
                    self._seen = UsualShapes(shapes, shares, self._seen.version + 1)
                    self._parts_seen = parts
        return self._seen
