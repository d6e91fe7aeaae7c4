"""Pages about capacity plans for a cloud without hosts."""

from types import ModuleType
from typing import Any

import pytest

from bus.aggregates import AggregatesFound
from bus.cells import CellsFound
from bus.replication import TreesFound
from features.capacity_plans import plan_additions

KNOWN_HOSTS = ("trees", "aggregates", "cells")  # queries for hosts


def nothing_known() -> dict[str, Any]:
    """Return answers to the queries for hosts: there are none."""
    return {
        "trees": TreesFound(trees=(), more=None),
        "aggregates": AggregatesFound(seen=0, aggregates=()),
        "cells": CellsFound(seen=0, cells=()),
    }


def load_joins(monkeypatch: pytest.MonkeyPatch, *joins: ModuleType) -> None:
    """Let plans be completed by these joins alone."""
    monkeypatch.setattr(plan_additions, "added", lambda kind, name: [join.PART for join in joins])
