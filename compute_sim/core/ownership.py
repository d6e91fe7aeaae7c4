"""Whose a guest is when its agent comes back, as far as placement can tell."""

from typing import Literal

from bus.claims import MIGRATION

Ownership = Literal["ours", "kept", "gone", "unknown"]
NOTHING = "nothing"  # the keeper holds nothing of the guest's host


def ownership(build_here: bool, keeper_type: str | None, kept_otherwise: bool = False) -> Ownership:
    """Of a guest whose build holds something of its host, or not; and whose attempt's keeper, of this type,
    does so too.

    A guest whose room is kept for a migration may have been moved to another host already, and run there: it
    is left alone until somebody says what is to become of it. So is one whose room a migration keeps by
    another number (`kept_otherwise`): the one it had before it was rebuilt, when another move had just begun;
    or one it was to be called by, rebuilt or back from a move, and has not heard of yet. One whose clean-up
    has its room is gone for sure; of whom placement has nothing here it may have had something, and lost it.
    """
    if keeper_type != NOTHING:
        return "kept" if keeper_type == MIGRATION else "gone"
    if build_here:
        return "ours"
    return "kept" if kept_otherwise else "unknown"
