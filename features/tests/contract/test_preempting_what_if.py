"""What-if answers name the victims of a gang."""

from msgspec import structs

from features.preemption.messages import PriorityClass
from features.preemption.rule import victims_of
from features.preemption.victim_search import VictimSearch
from features.tests.support.full_cloud import RACKS, FullCloud, a_gang
from features.tests.support.full_cloud import cloud as cloud
from features.what_if.messages import WhatIf
from features.what_if.questions import WhatIfs
from features.what_if.with_preemption.scheduler import SupposedPreemption


async def test_a_what_if_question_preempts_only_what_is_left_of_the_projects_budget(cloud: FullCloud) -> None:
    await cloud.fill({host: [(8, 1)] for host in RACKS})
    cloud.classes.by_value = {7: PriorityClass(name="high", value=7, preempts=True, budget=2)}
    [victims] = cloud.scheduler.fallbacks
    assert isinstance(victims, VictimSearch)
    what_ifs = WhatIfs(cloud.scheduler)
    what_ifs.steps.append(SupposedPreemption(what_ifs, victims).suppose)
    question = WhatIf(request=a_gang((2, 8)), replacing=True)
    answer = await what_ifs.answer(structs.replace(question, claims=True))
    assert answer.fits and len(answer.replaced) == 2
    assert [victim.build for victim in victims_of(answer.claims)] == [each.build for each in answer.replaced]
    await cloud.place(a_gang((1, 8)))
    answer = await what_ifs.answer(question)
    [note] = answer.notes
    assert not answer.fits and "the project's budget of 2 in one hour, 1 used" in note
    answer = await what_ifs.answer(question, names_others=False)
    assert not answer.fits and not answer.notes
