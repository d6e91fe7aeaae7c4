"""Selects the nodes and fields for REST answers: by API version, filters, sort keys and pages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple
from urllib.parse import urlencode

from compute_sim.ironic.node import FIELDS, PATHS, Json, SimNode, fields_of_node, masked
from compute_sim.ironic.patching import ApiRefusal, not_acceptable

MINIMUM, MAXIMUM = 1, 115  # minor versions
PAGE = 1000

_SINCE = {
    "driver_internal_info": 3, "name": 5, "inspection_finished_at": 6, "inspection_started_at": 6,
    "clean_step": 7, "raid_config": 12, "target_raid_config": 12, "network_interface": 20,
    "resource_class": 21, "bios_interface": 40, "boot_interface": 31, "console_interface": 31,
    "deploy_interface": 31, "inspect_interface": 31, "management_interface": 31, "power_interface": 31,
    "raid_interface": 31, "vendor_interface": 31, "storage_interface": 33, "traits": 37,
    "rescue_interface": 38, "fault": 42, "deploy_step": 44, "conductor_group": 46, "automated_clean": 47,
    "protected": 48, "protected_reason": 48, "conductor": 49, "owner": 50, "description": 51,
    "allocation_uuid": 52, "retired": 61, "retired_reason": 61, "lessee": 65, "network_data": 66,
    "boot_mode": 75, "secure_boot": 75, "shard": 82, "parent_node": 83, "firmware_interface": 86,
    "service_step": 87, "disable_power_off": 95, "instance_name": 104, "health": 109,
}  # fmt: skip
SHORT = ("instance_uuid", "maintenance", "power_state", "provision_state", "uuid", "name", "links")
STATES = (
    "console_enabled", "last_error", "power_state", "provision_state", "provision_updated_at",
    "target_power_state", "target_provision_state",
)  # fmt: skip
_SECRET = ("instance_info", "driver_info", "driver_internal_info")
VERB_SINCE = {
    "manage": 4, "provide": 4, "inspect": 6, "abort": 13, "clean": 15, "adopt": 17, "rescue": 38,
    "unrescue": 38, "deploy": 73, "undeploy": 73, "unhold": 85, "service": 87,
}  # fmt: skip
_FILTER_SINCE = {
    "provision_state": 9, "driver": 16, "resource_class": 21, "fault": 42, "conductor_group": 46,
    "conductor": 49, "owner": 50, "project": 50, "description_contains": 51, "retired": 61, "lessee": 65,
    "shard": 82, "sharded": 82, "instance_name": 104,
}  # fmt: skip
_EQUAL = frozenset({
    "provision_state", "driver", "resource_class", "fault", "conductor_group", "conductor", "owner",
    "lessee", "instance_uuid", "instance_name", "chassis_uuid", "parent_node",
})  # fmt: skip
_FLAGS = frozenset({"maintenance", "retired", "associated", "sharded", "include_children", "detail"})
_NO_SORT = frozenset({
    "properties", "driver_info", "extra", "instance_info", "driver_internal_info", "clean_step",
    "deploy_step", "service_step", "raid_config", "target_raid_config", "traits", "network_data",
})  # fmt: skip
_KEPT_FOR_NEXT = ("associated", "maintenance", "retired")  # Ironic's links omit the other filters

Matches = Callable[[SimNode], bool]


class Asked(NamedTuple):
    """The checked parameters of a request for a list of Ironic nodes, such as filters and sort key."""

    matches: Sequence[Matches]
    fields: tuple[str, ...] | None
    limit: int
    marker: str
    sort_key: str
    descending: bool
    kept: Mapping[str, str]  # repeated in the link to the next page


def whole(node: SimNode, minor: int, url: str) -> Json:
    """Return an Ironic node as a REST answer, with all fields that version 1.`minor` of Ironic's API has."""
    body = visible_fields(node, FIELDS, minor)
    place = f"nodes/{node.uuid}"
    body["links"] = _links(url, place)
    for part in ("ports", "states", "portgroups", "volume"):
        body[part] = _links(url, f"{place}/{part}")
    return body


def visible_fields(node: SimNode, fields: Iterable[str], minor: int) -> Json:
    """Return the values of an Ironic node's fields, as API 1.`minor` shows them: without newer fields."""
    visible = fields_of_node(node, [field for field in fields if _SINCE.get(field, 0) <= minor], "+00:00")
    if minor < 2 and visible.get("provision_state") == "available":
        visible["provision_state"] = None
    if minor < 39 and visible.get("provision_state") == "inspect wait":
        visible["provision_state"] = "inspecting"
    for secret in _SECRET:
        if secret in visible:
            visible[secret] = masked(visible[secret])
    return visible


def some(node: SimNode, fields: Sequence[str], minor: int, url: str) -> Json:
    body = visible_fields(node, [field for field in fields if field != "links"], minor)
    if "links" in fields:
        body["links"] = _links(url, f"nodes/{node.uuid}")
    return body


