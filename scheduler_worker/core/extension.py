"""The names for filters, weighers and the reading of requests that features may import. Commands import them
too, so this module loads no database code, unlike `scheduler_worker.extension`.
"""

from scheduler_worker.core.policy import MoreRules
from scheduler_worker.core.request import (
    GroupDraft,
    QuestionDraft,
    RequestReader,
    SpecValue,
    Unreadable,
    nearest,
)
from scheduler_worker.core.rule import HostFacts, Number, OneHost, Rule, View, Weigher, array_rule

__all__ = [
    "GroupDraft",
    "HostFacts",
    "MoreRules",
    "Number",
    "OneHost",
    "QuestionDraft",
    "RequestReader",
    "Rule",
    "SpecValue",
    "Unreadable",
    "View",
    "Weigher",
    "array_rule",
    "nearest",
]
