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
            inside = f"[{', '.join(parts)}]" if parts else f"list of {_type(items)}" if items else "list"
            return inside + bounds
        case "object":
            keys, values = one.get("propertyNames"), one.get("additionalProperties")
            inside = _type(values) if isinstance(values, dict) else "anything"
            return (
                f"table of {inside}" + (f" by {_type({'type': 'string', **keys})}" if keys else "") + bounds
            )
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
    least = next((one[key] for key in ("minimum", "minLength", "minItems") if key in one), None)
    most = next((one[key] for key in ("maximum", "maxLength", "maxItems") if key in one), None)
    counted = " long" if one.get("type") == "string" else ""
    if "exclusiveMinimum" in one:
        return f", more than {one['exclusiveMinimum']}"
    if least is not None and most is not None:
        return f", {least} to {most}{counted}"
    if most is not None:
        return f", at most {most}{counted}"
    return f", at least {least}{counted}" if least else ""


def _code(text: str) -> str:
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"
