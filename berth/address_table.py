"""Lists the routes of the Placement API with their policy rules, for docs/reference/http.md and `berth
http`.
"""

from typing import Any

from placement_worker.http.access import DEFAULTS
from placement_worker.http.routes import ROUTES


def as_json() -> list[dict[str, Any]]:
    return [
        {
            "address": pattern,
            "method": operation.method,
            "since": _version(pattern, operation.since),
            "until": _version(pattern, operation.until) if operation.ends else "",
            "rule": operation.rule,
            "default": DEFAULTS.get(operation.rule, ""),
            "body": operation.body,
        }
        for pattern, operations in sorted(ROUTES.items())
        for operation in operations
    ]


def markdown() -> str:
    lines = [
        "| address | method | microversion | rule | permitted by default |",
        "|---|---|---|---|---|",
    ]
    for row in as_json():
        version = f"{row['since']} to {row['until']}" if row["until"] else row["since"]
        rule = f"`{row['rule']}`" if row["rule"] else ""
        who = f"`{row['default']}`" if row["default"] else "everybody"
        lines.append(f"| `{row['address']}` | {row['method']} | {version or 'any'} | {rule} | {who} |")
    return "\n".join(lines) + "\n"


def _version(pattern: str, minor: int) -> str:
    return (
        ""
        if pattern.startswith(("/berth/", "/healthz", "/readyz", "/metrics")) or pattern == "/"
        else f"1.{minor}"
    )
