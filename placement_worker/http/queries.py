"""Parses the API's query strings into queries for candidates, providers, traits and usages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TypeVar
from urllib.parse import parse_qsl

from bus.names import FindNames
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.resources import FindProviders, FindUsages
from bus.vocabulary import MAX_INT
from placement_worker.http.errors import BAD_VALUE, DUPLICATE_KEY, MISSING_VALUE, Problem, bad_request
from placement_worker.http.schemas import Json, Schema, at, is_uuid_like

# Parses request groups in query strings: resources, traits and aggregates.


T = TypeVar("T")
Pairs = Sequence[tuple[str, str]]

_MOST_KEYS = 1000
_BEYOND = MAX_INT + 1  # replaces all larger amounts: no provider has more than MAX_INT

TEXT: Json = {"type": "string"}


def schema(properties: Json, required: Sequence[str] = (), patterns: Json | None = None) -> Schema:
    """Return a schema for query parameters that refuses all other names."""
    parts: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        parts["required"] = list(required)
    if patterns:
        parts["patternProperties"] = patterns
    return Schema(parts, query=True)


def pairs_of(query_string: bytes) -> Pairs:
    """Return the parameters of a query string; refuse too many."""
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
        """Return the group as placement's query has it."""
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
    """Return the items without repetitions, in their order."""
    return tuple(dict.fromkeys(items))


def resources(text: str) -> dict[str, int]:
    """Read a parameter such as `VCPU:2,MEMORY_MB:1024`; refuse another form."""
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


MOST_CANDIDATES = 100_000  # maximum number of candidates in one answer
MOST_GROUPS = 100

_UUID: Json = {"type": "string", "format": "uuid"}
_LIMIT: Json = {"type": ["integer", "string"], "pattern": "^[1-9][0-9]*$", "minLength": 1}
_OWNER: Json = {"type": "string", "minLength": 1, "maxLength": 255}
_TYPE: Json = _OWNER | {"pattern": "^[A-Z0-9_]+$|^all|^unknown$"}


_SUFFIXES = {10: "", 25: "([1-9][0-9]*)?", 33: "([a-zA-Z0-9_-]{1,64})?"}
_SINCE = {"limit": 16, "required": 17, "member_of": 21, "group_policy": 25, "in_tree": 31, 
          "root_required": 35, "same_subtree": 36}  # fmt: skip
_GROUPED = ("resources", "required", "member_of", "in_tree")


@cache
def _candidates_schema(minor: int) -> tuple[Schema, re.Pattern[str]]:
    grouped = [key for key in _GROUPED if _SINCE.get(key, 10) <= minor]
    properties = {
        key: {"limit": _LIMIT, "group_policy": {"type": "string", "enum": ["none", "isolate"]}}.get(key, TEXT)
        for key, since in _SINCE.items()
        if since <= minor and key not in _GROUPED
    }
    suffix = _SUFFIXES[max(since for since in _SUFFIXES if since <= minor)]
    keys = re.compile(f"({'|'.join(grouped)})({suffix})")
    if minor < 25:
        return schema(properties | dict.fromkeys(grouped, TEXT), ["resources"]), keys
    return schema(properties, (), {f"^{key}{suffix}$": TEXT for key in grouped}), keys


@lru_cache(maxsize=2048)
def candidates(query_string: bytes, minor: int) -> FindCandidates:
    """Parse an API query string into a query for candidates; the result for each query string is cached."""
    form, keys = _candidates_schema(minor)
    pairs = pairs_of(query_string)
    values = checked(form, pairs)
    grouped: dict[str, dict[str, list[str]]] = {}  # suffix → parameter → values
    repeated: dict[str, list[str]] = {}
    for key, value in pairs:
        of_group = keys.fullmatch(key)
        if of_group is not None:
            grouped.setdefault(of_group[2], {}).setdefault(of_group[1], []).append(value)
        else:
            repeated.setdefault(key, []).append(value)
    if len(grouped) > MOST_GROUPS:
        raise invalid(f"at most {MOST_GROUPS} request groups, not {len(grouped)}")
    subtrees = _subtrees(repeated.get("same_subtree", ()))
    _check_groups(grouped, subtrees, minor)
    groups = {suffix: _group(parts, minor) for suffix, parts in grouped.items()}
    torn = [(f"required{suffix}", group.torn) for suffix, group in groups.items() if group.torn]
    if torn:
        listed = ", ".join(f"{key}: ({', '.join(traits)})" for key, traits in torn)
        raise bad_request(
            f"Conflicting required and forbidden traits found in the following traits keys: {listed}"
        )
    policy = repeated["group_policy"][0] if "group_policy" in values else None
    if policy is None and sum(1 for suffix in groups if suffix) > 1:
        raise bad_request(
            'The "group_policy" parameter is required when specifying more than one "resources{N}" parameter.'
        )
    root = _root_required(repeated.get("root_required", ()), minor)
    limit = min(int(repeated["limit"][0][:9]), MOST_CANDIDATES) if "limit" in values else MOST_CANDIDATES
    return FindCandidates(
        groups=tuple(group.done(suffix) for suffix, group in groups.items()),
        limit=limit,
        group_policy="isolate" if policy == "isolate" else "none",
        same_subtree=subtrees,
        root_required=once(root.required),
        root_forbidden=once(root.forbidden),
        nested=minor >= 29,
    )


