"""Names `berth move make-room` in the output of `berth request what-if` if moves may help."""

from berth.kit import AnswerAddition
from bus.delivery.runner import Bus
from features.planning.messages import MOVES_MAY_HELP
from features.what_if.messages import WhatIfAnswered
from features.what_if.parts import WhatIfPart


async def additions(bus: Bus, answer: WhatIfAnswered) -> AnswerAddition:
    """Return the hint that moves may help, if the request does not fit for a reason that moves can remove."""
    if answer.fits or answer.decision.code not in MOVES_MAY_HELP:
        return AnswerAddition()
    line = "  `berth move make-room --dry-run` with these options shows whether moves would help"
    return AnswerAddition([(line, "dim")])


PART = WhatIfPart(additions=additions)