def fields_of(text: str | None, minor: int) -> tuple[str, ...] | None:
    """Return the fields that a request names in `text`, or None without a text. Raise ApiRefusal if a field
    is unknown or newer than API 1.`minor`.
    """
    if text is None:
        return None
    fields = tuple(field for field in text.split(",") if field)
    unknown = [field for field in fields if field not in FIELDS and field != "links"]
    if unknown:
        raise ApiRefusal(400, f'Field(s) "{", ".join(unknown)}" are not valid.')
    if minor < 8 or any(_SINCE.get(field, 0) > minor for field in fields):
        raise not_acceptable()
    return fields


def asked(query: Mapping[str, str], minor: int) -> Asked:
    """Check the query parameters of a request for a list of Ironic nodes, and return them as an object."""
    matches: list[Matches] = []
    for name, value in query.items():
        since = _FILTER_SINCE.get(name, 0)
        if since > minor:
            text = f"Request not acceptable. The minimal required API version should be 1.{since}"
            raise not_acceptable(text)
        if (match := _filter(name, value)) is not None:
            matches.append(match)
    if "parent_node" not in query and not _flag(query.get("include_children", "false")):
        matches.append(lambda node: node.parent_node is None)
    sort_key, sort_dir = query.get("sort_key", "id"), query.get("sort_dir", "asc")
    if sort_key != "id" and (sort_key not in FIELDS or sort_key in _NO_SORT):
        raise ApiRefusal(400, f"The sort_key value {sort_key} is an invalid field for sorting")
    if sort_dir not in ("asc", "desc"):
        raise ApiRefusal(400, f"Invalid sort direction: {sort_dir}. Acceptable values are 'asc' or 'desc'")
    unchanged = {name: "True" for name in _KEPT_FOR_NEXT if name in query and _flag(query[name])}
    fields = fields_of(query.get("fields"), minor)
    if fields is not None:
        unchanged["fields"] = ",".join(fields)
    return Asked(
        matches,
        fields,
        _limit(query.get("limit")),
        query.get("marker", ""),
        sort_key,
        sort_dir == "desc",
        {"sort_key": sort_key, "sort_dir": sort_dir, **unchanged},
    )


def page(nodes: Mapping[str, SimNode], wanted: Asked) -> list[SimNode]:
    """Return the Ironic nodes that match a request, sorted: those after the marker, at most the limit."""
    ordered: Iterable[SimNode] = nodes.values()
    if wanted.sort_key != "id":
        values = ((getattr(node, wanted.sort_key), node) for node in ordered)
        keyed = [((value is not None, "" if value is None else value, n.uuid), n) for value, n in values]
        ordered = [node for _, node in sorted(keyed, key=lambda pair: pair[0])]
    if wanted.descending:
        ordered = reversed(list(ordered))
    if wanted.marker:
        if wanted.marker not in nodes:
            raise ApiRefusal(404, f"Node {wanted.marker} could not be found.")
        ordered = iter(ordered)
        for node in ordered:
            if node.uuid == wanted.marker:
                break
    fitting = (node for node in ordered if all(match(node) for match in wanted.matches))
    return list(islice(fitting, wanted.limit))


def next_link(found: Sequence[SimNode], wanted: Asked, url: str, path: str) -> str | None:
    """Return the link to the next page of a list of nodes, or None if this page is not full."""
    if len(found) < wanted.limit:
        return None
    query = urlencode({**wanted.kept, "limit": wanted.limit, "marker": found[-1].uuid}, safe=",")
    return f"{url}/v1/{path}?{query}"


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE
    try:
        limit = int(text)
    except ValueError:
        raise ApiRefusal(400, f"Expected an integer for limit: {text}") from None
    if limit <= 0:
        raise ApiRefusal(400, "Limit must be positive")
    return min(limit, PAGE)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "t", "1", "yes", "on", "false", "f", "0", "no", "off"):
        raise ApiRefusal(400, f"Unrecognized value '{text}', acceptable values are: 'true', 'false'")
    return text.lower() in ("true", "t", "1", "yes", "on")


def _filter(name: str, value: str) -> Matches | None:
    if name == "provision_state" and value not in PATHS:
        raise ApiRefusal(400, f'Provision state "{value}" is not valid')
    if name in _EQUAL:
        return lambda node: getattr(node, name) == value
    if name == "shard":
        shards = frozenset(value.split(","))
        return lambda node: node.shard in shards
    if name == "project":
        return lambda node: value in (node.owner, node.lessee)
    if name == "description_contains":
        return lambda node: value in (node.description or "")
    if name not in _FLAGS:
        if name in ("fields", "limit", "marker", "sort_key", "sort_dir"):
            return None
        raise ApiRefusal(400, f"Unexpected arguments: {name}")
    wanted = _flag(value)
    if name == "associated":
        return lambda node: (node.instance_uuid is not None) == wanted
    if name == "sharded":
        return lambda node: (node.shard is not None) == wanted
    if name in ("maintenance", "retired"):
        return lambda node: getattr(node, name) == wanted
    return None


def _links(url: str, place: str) -> list[Json]:
    return [{"href": f"{url}/v1/{place}", "rel": "self"}, {"href": f"{url}/{place}", "rel": "bookmark"}]
