"""Every message with its fields, as its schema has them: for docs, made from the AsyncAPI document."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from berth import topology
from bus.worker import Worker

_REF = "#/components/schemas/"


def markdown(workers: Sequence[Worker]) -> str:
    document = topology.asyncapi(workers)
    schemas: Mapping[str, Any] = document["components"]["schemas"]
    on: dict[str, list[str]] = {}
    for channel in document["channels"].values():
        for message in channel["messages"]:
            on.setdefault(message, []).append(
                channel["address"] or channel["description"].rpartition("; ")[2]
            )
    lines = ["### Messages", ""]
    for name in on:
        lines += _section(name, schemas[name], ", ".join(_where(one) for one in on[name]))
    lines += ["### What they are made of", ""]
    for name in schemas:
        if name not in on:
            lines += _section(name, schemas[name], "")
    return "\n".join(lines).strip() + "\n"


def _where(address: str) -> str:
    if address.startswith("answers "):
        return f"answers `{address.removeprefix('answers ')}`"
    return f"asks `{address.removeprefix('ask.')}`" if address.startswith("ask.") else f"`{address}`"


def _section(name: str, schema: Mapping[str, Any], where: str) -> list[str]:
    says = re.sub(r"\s+", " ", schema.get("description", "")).strip()
    lines = [f"#### {name}", ""]
    lines += [part for part in (where and f"{where}. ", says and html.escape(says, quote=False)) if part]
    if "properties" not in schema:
        return [*lines, "", _type(schema), ""]
    needed = schema.get("required", ())
    lines += ["", "| field | is | default |", "|---|---|---|"]
    for field, one in schema["properties"].items():
        default = "needed" if field in needed else _default(one)
        lines.append(f"| `{field}` | {_type(one)} | {default} |")
    return [*lines, ""]


def _default(one: Mapping[str, Any]) -> str:
    if (value := one.get("default")) in ("", None, [], (), {}):
        return ""
    return "as each of its own" if isinstance(value, dict) else _code(json.dumps(value))


def _type(one: Mapping[str, Any]) -> str:
    if "$ref" in one:
        name = one["$ref"].removeprefix(_REF)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in one:
        return " or ".join(_type(each) for each in one["anyOf"])
    if "enum" in one:
        return "one of " + ", ".join(_code(json.dumps(value)) for value in one["enum"])
    if "const" in one:
        return _code(json.dumps(one["const"]))
    bounds = _bounds(one)
    match one.get("type"):
        case "array":
            parts = [_type(each) for each in one.get("prefixItems", ())]
            items = one.get("items")
            if parts:
                return f"[{', '.join(parts)}]"
            return f"list{bounds} of {_type(items)}" if items else f"list{bounds}"
        case "object":
            keys, values = one.get("propertyNames"), one.get("additionalProperties")
            inside = _type(values) if isinstance(values, dict) else "anything"
            by = f" by {_type({'type': 'string', **keys})}" if keys else ""
            return f"table{bounds} of {inside}{by}"
        case "null":
            return "nothing"
        case "string" if "description" in one:
            return html.escape(one["description"], quote=False).replace("|", "&#124;") + bounds
        case "string" if "pattern" in one:
            return f"text like {_code(one['pattern'].replace('(?!' + chr(92) + 'n)', ''))}{bounds}"
        case kind:
            words = {
                "string": "text",
                "integer": "whole number",
                "boolean": "true or false",
                None: "anything",
            }
            return words.get(kind, str(kind)) + bounds


def _bounds(one: Mapping[str, Any]) -> str:
    """Return the limits of a field in a form that follows `text`, or in brackets for fields with several
    values.
    """
    names = ("imum", "Length", "Items", "Properties")
    least = next((one[f"min{name}"] for name in names if f"min{name}" in one), None)
    most = next((one[f"max{name}"] for name in names if f"max{name}" in one), None)
    if "exclusiveMinimum" in one:
        limits = f"more than {one['exclusiveMinimum']}"
    elif most is not None:
        limits = f"at most {most}" if least is None else f"{least} to {most}"
    elif least:
        limits = f"at least {least}"
    else:
        return ""
    if one.get("type") in ("array", "object"):
        return f" ({limits})"
    return f", {limits} long" if one.get("type") == "string" else f", {limits}"


def _code(text: str) -> str:
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"
