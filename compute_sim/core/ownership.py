"""Decides which guests an agent must run."""

from typing import Literal

from bus.claims import MIGRATION

GuestState = Literal["arriving", "running", "stopped"]
Ownership = Literal["ours", "kept", "gone", "unknown"]
NOTHING = "nothing"  # the holder has no allocation on the guest's host


def ownership(build_here: bool, holder_type: str | None, kept_otherwise: bool = False) -> Ownership:
    """Return whether an agent must run (`ours`), stop (`kept`) or destroy (`gone`) a guest, or `unknown`.

    Consumers with allocations on the guest's host decide, in this sequence: the holder consumer of the
    guest's attempt (`holder_type`: its type, or NOTHING): `kept` for the type MIGRATION, else `gone`; the
    build (`build_here`): `ours`; a MIGRATION holder of another attempt (`kept_otherwise`): `kept`.
    """
    if holder_type != NOTHING:
        return "kept" if holder_type == MIGRATION else "gone"
    if build_here:
        return "ours"
    return "kept" if kept_otherwise else "unknown"
