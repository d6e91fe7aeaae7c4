"""Answers `berth why --now` for builds: where their request would be placed now."""

from berth.kit import Cli, ExplainingPart, KnownRecords, recorded_request, write_json
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from features.what_if.commands import show_answer
from features.what_if.messages import WHAT_IF, WhatIf


async def decide_now(cli: Cli, bus: Bus, known: KnownRecords) -> int:
    """Show where the request of a build would be placed now; return 0 if it fits, else 1."""
    request = known.decided.request or recorded_request(known.stands[0])
    if not request.instances:
        raise OperationRefused("the request is not recorded")
    answer = await bus.asker(WHAT_IF)(WhatIf(request=request))
    if cli.as_json:
        write_json(answer)
    else:
        before = known.stands[0].host if known.stands else "nowhere"
        cli.line(f"then {printable(before)}; now:")
        if not known.decided.request:
            flavor = printable(known.stands[0].placed.spec.flavor.name)
            of = "the first build of the request" if len(known.stands) > 1 else "this build alone"
            cli.line(
                f"asked for {of}, with flavor {flavor}, its flavor; or_else is not evaluated again", "dim"
            )
        show_answer(answer, cli)
    return 0 if answer.fits else 1


PART = ExplainingPart(decide_now=decide_now)
