"""The stages of a load test: boots a second, each for a time, such as `10/s:1m,100/s:1m`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from berth.settings import BadSetting
from bus.vocabulary import seconds_of

_STAGE = re.compile(r"(\d+(?:\.\d+)?)/s:(\d+[smh])")
MOST_BOOTS = 1_000_000


@dataclass(frozen=True)
class LoadStage:
    """So many boots a second, for so many seconds."""

    rate: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.rate:g}/s for {self.seconds:g} s"


Stages = Sequence[LoadStage]


def stages_given(text: str) -> tuple[LoadStage, ...]:
    """Return the stages that the option --stages names; raise BadSetting for another text."""
    found = []
    for part in text.split(",") if text else ():
        if (stage := _STAGE.fullmatch(part.strip())) is None or not (
            float(stage[1]) and seconds_of(stage[2])
        ):
            raise BadSetting(f"--stages {part.strip()!r}: a stage is RATE/s:TIME, such as 10/s:30s")
        found.append(LoadStage(float(stage[1]), seconds_of(stage[2])))
    if boots_of(found) > MOST_BOOTS:
        raise BadSetting(f"--stages: they have {boots_of(found)} boots; a load has at most {MOST_BOOTS}")
    return tuple(found)


def boots_of(stages: Stages) -> int:
    """Return the number of boots of all stages together."""
    return round(sum(stage.rate * stage.seconds for stage in stages))


def due(stages: Stages, seconds: float) -> int:
    """Return how many boots are requested in the first `seconds` of the load; the first at once."""
    found = 0.0
    for stage in stages:
        found += stage.rate * min(max(seconds, 0.0), stage.seconds)
        seconds -= stage.seconds
    return min(int(found) + 1, boots_of(stages))


def planned(stages: Stages, number: int) -> tuple[float, int]:
    """Return the second of the load at which a boot is due, counted from 0, and the position of its stage."""
    began, before = 0.0, 0.0
    for position, stage in enumerate(stages):
        boots = stage.rate * stage.seconds
        if number < before + boots or position == len(stages) - 1:
            return began + (number - before) / stage.rate, position
        began, before = began + stage.seconds, before + boots
    raise ValueError("a load has at least one stage")
