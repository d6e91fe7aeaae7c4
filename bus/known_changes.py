"""What a memory of placement's in another process asks for when it was not told: the changes it missed."""

from typing import Annotated

from msgspec import Meta

from bus.messages import PlacementChanged
from bus.vocabulary import LongList, Message, Ordinal


class FindChanges(Message, frozen=True, kw_only=True):
    """What was committed after this number: how a listener fills a gap, or learns that nothing was lost."""

    after: Ordinal
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class ChangesFound(Message, frozen=True, kw_only=True):
    changes: LongList[PlacementChanged]  # in order
    oldest: Ordinal  # that is kept: who needs one before it reads all anew; 0: none is kept
    last: Ordinal  # that was committed
