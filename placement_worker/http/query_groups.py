"""Parses request groups in query strings: resources, traits and aggregates."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qsl

from bus.requests import ResourceGroup
from bus.vocabulary import MAX_INT
from placement_worker.http.errors import Problem, bad_request
from placement_worker.http.schemas import Json, Schema, is_uuid_like

T = TypeVar("T")
Pairs = Sequence[tuple[str, str]]

_MOST_KEYS = 1000
_BEYOND = MAX_INT + 1  # replaces all larger amounts: no provider has more than MAX_INT

TEXT: Json = {"type": "string"}


def schema(properties: Json, required: Sequence[str] = (), patterns: Json | None = None) -> Schema:
    parts: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        parts["required"] = list(required)
    if patterns:
        parts["patternProperties"] = patterns
    return Schema(parts, query=True)


def pairs_of(query_string: bytes) -> Pairs:
    try:
        return parse_qsl(query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_KEYS)
    except ValueError:
        raise bad_request(f"Invalid query string parameters: there are more than {_MOST_KEYS}") from None


def checked(schema: Schema, pairs: Pairs) -> dict[str, str]:
    """Check a query string against a schema; return each key's last value, or raise an API error."""
    values = dict(pairs)
    if any("\0" in key or "\0" in value for key, value in pairs):
        raise invalid("there is a character U+0000")
    if wrong := schema.complaint(values):
        raise invalid(wrong)
    return values


def invalid(why: str) -> Problem:
    return bad_request(f"Invalid query string parameters: {why}")


@dataclass(slots=True)
class Group:
    """A request group that collects its parameters while a query string is parsed."""

    resources: dict[str, int] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    required_any: list[tuple[str, ...]] = field(default_factory=list)
    member_of: list[tuple[str, ...]] = field(default_factory=list)
    not_member_of: list[str] = field(default_factory=list)
    in_tree: str | None = None

    def done(self, suffix: str) -> ResourceGroup:
        listed = ("required", "forbidden", "required_any", "member_of", "not_member_of")
        return ResourceGroup(
            suffix=suffix,
            resources=self.resources,
            in_tree=self.in_tree,
            **{name: once(getattr(self, name)) for name in listed},
        )

    @property
    def torn(self) -> list[str]:
        """Return the traits that the request group both requires and forbids."""
        forbidden = set(self.forbidden)
        torn = forbidden & set(self.required)
        for choice in self.required_any:
            if forbidden.issuperset(choice):
                torn.update(choice)
        return sorted(torn)


def once(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def resources(text: str) -> dict[str, int]:
    form = (
        "Badly formed resources parameter. Expected resources query string parameter in form:"
        " ?resources=VCPU:2,MEMORY_MB:1024."
    )
    if not text.strip():
        raise bad_request(f"{form} Got: empty string.")
    found = {}
    for part in text.split(","):
        name, colon, amount = part.partition(":")
        if not colon or ":" in amount:
            raise bad_request(f"{form} Got: {part}.")
        try:
            number = int(amount)
        except ValueError:
            raise bad_request(
                f"Requested resource {name} expected positive integer amount. Got: {amount}."
            ) from None
        if number < 1:
            raise bad_request(f"Requested resource {name} requires amount >= 1. Got: {number}.")
        found[name] = min(number, _BEYOND)
    return found


def required(values: Sequence[str], group: Group, minor: int, *, any_of: bool = True) -> None:
    """Parse values of the parameter `required` into a request group: traits, with `!` before forbidden traits
    and, since microversion 1.39, `in:` before alternative traits. Without `any_of`, refuse alternatives.
    """
    for value in values if minor >= 39 else values[-1:]:
        if value.startswith("in:"):
            _any_of(value, group, minor if any_of else 0)
            continue
        hint = "HW_CPU_X86_VMX,!CUSTOM_MAGIC" if minor >= 22 else "HW_CPU_X86_VMX,CUSTOM_MAGIC"
        form = f"Expected 'required' parameter value of the form: {hint}."
        for part in value.split(","):
            trait = part.strip()
            name = trait.lstrip("!") if minor >= 22 else trait
            if not name:
                raise invalid(f"{form} Got an empty trait in: {value}")
            if name.startswith("!"):
                raise invalid(f"{form} Got: {value}")
            (group.forbidden if name != trait else group.required).append(name)


def _any_of(value: str, group: Group, minor: int) -> None:
    hint = "in:HW_CPU_X86_VMX,CUSTOM_MAGIC"
    if minor < 39:
        raise invalid(f"The format '{hint}' only supported since microversion 1.39. Got: {value}")
    traits = [part.strip() for part in value.removeprefix("in:").split(",")]
    if not all(traits):
        raise invalid(
            f"Expected 'required' parameter value of the form: {hint}. Got an empty trait in: {value}"
        )
    if any(trait.startswith("!") for trait in traits):
        raise invalid(f"The format '{hint}' does not support forbidden traits. Got: {value}")
    group.required_any.append(tuple(dict.fromkeys(traits)))


def member_of(values: Sequence[str], group: Group, minor: int) -> None:
    """Parse values of the parameter `member_of` into a request group: an aggregate's uuid, or `in:` before
    alternative uuids; since microversion 1.32, `!` before excluded uuids.
    """
    if len(values) > 1 and minor < 24:
        raise bad_request("Multiple member_of parameters are not supported")
    for value in values:
        forbidden = value.startswith("!")
        if forbidden and minor < 32:
            raise bad_request(
                "Forbidden member_of parameters are not supported in the specified microversion"
            )
        given = value.removeprefix("!")
        several = given.startswith("in:")
        uuids = given.removeprefix("in:").split(",")
        if not several and len(uuids) > 1:
            raise bad_request(
                "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword"
                f" using the valid microversion. Got: {value}"
            )
        for uuid in uuids:
            if not is_uuid_like(uuid):
                raise invalid(f"Expected 'member_of' parameter to contain valid UUID(s). Got: {uuid}")
        if forbidden:
            group.not_member_of += uuids
        else:
            group.member_of.append(tuple(dict.fromkeys(uuids)))
