"""Adds to the output of `berth request what-if` whether failover headroom would still be kept."""

from berth.kit import AnswerAddition
from bus.delivery.runner import Bus
from bus.masking import printable
from control_room.kit import Reply, query
from features.headroom.after_claims import headroom_after
from features.headroom.messages import HEADROOM, FindHeadroom, HeadroomFound
from features.what_if.messages import WhatIfAnswered
from features.what_if.parts import WhatIfPart

SECONDS = 30.0  # time limit for placement's answer


async def additions(bus: Bus, answer: WhatIfAnswered) -> AnswerAddition:
    """Return what the claims of a what-if answer would do to each failover headroom."""
    if not answer.claims:
        return shown(Reply("placement", HeadroomFound(headrooms=())))
    find = FindHeadroom(claims=tuple(answer.claims))
    return shown(await query("placement", bus.asker(HEADROOM, SECONDS), find))


def shown(reply: Reply[HeadroomFound]) -> AnswerAddition:
    """Return whether each failover headroom would still be kept; no lines if none is set."""
    if reply.answer is None:
        line = f"  failover headroom afterwards is unknown: placement: {reply.problem}"
        return AnswerAddition([(line, "yellow")], {"headroom": None})
    after = headroom_after(reply.answer)
    lines = [(f"  {printable(str(each))}", "" if each.state == "kept" else "yellow") for each in after]
    return AnswerAddition(lines, {"headroom": after})


PART = WhatIfPart(additions=additions)
