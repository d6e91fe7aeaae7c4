"""Declares the feature waiting."""

from bus.decisions import OF_THE_WHOLE, ReasonTable
from bus.feature import Feature, PageEntry
from features.waiting.settings import WaitingSettings

FEATURE = Feature(
    name="waiting",
    says="lets requests without a host wait for free capacity",
    adds=(
        "messages",
        "scheduler",
        "boot_options",
        "problems",
        "pages",
        "with_moves.messages",
        "with_moves.scheduler",
    ),
    settings=WaitingSettings,
    commands={"request list": "commands", "project share": "shares"},
    command_groups={
        "project share": "Weights of projects while requests are backlogged (features/waiting/fair-share.md)."
    },
    pages={"/waiting": PageEntry("Waiting", "Requests")},
    meters=(
        ("features.waiting.signal", "scheduler"),
        ("features.waiting.start_estimates", "scheduler"),
        ("features.waiting.stored_requests", "scheduler"),
    ),
    reasons=(
        ReasonTable(
            OF_THE_WHOLE,
            {
                "waited": "the request waited for its maximum time without free capacity",
                "cancelled": "the request was cancelled while it waited",
                "crashed": "the processes of several schedulers ended while they evaluated the waiting"
                " request",
                "backlog": "the request was taken from the broker and stored, and was not evaluated yet",
                "line": "the request waits behind requests of the same equivalence class",
            },
        ),
    ),
)
