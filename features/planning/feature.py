"""Declares the feature planning."""

from bus.decisions import ReasonTable
from bus.feature import Feature

FEATURE = Feature(
    name="planning",
    says="plans moves that make room, balance hosts or empty them",
    adds=(
        "messages",
        "scheduler",
        "pages",
        "dry_runs",
        "what_if_part",
        "with_groups.scheduler",
        "with_reservations.made_room",
    ),
    defines=("made_room",),
    commands={"move make-room": "make_room_command", "move rebalance": "rebalance_command"},
    needs=("moves", "what_if"),
    meters=(
        ("features.planning.room_planning", "scheduler"),
        ("features.planning.balance_planning", "scheduler"),
    ),
    reasons=(
        ReasonTable(
            "Of plans",
            {
                "no_host": "no host would fit the flavor, even if it were empty; or no further host may get"
                " a build"
                " because of a server group or topology",
                "immovable": "on every host that would fit it, too much capacity is held by what cannot move",
                "budget": "more moves are necessary than the budget permits",
                "destinations": "the instances that would have to leave fit on no other host",
                "changing": "hosts refused every plan that was tried, or changed meanwhile",
                "taken": "another plan has closed one of the hosts",
                "opened": "one of the closed hosts was opened by an operator",
                "unreleased": "agents have not reported the destruction of moved guests in time",
                "unreserved": "the client that made room has not reserved the capacity in time",
            },
            "A plan that makes room for builds ([making room](../features/planning/README.md))"
            " has one of these if not all fit.",
            "not all builds fit because",
        ),
    ),
)
