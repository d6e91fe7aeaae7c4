"""The form that stops and permits rebalancing, for tests of all pages of the control room."""

from typing import Any

from features.planning.messages import SWITCH_BALANCING

PAGES: dict[str, str] = {}
VALUES: dict[str, str] = {}
FORMS = {"/rebalancing": [("/rebalancing", "rebalance", {"act": act}) for act in ("stop", "permit")]}
FORM_FIELDS: dict[str, dict[str, dict[str, str]]] = {"/rebalancing": {"act": {}}}
ANSWERED = (SWITCH_BALANCING,)


def workers() -> list[Any]:
    return []
