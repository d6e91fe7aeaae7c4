"""What-if questions about moves of a small cloud."""

from features.moves.messages import MoveRequested
from features.moves.tests.support.moving_clouds import MovingCloud, root
from features.planning.joint_rules import JointPlacing, JointPlacingRules
from features.planning.messages import WhatIfMoves
from features.planning.supposed_moves import WhatIfsOfMoves
from features.what_if.messages import WhatIfAnswered
from features.what_if.questions import WhatIfs


async def supposed(
    cloud: MovingCloud,
    *moves: MoveRequested,
    closed: tuple[int, ...] = (),
    joint: tuple[JointPlacingRules, ...] = (),
) -> list[WhatIfAnswered]:
    """Return the answers for moves while numbered hosts are closed; `joint`: the rules of joins."""
    what_ifs = WhatIfsOfMoves(WhatIfs(cloud.scheduler), cloud.moves, JointPlacing([*joint]))
    asked = WhatIfMoves(moves=moves, closed=tuple(root(number) for number in closed))
    return list((await what_ifs.answer(asked)).answers)


def where(answers: list[WhatIfAnswered]) -> list[str]:
    """Return the host of each answer, or the reason code of its decision."""
    return [answer.placed[0].host if answer.placed else answer.decision.code for answer in answers]
