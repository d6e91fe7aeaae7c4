"""A finding of `berth doctor`."""

from typing import Literal

import msgspec

Level = Literal["fine", "warning", "broken"]


class Finding(msgspec.Struct, frozen=True):
    """The judgement on a part of berth or its services, and what to do about it."""

    level: Level
    about: str
    says: str
    do: str = ""
