"""Compares failover headroom before and after the claims of a what-if question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from features.headroom.messages import HeadroomFound

_STATES = {"kept": "would still be kept", "ends": "would end", "lost": "is already not kept"}


@dataclass(frozen=True)
class HeadroomAfter:
    """A failover headroom after hypothetical claims: `kept`, `ends` with the claims, or `lost` before them.

    `reasons`: why no slots suffice, after the claims (`ends`) or before them (`lost`).
    """

    levels: Sequence[str]
    state: Literal["kept", "ends", "lost"]
    reasons: Sequence[str] = ()

    def __str__(self) -> str:
        text = f"failover headroom for any one {' or '.join(self.levels)} {_STATES[self.state]}"
        more = f" (and {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
        return f"{text}: {self.reasons[0]}{more}" if self.reasons else text


def headroom_after(found: HeadroomFound) -> list[HeadroomAfter]:
    """Return what the claims of the query would do to each headroom."""
    after = []
    for each in found.headrooms:
        levels = each.reservation.levels
        if each.lacking:
            after.append(HeadroomAfter(levels, "lost", each.lacking))
        elif each.lacking_then:
            after.append(HeadroomAfter(levels, "ends", each.lacking_then))
        else:
            after.append(HeadroomAfter(levels, "kept"))
    return after
