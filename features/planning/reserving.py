"""The reservation of capacity that a plan of moves has made free."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

MODULE = "made_room"  # of the join, with its `MadeRoom`


@dataclass(frozen=True)
class MadeRoom:
    """`reserve`: reserves the capacity of a request on some hosts. Returns the reservation, and why it does
    not hold all of the capacity.
    """

    reserve: Callable[..., Awaitable[tuple[Any, str]]]
