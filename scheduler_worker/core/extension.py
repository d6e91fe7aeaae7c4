"""The names for filters, weighers and the reading of requests that features may import. Commands import them
too, so this module loads no database code, unlike `scheduler_worker.extension`.
"""

from scheduler_worker.core.demand import Shape, ShapeGroup, UsualShapes, shape_of
from scheduler_worker.core.policy import MoreRules, PlacementProfile
from scheduler_worker.core.question_draft import GroupDraft, QuestionDraft
from scheduler_worker.core.request import RequestReader, nearest
from scheduler_worker.core.rule import (
    AlteredHost,
    Alternative,
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
