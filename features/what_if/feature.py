"""Declares the feature what_if."""

from bus.feature import Feature, PageEntry

FEATURE = Feature(
    name="what_if",
    says="says where a request would be placed, without a claim",
    adds=(
        "messages",
        "scheduler",
        "explaining",
        "pages",
        "with_preemption.scheduler",
        "with_quotas.scheduler",
        "with_waiting.scheduler",
    ),
    defines=("what_if_part",),
    commands={"request what-if": "commands"},
    exit_codes={"request what-if": "it does not fit"},
    pages={"/what-if": PageEntry("What if", "Requests")},
)
