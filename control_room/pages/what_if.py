"""What-if: whether a request would fit now, where, how many more, and what would change it. Nothing is
claimed.
"""

from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from bus.queries import WhatIf, WhatIfAnswered
from control_room.core.decisions import DecisionShown, shown
from control_room.core.what_if_form import FIELDS, MORE_FIELDS, BadForm, said_in, supposed
from control_room.operations import ActRefused
from control_room.pages.frame import Frame, OpenRoom
from control_room.queries import heard


class WhatIfPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame

    async def page(self, request: Request) -> Response:
        said = said_in(request.query_params)
        answer: WhatIfAnswered | None = None
        notes: Sequence[str] = ()
        problems: Sequence[str] = ()
        try:
            wanted = supposed(said)
            if wanted is not None:
                asked, notes = await self._room.means.what_if_request(wanted)
                question = WhatIf(request=asked, room=True)
                reply = await heard("the scheduler", self._room.questions.what_if, question)
                answer = reply.answer
                if answer is None:
                    problems = (f"The scheduler does not answer: {reply.problem}.",)
        except BadForm as bad:
            problems = bad.args
        except ActRefused as refused:
            problems = (str(refused),)
        return self._frame.page(
            request,
            "what_if.html",
            fields=FIELDS,
            more_fields=MORE_FIELDS,
            said=said,
            more=any(said[field.name] for field in MORE_FIELDS),
            problems=problems,
            notes=notes,
            answer=answer,
            helps=answer.decision.helps if answer else (),
            decision=self._decision(answer) if answer else None,
        )

    def _decision(self, answer: WhatIfAnswered) -> DecisionShown:
        """Return the decision without its remedies, which the page shows above."""
        return replace(shown(answer.decision, self._room.means.scores, _first(answer)), helps=())


def _first(answer: WhatIfAnswered) -> str:
    return answer.placed[0].root if answer.placed else ""
