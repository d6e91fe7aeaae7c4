"""The names for filters, weighers and the reading of requests that features may import. Commands import them
too, so this module loads no database code, unlike `scheduler_worker.extension`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler_worker.core.demand import Shape, ShapeGroup, UsualShapes, shape_of
from scheduler_worker.core.policy import MoreRules, PlacementProfile
from scheduler_worker.core.question_draft import GroupDraft, QuestionDraft
from scheduler_worker.core.request import RequestReader, nearest
from scheduler_worker.core.rule import (
    AlteredHost,
    Alternative,
    ExpectedValues,
    Held,
    HostFacts,
    Number,
    OneHost,
    Rule,
    UsableCapacity,
    View,
    WayValues,
    Weigher,
    array_rule,
)
from scheduler_worker.core.spec_values import SpecValue, Unreadable


@dataclass(frozen=True, kw_only=True)
class RulesPart:
    """The value PART of a feature's module `filters`. `options` returns the options of its filters and
    weighers that follow from the settings of the feature.
    """

    filters: tuple[MoreRules, ...] = ()
    weighers: tuple[MoreRules, ...] = ()
    options: Callable[[Any], Mapping[str, Mapping[str, Any]]] = lambda settings: {}


@dataclass(frozen=True)
class RequestReaderPart:
    """The value PART of a feature's module `request_reader`. `reader` gets the settings of the feature, or
    None in a client, which does not know them.
    """

    reader: Callable[[Any], RequestReader]
