"""Decides whether a guest still belongs to its agent when the agent returns, as far as placement can tell."""

from typing import Literal

from bus.claims import MIGRATION

Ownership = Literal["ours", "kept", "gone", "unknown"]
NOTHING = "nothing"  # the holder has no allocation on the guest's host


def ownership(build_here: bool, holder_type: str | None, kept_otherwise: bool = False) -> Ownership:
    """Return the ownership of a guest, from the allocations of its build and of the attempt's holder on its
    host.

    A guest held by a migration may have been moved and run on another host, so it is left alone until an
    order decides. The same applies if a migration holds it under another attempt number (`kept_otherwise`):
    the number before a rebuild, or a new number that the agent has not received yet. A guest held by a
    clean-up is certainly obsolete. Without any allocation here the guest may have lost its allocation, so
    the answer is unknown.
    """
    if holder_type != NOTHING:
        return "kept" if holder_type == MIGRATION else "gone"
    if build_here:
        return "ours"
    return "kept" if kept_otherwise else "unknown"
