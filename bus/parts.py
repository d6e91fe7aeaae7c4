"""Parts: what features add to messages of the kernel.

A message that features may extend has a field `parts`. On the wire the field is an object with a value for
each feature, such as `{"groups": {"group": "..."}}`. Clients may write the fields of a request's parts like
fields of the kernel instead, such as `"wait": "30m"` (`bus.invalid_requests`).

Each feature adds its types of parts to TYPES, before the process makes a bus. A value of a feature that is
not in the list is refused in messages; stored messages keep it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, get_type_hints

import msgspec
from msgspec import structs

from bus.requests import Flavor
from bus.vocabulary import Id, ShortList, Text, Value

P = TypeVar("P")
K = TypeVar("K", bound="Part", covariant=True)
Q = TypeVar("Q", bound="Part")
T = TypeVar("T")


class WaitTimes(NamedTuple):
    """For how long a request waits for a host."""

    longest: str = ""  # such as `30m`; empty: not at all
    since: float = 0.0  # when it began to wait; 0: it did not, or the request does not state it


_NO_WAIT = WaitTimes()


@dataclass(frozen=True, slots=True)
class Section:
    """Some instances of a request, which have a flavor of their own."""

    name: str
    flavor: Flavor
    count: int
    where: str  # the field of the request that has the flavor, for error messages


class Part(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The base class of parts of messages. A part whose fields all have their defaults is left out.

    The parts of each kind of message have a base class of their own, which says what the kernel asks of them.
    """

    # Fields that clients may write like fields of the kernel: field → the object of the request that has it,
    # such as `hints`; empty: the request itself.
    flat: ClassVar[Mapping[str, str]] = {}
    # Whether members of projects may not read this part: it names instances of other projects.
    names_others: ClassVar[bool] = False


class RequestPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a request, for builds or for a move."""

    # Whether requests that differ only in this part fit on different hosts.
    limits_hosts: ClassVar[bool] = True
    # Whether a request with this part uses only capacity that is held for it.
    uses_held_capacity: ClassVar[bool] = False

    def contradiction(self, request: Any, options: Any = None) -> str:
        """When a request is read: return why this part makes it invalid, after the name of the field; empty:
        it does not. `options`: those of the scheduler for requests, if it has the request.
        """
        return ""

    def recorded(self) -> Part | None:
        """When a decision is recorded: return what the record keeps of this part, for later moves of the
        instance; None: nothing.
        """
        return None

    def placed(self) -> "PlacedPart | None":
        """When an instance is placed: return what its message says about this part; None: nothing."""
        return None

    @property
    def waits(self) -> WaitTimes:
        """Return for how long the request waits for a host."""
        return _NO_WAIT

    @property
    def sections(self) -> tuple[Section, ...]:
        """Return the sections of a request, in the order of its instances; their hosts are chosen together.
        Empty: the request has one flavor, or several of which one is chosen.
        """
        return ()


class ConsumerPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The part of the claim of a consumer."""

    # Whether a claim with this part is accepted for a consumer that was retired as unplaceable.
    revives: ClassVar[bool] = False


class ChoicePart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a set of allocations to claim."""


class PlacedPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The part of the message that a build is placed."""

    # Whether the claim ended other instances for ever, so that the build is not given up while its cell is
    # away.
    replaces_others: ClassVar[bool] = False


class DecisionPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The part of the decision that explains why a request got no host: the request of a feature."""

    builds: ShortList[Id] = ()  # the builds that the decision is about
    subject: Text = ""  # what the decision is about, such as `migrate MOVE of BUILD`


class PlanPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a plan of many moves: the goal of the plan."""


