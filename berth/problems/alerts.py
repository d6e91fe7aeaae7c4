"""Writes the alerts of Prometheus from the kinds of problems, so that both have the same sentences."""

import json
from collections.abc import Iterable, Iterator

from berth.problems.kinds import KINDS
from berth.problems.reading import parts
from bus.problems import ProblemKind

_HEAD = """\
# Alerts, one for each kind of problem that has a figure. `scripts/made-pages` writes them from the kinds of
# problems (berth/problems/kinds.py, features/*/problems.py). `promtool check rules alerts.yml` checks them.
# The job names are defined in prometheus.yml.
groups:
"""


def alerts_yaml() -> str:
    """Return the rules file with the alerts of the kernel and of all features."""
    groups = [_group("berth", KINDS, "")]
    groups += [_group(f"berth {name}", part.kinds, name) for name, part in parts()]
    return _HEAD + "\n".join(filter(None, groups))


def _group(name: str, kinds: Iterable[ProblemKind], feature: str) -> str:
    rules = "".join(line for kind in kinds for line in _rule(kind, feature))
    return f"  - name: {name}\n    rules:\n{rules}" if rules else ""


def _rule(kind: ProblemKind, feature: str) -> Iterator[str]:
    alert = kind.alert
    if alert is None:
        return
    of_feature = f", feature: {feature}" if feature else ""
    yield f"      - alert: {alert.name}\n"
    yield f"        expr: {_quoted(alert.expr)}\n"
    if alert.after:
        yield f"        for: {alert.after}\n"
    yield f"        labels: {{severity: {kind.severity}{of_feature}}}\n"
    yield "        annotations:\n"
    yield f"          summary: {_quoted(kind.says.format(**alert.values))}\n"
    yield f"          description: {_quoted(kind.consequence)}\n"
    yield f"          what_to_do: {_quoted(kind.do.format(**alert.values))}\n"


def _quoted(text: str) -> str:
    """Return a text as a double-quoted scalar of YAML, of which JSON's strings are a subset."""
    return json.dumps(text, ensure_ascii=False)
