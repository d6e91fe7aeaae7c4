"""The names for filters, weighers and the reading of requests that features may import. Commands import them
too, so this module loads no database code, unlike `scheduler_worker.extension`.
"""

from scheduler_worker.core.demand import Shape, ShapeGroup, UsualShapes, shape_of
from scheduler_worker.core.policy import MoreRules, PlacementProfile
from scheduler_worker.core.request import (
    GroupDraft,
    QuestionDraft,
    RequestReader,
    SpecValue,
    Unreadable,
    nearest,
)
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
