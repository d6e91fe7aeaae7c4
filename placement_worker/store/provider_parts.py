"""SQL that reads the inventories, traits and aggregates of a provider `p`, each as one JSON column."""

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from math import isnan
from typing import NamedTuple

import msgspec

from bus.reports import Inventory
from bus.resources import Inventories
from bus.vocabulary import MAX_INT, MAX_RATIO

INVENTORIES = """(
    SELECT CAST(json_agg(json_build_object(
        'class_id', i.resource_class_id, 'total', i.total, 'reserved', i.reserved, 'min_unit', i.min_unit,
        'max_unit', i.max_unit, 'step_size', i.step_size, 'allocation_ratio', EXACTLY(i.allocation_ratio),
        'used', i.used, 'withheld', i.withheld, 'reported', CASE WHEN i.reported THEN 1 ELSE 0 END
    )) AS text)
    FROM inventories i WHERE i.resource_provider_id = p.id
)"""


def _numbers(table: str, column: str) -> str:
    return f"""(
        SELECT CAST(json_build_object(
            'reported', json_agg(t.{column}) FILTER (WHERE t.reported),
            'unreported', json_agg(t.{column}) FILTER (WHERE NOT t.reported)
        ) AS text)
        FROM {table} t WHERE t.resource_provider_id = p.id
    )"""


TRAITS = _numbers("resource_provider_traits", "trait_id")
AGGREGATES = _numbers("resource_provider_aggregates", "aggregate_id")


class StoredInventory(msgspec.Struct, frozen=True):
    class_id: int
    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: str  # a text, so that no digit is lost
    used: int
    withheld: int
    reported: int  # 1: added by a report of the agent; 0: by an operator


class StoredNames(msgspec.Struct, frozen=True):
    """The ids of a provider's traits or aggregates, in two lists: added by its agent, or by operators."""

    reported: tuple[int, ...] | None = None  # added by a report of the agent
    unreported: tuple[int, ...] | None = None  # added by an operator

    @property
    def all(self) -> tuple[int, ...]:
        return (*(self.reported or ()), *(self.unreported or ()))


class Stocks(NamedTuple):
    """A provider's inventories by resource class, with usage, withheld amounts, and the resource classes that
    agents reported."""

    inventories: Inventories
    used: dict[str, int]
    withheld: dict[str, int]
    reported: list[str]


_decode_inventories = msgspec.json.Decoder(tuple[StoredInventory, ...]).decode
_decode_names = msgspec.json.Decoder(StoredNames).decode


def stored_inventories(column: str | None) -> tuple[StoredInventory, ...]:
    return _decode_inventories(column) if column else ()


@cache
def stored_names(column: str | None) -> StoredNames:
    """Decode the JSON column of a provider's traits or aggregates; cached, as most hosts have the same."""
    return _decode_names(column) if column else StoredNames()


def stocks_of(rows: Iterable[StoredInventory], classes: Mapping[int, str]) -> Stocks:
    found = Stocks({}, {}, {}, [])
    for row in rows:
        name = classes[row.class_id]
        found.inventories[name] = _inventory(
            row.total, row.reserved, row.min_unit, row.max_unit, row.step_size, row.allocation_ratio
        )
        found.used[name] = row.used
        if row.withheld:
            found.withheld[name] = row.withheld
        if row.reported:
            found.reported.append(name)
    return found


@lru_cache(maxsize=20_000)
def _inventory(
    total: int, reserved: int, min_unit: int, max_unit: int, step_size: int, allocation_ratio: str
) -> Inventory:
    ratio = float(allocation_ratio)
    return Inventory(
        total=_within(total, 0),
        reserved=_within(reserved, 0),
        min_unit=_within(min_unit, 1),
        max_unit=_within(max_unit, 1),
        step_size=_within(step_size, 1),
        allocation_ratio=0.0 if isnan(ratio) else max(-MAX_RATIO, min(ratio, MAX_RATIO)),
    )


def _within(amount: int, least: int) -> int:
    return max(least, min(amount, MAX_INT))
