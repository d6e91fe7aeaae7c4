"""SQL conditions of the partial indexes of builds and moves; the tables are in the migrations.

An index is used only if the query repeats its condition literally.
"""

from collections.abc import Iterable


def status_in(statuses: Iterable[str]) -> str:
    listed = ", ".join(f"'{status}'" for status in statuses)
    return f"status IN ({listed})"


UNSETTLED_STATUSES = ("building", "swapping", "deleting")
UNSETTLED = status_in(UNSETTLED_STATUSES)
OVER = "status IN ('error', 'deleted', 'moved')"
LEFTOVER = "status IN ('active', 'error', 'deleted') AND deadline > 0"
MOVING = "status IN ('moving', 'verifying', 'shelved', 'moved')"
UNDER_WAY = "status = 'open'"  # of a move
ENDED = "status = 'ended'"
LEFT_BEHIND = "leftovers <> ''"
