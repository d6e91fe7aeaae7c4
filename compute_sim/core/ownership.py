"""Whose a guest is when its agent comes back, as far as placement can tell."""

from typing import Literal

from bus.claims import MIGRATION

Ownership = Literal["ours", "kept", "gone"]
NOTHING = "nothing"  # the keeper holds nothing of the guest's host


def ownership(build_here: bool, keeper_type: str | None, kept_before: bool = False) -> Ownership:
    """Of a guest whose build holds something of its host, or not; and whose attempt's keeper, of this type,
    does so too.

    A guest whose room is kept for a migration may have been moved to another host already, and run there: it
    is left alone until somebody says what is to become of it. So is one whose room a migration keeps by the
    number it had before (`kept_before`): it was rebuilt when another move of it had just begun.
    """
    if keeper_type != NOTHING:
        return "kept" if keeper_type == MIGRATION else "gone"
    if build_here:
        return "ours"
    return "kept" if kept_before else "gone"