class Parts(Generic[K]):
    """Values of features, at most one of a type. Immutable."""

    __slots__ = ("_unknown", "_values")
    holds: ClassVar[type[Part]] = Part  # the base class of its values

    def __init__(self, *values: Any) -> None:
        self._values: dict[type[Any], Any] = {type(value): value for value in values if value is not None}
        self._unknown: Mapping[str, Any] = {}  # stored values of features that are not in the list

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        return iter(self._values.values())

    def __contains__(self, type_: object) -> bool:
        return type_ in self._values

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._values.values()))})"

    def get(self, type_: type[P]) -> P | None:
        """Return the part of this type, or None if the message has none."""
        value: P | None = self._values.get(type_)
        return value

    def having(self, *values: Any) -> Self:
        """Return these parts with each of `values` in place of the value of its type."""
        if not values:
            return self
        return self._with({**self._values, **{type(value): value for value in values}}.values())

    def without(self, *types: type[Any]) -> Self:
        """Return these parts without the values of these types."""
        if self._values.keys().isdisjoint(types):
            return self
        return self._with(value for type_, value in self._values.items() if type_ not in types)

    def for_members(self) -> Self:
        """Return the parts that a member of the project may read."""
        return self.without(*(type_ for type_ in self._values if type_.names_others))

    @property
    def unknown(self) -> Mapping[str, Any]:
        """Return stored values of features that are not in the list, by name."""
        return self._unknown

    def with_unknown(self, unknown: Mapping[str, Any]) -> Self:
        """Return these parts with stored values of features that are not in the list."""
        parts = type(self)(*self)
        parts._unknown = unknown
        return parts

    def _with(self, values: Iterable[Any]) -> Self:
        parts = type(self)(*values)
        parts._unknown = self._unknown
        return parts


class RequestParts(Parts[RequestPart]):
    """Parts of a request to build instances."""

    __slots__ = ()
    holds = RequestPart

    @property
    def sections(self) -> tuple[Section, ...]:
        """Return the sections of the request; at most one part gives it some."""
        for part in self._values.values():
            sections: tuple[Section, ...] = part.sections
            if sections:
                return sections
        return ()

    @property
    def waits(self) -> WaitTimes:
        """Return for how long the request waits for a host; at most one part says it."""
        for part in self._values.values():
            waits: WaitTimes = part.waits
            if waits != _NO_WAIT:
                return waits
        return _NO_WAIT


class MoveParts(RequestParts):
    """Parts of a request to move or change an instance."""

    __slots__ = ()


class ClaimParts(Parts[ConsumerPart]):
    """Parts of the claim of a consumer."""

    __slots__ = ()
    holds = ConsumerPart


class ChoiceParts(Parts[ChoicePart]):
    """Parts of a set of allocations to claim."""

    __slots__ = ()
    holds = ChoicePart


class PlacedParts(Parts[PlacedPart]):
    """Parts of the message that a build is placed."""

    __slots__ = ()
    holds = PlacedPart

    @property
    def replace_others(self) -> bool:
        """Return whether the build's claim ended other instances for ever."""
        return any(part.replaces_others for part in self)


class DecisionParts(Parts[DecisionPart]):
    """Parts of the decision that explains why a request got no host."""

    __slots__ = ()
    holds = DecisionPart

    @property
    def builds(self) -> tuple[Id, ...]:
        """Return the builds that the decision is about, if its request has none of its own."""
        return tuple(build for part in self for build in part.builds)

    @property
    def subject(self) -> str:
        """Return what the decision is about; empty: a request for builds."""
        return next((part.subject for part in self if part.subject), "")


class PlanParts(Parts[PlanPart]):
    """Parts of a plan of many moves: the goal of the plan."""

    __slots__ = ()
    holds = PlanPart


OWNERS: tuple[type[Parts[Any]], ...] = (
    RequestParts,
    MoveParts,
    ClaimParts,
    ChoiceParts,
    PlacedParts,
    DecisionParts,
    PlanParts,
)
_NONE = {owner: owner() for owner in OWNERS}
NO_PARTS: Parts[Any] = Parts()


def none_of(owner: type[T]) -> T:
    """Return the default of a field `parts` of a message: a value without parts, shared by messages."""
    none: T = msgspec.field(default_factory=repeat(_NONE[owner]).__next__)  # type: ignore[index, assignment]
    return none


