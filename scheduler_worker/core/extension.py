"""The names for reading flavors that features may import. Commands import them too, so this module loads no
database code, unlike `scheduler_worker.extension`.
"""

from scheduler_worker.core.request import (
    FlavorReader,
    GroupDraft,
    QuestionDraft,
    SpecValue,
    Unreadable,
    nearest,
)

__all__ = ["FlavorReader", "GroupDraft", "QuestionDraft", "SpecValue", "Unreadable", "nearest"]
