"""The page of what-if questions: whether a request would fit now, where, how many more, and what would change
it. The page claims nothing.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from bus.errors import OperationRefused
from bus.queries import WhatIf, WhatIfAnswered
from control_room.core.builds import DecisionShown, Scores, shown
from control_room.core.what_if_form import FIELDS, MORE_FIELDS, InvalidForm, form_texts, parse_request
from control_room.pages.frame import PageGroup
from control_room.queries import query


class WhatIfPages(PageGroup):
    async def page(self, request: Request) -> Response:
        texts = form_texts(request.query_params)
        answer: WhatIfAnswered | None = None
        notes: Sequence[str] = ()
        problems: Sequence[str] = ()
        try:
            wanted = parse_request(texts)
            if wanted is not None:
                build, notes = await self._context.operations.what_if_request(wanted)
                what_if = WhatIf(request=build, room=True)
                reply = await query("the scheduler", self._context.queries.what_if, what_if)
                answer = reply.answer
                if answer is None:
                    problems = (f"The scheduler does not answer: {reply.problem}.",)
        except InvalidForm as invalid:
            problems = invalid.args
        except OperationRefused as refused:
            problems = (str(refused),)
        return self._renderer.page(
            request,
            "what_if.html",
            fields=FIELDS,
            more_fields=MORE_FIELDS,
            texts=texts,
            more=any(texts[field.name] for field in MORE_FIELDS),
            problems=problems,
            notes=notes,
            answer=answer,
            decision=shown_answer(answer, self._context.operations.scores) if answer else None,
        )


def shown_answer(answer: WhatIfAnswered, scores: Scores) -> DecisionShown:
    return shown(answer.decision, scores, answer.placed[0].root if answer.placed else "")