class PartTypes:
    """The types of parts of all features in the list. They are added before the process makes a bus."""

    def __init__(self) -> None:
        self._types: dict[type[Parts[Any]], dict[str, type[Part]]] = {owner: {} for owner in OWNERS}
        self._features: dict[type[Part], str] = {}
        # type of parts → object of a request, such as `hints` → fields that clients may write there
        self._flat: dict[type[Parts[Any]], dict[str, set[str]]] = {owner: {} for owner in OWNERS}
        self._is_frozen = False

    def add(self, feature: str, owner: type[Parts[Any]], part: type[Part]) -> None:
        """Add the part of a feature in messages with parts of the type `owner`."""
        if self._is_frozen:
            raise ValueError(f"{part.__name__}: too late, this process reads messages already")
        if not issubclass(part, owner.holds):
            raise ValueError(
                f"{part.__name__}: {owner.__name__} hold parts of the type {owner.holds.__name__}"
            )
        if feature in self._types[owner] or self._features.get(part, feature) != feature:
            raise ValueError(f"{part.__name__}: {feature} has a part in {owner.__name__}, or {part} is added")
        self._types[owner][feature] = part
        self._features[part] = feature
        for name, object_ in part.flat.items():
            self._flat[owner].setdefault(object_, set()).add(name)

    def freeze(self) -> None:
        """Permit no further types."""
        self._is_frozen = True

    def of(self, owner: type[Parts[Q]]) -> Mapping[str, type[Q]]:
        """Return the types of parts by feature."""
        types: Any = self._types[owner]
        found: Mapping[str, type[Q]] = types
        return found

    def feature_of(self, part: Part) -> str:
        """Return the name of the feature that defines the part, or the name of its type if no listed feature
        does.
        """
        return self._features.get(type(part), type(part).__name__)

    def read(self, owner: type[Parts[Any]], fields: Any) -> Parts[Any]:
        """Return the parts of a message; raise ValueError with the path of what is wrong."""
        parts, unknown = self._read(owner, fields)
        if unknown:
            raise ValueError(f"no such feature - at `$.{next(iter(unknown))}`")
        return parts

    def read_stored(self, owner: type[Parts[Any]], fields: Any) -> Parts[Any]:
        """Return the parts of a stored message, which may have parts of features that were deleted since."""
        parts, unknown = self._read(owner, fields)
        if unknown:
            parts._unknown = unknown
        return parts

    def _read(self, owner: type[Parts[Any]], fields: Any) -> tuple[Parts[Any], dict[str, Any]]:
        if not isinstance(fields, dict):
            raise ValueError("Expected `object`")
        if not fields:
            return _NONE[owner], {}
        types, values, unknown = self._types[owner], [], {}
        for name, value in fields.items():
            if (type_ := types.get(name)) is None:
                unknown[name] = value
            else:
                values.append(_converted(value, type_, name))
        return owner(*values), unknown

    def read_flat(
        self, owner: type[Parts[Any]], fields: Mapping[str, Any], parts: Parts[Any] | None = None
    ) -> list[Part]:
        """Return the parts whose fields a client has written like the kernel's fields of a request, merged
        with `parts`, which the request has in its field `parts`. Raise ValueError with the path if a field is
        invalid or contradicts the field of the part.
        """
        found: list[Part] = []
        for object_, names in self._flat[owner].items():
            inside = fields.get(object_) if object_ else fields
            if isinstance(inside, dict) and not names.isdisjoint(inside):
                break
        else:  # a plain request costs one comparison for each object
            return found
        for feature, type_ in self._types[owner].items():
            given = {}
            for name, object_ in type_.flat.items():
                inside = fields.get(object_) if object_ else fields
                if isinstance(inside, dict) and name in inside:
                    given[name] = inside[name]
            if not given:
                continue
            part, known = _converted(given, type_, "", type_.flat), (parts or NO_PARTS).get(type_)
            if known is not None:
                part = _merged(known, part, given, fields["parts"][feature], feature)
            if part != type_():
                found.append(part)
        return found

    def flat_parts(self, owner: type[Parts[Any]], within: str = "") -> dict[str, Any]:
        """Return the fields of parts that clients may write in an object of a request, with their types."""
        found: dict[str, Any] = {}
        for type_ in self._types[owner].values():
            hints = get_type_hints(type_, include_extras=True)
            found |= {name: hints[name] for name, object_ in type_.flat.items() if object_ == within}
        return found

    def written(self, parts: Parts[Any]) -> dict[str, Any]:
        """Return the parts by the names of their features, as they are encoded."""
        return {self._features[type_]: value for type_, value in parts._values.items()}


TYPES = PartTypes()


def _converted(value: Any, type_: type[Part], where: str, flat: Mapping[str, str] | None = None) -> Part:
    """Return a part; raise ValueError with the path of what is wrong: below `where` or, if the fields are
    `flat`, below the objects that have them.
    """
    try:
        return msgspec.convert(value, type_, dec_hook=_restored)  # parts of a request in a part
    except msgspec.ValidationError as problem:
        text, _, path = str(problem).partition(" - at `$")
        path = path.removesuffix("`")
        if flat is not None:
            where = flat.get(_FIELD.match(path)[1], "")  # type: ignore[index]
        raise ValueError(f"{text} - at `${f'.{where}' if where else ''}{path}`") from None


