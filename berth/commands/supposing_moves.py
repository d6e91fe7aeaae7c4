"""Asks a scheduler for the result of moves without starting them, and prints it."""

from collections.abc import Sequence

from rich.console import Console

from berth.commands.terminal import printable, write_json
from berth.funnel import funnel
from bus import topics
from bus.delivery.runner import Bus
from bus.moves import MoveRequested
from bus.queries import WhatIfAnswered, WhatIfMoves
from bus.resources import Provider

SECONDS = 30.0  # an answer may take
AT_ONCE = 100  # moves per query: each is evaluated after those before it
_SHOWN = 20  # instances shown per reason


async def supposed(
    bus: Bus, moves: Sequence[MoveRequested], closed: Sequence[Provider] = ()
) -> list[WhatIfAnswered]:
    """Return the result of each move, without the hosts as destinations."""
    ask, roots = bus.asker(topics.WHAT_IF_MOVES, timeout=SECONDS), tuple(host.id for host in closed)
    answers: list[WhatIfAnswered] = []
    for start in range(0, len(moves), AT_ONCE):
        question = WhatIfMoves(moves=tuple(moves[start : start + AT_ONCE]), closed=roots)
        answers += (await ask(question)).answers
    return answers


def why_not(answer: WhatIfAnswered) -> str:
    """In a sentence."""
    code = f"[{answer.decision.code}] " if answer.decision.code else ""
    return f"{code}{printable(answer.refusal) or 'no host would do'}"


def tell_supposed(
    moves: Sequence[MoveRequested], answers: Sequence[WhatIfAnswered], as_json: bool, say: Console
) -> int:
    """1 unless all would move."""
    for request, answer in zip(moves, answers, strict=True):
        if as_json:
            write_json(answer)
            continue
        if answer.fits:
            where = "".join(f" to {printable(there.host)} in cell {there.cell}" for there in answer.placed)
            say.print(f"{request.build}: {request.kind}{where}", style="green", markup=False)
        else:
            say.print(f"{request.build}: no {request.kind}: {why_not(answer)}", style="red", markup=False)
        _picture(answer, say)
    return 0 if all(answer.fits for answer in answers) else 1


def tell_why_they_stay(stay: Sequence[tuple[str, WhatIfAnswered]], say: Console) -> None:
    """Print the instances that stay, grouped by reason, with the decision of the first one."""
    alike: dict[tuple[str, object], list[str]] = {}
    first: dict[tuple[str, object], WhatIfAnswered] = {}
    for build, answer in stay:
        why = (why_not(answer), answer.decision.removals)
        alike.setdefault(why, []).append(build)
        first.setdefault(why, answer)
    for key, builds in alike.items():
        more = f" and {len(builds) - _SHOWN} more" if len(builds) > _SHOWN else ""
        say.print(f"  would stay: {key[0]}", style="red", markup=False)
        say.print(f"    {', '.join(builds[:_SHOWN])}{more}", markup=False)
        _picture(first[key], say)


def _picture(answer: WhatIfAnswered, say: Console) -> None:
    for line in funnel(answer.decision, say.width, answer.placed[0].root if answer.placed else ""):
        line.rstrip()
        say.print(line)