def _group(parts: Mapping[str, list[str]], minor: int) -> Group:
    group = Group()
    if "resources" in parts:
        group.resources = resources(parts["resources"][-1])
    required(parts.get("required", ()), group, minor)
    member_of(parts.get("member_of", ()), group, minor)
    if "in_tree" in parts:
        group.in_tree = parts["in_tree"][-1].strip()
        if not is_uuid_like(group.in_tree):
            raise invalid(f"Expected 'in_tree' parameter to be a format of uuid. Got: {group.in_tree}")
    return group


def _check_groups(
    grouped: Mapping[str, Mapping[str, object]], subtrees: Sequence[tuple[str, ...]], minor: int
) -> None:
    bare = [suffix for suffix, parts in grouped.items() if "resources" not in parts]
    if minor >= 36:
        if len(bare) == len(grouped):
            raise bad_request(
                "There must be at least one resources or resources[$S] parameter.", MISSING_VALUE
            )
        tied = {suffix for subtree in subtrees for suffix in subtree}
        if loose := sorted(set(bare) - tied):
            raise bad_request(
                "Resourceless suffixed group request should be specified in `same_subtree` query param:"
                f" bad group(s) - {loose}.",
                BAD_VALUE,
            )
        if unknown := sorted(tied - set(grouped)):
            raise bad_request(
                f"Real suffixes should be specified in `same_subtree`: {unknown} not found in"
                f" {list(grouped)}.",
                BAD_VALUE,
            )
        return
    for parameter, key, gap in (("traits", "required", "  "), ("member_of", "member_of", " ")):
        if orphans := sorted(key + suffix for suffix in bare if key in grouped[suffix]):
            raise bad_request(
                f"All {parameter} parameters must be associated with resources.{gap}"
                f"Found the following orphaned {parameter} keys: {', '.join(orphans)}"
            )
    if bare:
        raise bad_request("All request groups must specify resources.")
    if not grouped:
        raise bad_request("At least one request group (`resources` or `resources{$S}`) is required.")


def _subtrees(values: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    found = []
    for value in values:
        suffixes = once(part.strip() for part in value.split(","))
        if "" in suffixes:
            raise bad_request(
                "Empty string (unsuffixed group) can not be specified in `same_subtree`", BAD_VALUE
            )
        found.append(suffixes)
    return tuple(dict.fromkeys(found))


def _root_required(values: Sequence[str], minor: int) -> Group:
    root = Group()
    if len(values) > 1:
        raise bad_request("Query parameter 'root_required' may be specified only once.", DUPLICATE_KEY)
    required(values, root, minor, any_of=False)
    if root.torn:
        raise bad_request(
            f"Conflicting required and forbidden traits found in root_required: {', '.join(root.torn)}",
            BAD_VALUE,
        )
    return root


_OF_PROVIDERS = {"name": (0, TEXT), "uuid": (0, _UUID), "member_of": (3, TEXT), "resources": (4, TEXT),
                 "in_tree": (14, _UUID), "required": (18, TEXT)}  # fmt: skip
_PROVIDERS = {
    minor: schema({key: kind for key, (since, kind) in _OF_PROVIDERS.items() if since <= minor})
    for minor in (0, 3, 4, 14, 18)
}


def providers(query_string: bytes, minor: int) -> FindProviders:
    """Read the query string of GET /resource_providers."""
    pairs = pairs_of(query_string)
    values = checked(at(minor, _PROVIDERS), pairs)
    group = Group()
    member_of([value for key, value in pairs if key == "member_of"], group, minor)
    if "resources" in values:
        group.resources = resources(values["resources"])
    required([value for key, value in pairs if key == "required"], group, minor)
    like = group.done("") if group != Group() else None
    return FindProviders(
        ids=(values["uuid"],) if "uuid" in values else (),
        name=values.get("name", ""),
        in_tree=values.get("in_tree"),
        like=like,
        parts=(),
    )


_TRAITS = schema({"name": TEXT, "associated": TEXT})
_USAGES = {
    9: schema({"project_id": _OWNER, "user_id": _OWNER}, ["project_id"]),
    38: schema({"project_id": _OWNER, "user_id": _OWNER, "consumer_type": _TYPE}, ["project_id"]),
}


def traits(query_string: bytes) -> FindNames:
    """Read the query string of GET /traits."""
    values = checked(_TRAITS, pairs_of(query_string))
    names, prefix, associated = None, "", None
    if "name" in values:
        operator, colon, given = values["name"].partition(":")
        if not colon:
            raise bad_request(
                "Badly formatted name parameter. Expected name query string parameter in form:"
                f' ?name=[in|startswith]:[name1,name2|prefix]. Got: "{values["name"]}"'
            )
        if operator == "in":
            names = tuple(dict.fromkeys(given.split(",")))
        elif operator == "startswith":
            prefix = given
    if "associated" in values:
        flag = values["associated"].lower()
        if flag not in ("true", "false"):
            raise bad_request('The query parameter "associated" only accepts "true" or "false"')
        associated = flag == "true"
    return FindNames(kind="trait", names=names, prefix=prefix, associated=associated)


def usages(query_string: bytes, minor: int) -> tuple[FindUsages, str]:
    """Parse an API query string into a query for usages, and the consumer type to show (empty: all types)."""
    values = checked(at(minor, _USAGES), pairs_of(query_string))
    return (
        FindUsages(project=values["project_id"], user=values.get("user_id", "")),
        values.get("consumer_type", ""),
    )