_FIELD = re.compile(r"\.?([A-Za-z_]*)")


def _merged(known: Part, part: Part, given: Iterable[str], in_parts: Mapping[str, Any], feature: str) -> Part:
    """Return a part of a request with the fields `given`, which the request has as its own, of `part`. Raise
    ValueError if the part has another value in such a field. `in_parts`: the part's JSON object.
    """
    for name in given:
        if name in in_parts and getattr(known, name) != getattr(part, name):
            path = f"{part.flat[name]}.{name}".removeprefix(".")
            raise ValueError(f"it contradicts parts.{feature}.{name} - at `$.{path}`")
    return structs.replace(known, **{name: getattr(part, name) for name in given})


# Encoding and decoding of messages


def _encoded(value: Any) -> Any:
    if isinstance(value, Parts):
        return TYPES.written(value) if value._values else {}
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded")


def _stored(value: Any) -> Any:
    if isinstance(value, Parts):
        return {**value._unknown, **TYPES.written(value)}
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded")


def _decoded(type_: type[Any], value: Any) -> Any:
    return TYPES.read(type_, value)


def _restored(type_: type[Any], value: Any) -> Any:
    return TYPES.read_stored(type_, value)


def encoder(**options: Any) -> msgspec.json.Encoder:
    """Return an encoder of messages."""
    return msgspec.json.Encoder(enc_hook=_encoded, **options)


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return a decoder of messages that refuses parts of unknown features."""
    return msgspec.json.Decoder(kind, dec_hook=_decoded)


def stored_encoder(**options: Any) -> msgspec.json.Encoder:
    """Return an encoder of messages to store."""
    return msgspec.json.Encoder(enc_hook=_stored, **options)


def stored_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return a decoder of stored messages, which keeps parts of features that were deleted since."""
    return msgspec.json.Decoder(kind, dec_hook=_restored)


_TWO_PATHS = re.compile(r" - at `\$([^`]*)` - at `\$([^`]*)`$")


def problem_of(error: msgspec.ValidationError, within: str = "") -> str:
    """Return the text of a decoding error, with one path if it is about a field of a part. `within`: the
    field that has the object.
    """
    text = _TWO_PATHS.sub(r" - at `$\2\1`", str(error))
    if not within:
        return text
    return (
        text.replace(" - at `$", f" - at `$.{within}", 1)
        if " - at `$" in text
        else f"{text} - at `$.{within}`"
    )


def converted(kind: type[T], fields: Any) -> T:
    """Return the message whose fields are given as JSON values; raise ValidationError if one is invalid."""
    return msgspec.convert(fields, kind, dec_hook=_decoded)


def builtins_of(message: Any) -> Any:
    """Return a message as dictionaries, lists and texts."""
    return msgspec.to_builtins(message, enc_hook=_encoded)


# Descriptions for OpenAPI and AsyncAPI


def schema_components(kinds: Sequence[Any], ref_template: str) -> dict[str, Any]:
    """Return the JSON schemas of message types by name, with those of the types that they hold."""

    def described(type_: type[Any]) -> dict[str, Any]:
        known = {name: ref_template.format(name=part.__name__) for name, part in TYPES.of(type_).items()}
        properties = {name: {"$ref": reference} for name, reference in known.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}

    parts = {part: None for owner in OWNERS for part in TYPES.of(owner).values()}
    _, schemas = msgspec.json.schema_components(
        [*kinds, *parts], schema_hook=described, ref_template=ref_template
    )
    for kind in kinds:
        owner = get_type_hints(kind).get("parts")
        if isinstance(owner, type) and issubclass(owner, RequestParts):
            _describe_flat(schemas, schemas[kind.__name__], owner)
    return schemas


def _describe_flat(schemas: dict[str, Any], request: dict[str, Any], owner: type[Parts[Any]]) -> None:
    """Add the fields that clients may write like those of the kernel to the schema of a request."""
    for part in TYPES.of(owner).values():
        for name, object_ in part.flat.items():
            inside = request
            if object_:
                inside = schemas[request["properties"][object_]["$ref"].rpartition("/")[2]]
            inside["properties"][name] = schemas[part.__name__]["properties"][name]
