"""Declares the feature moves."""

from bus.decisions import ReasonTable
from bus.feature import Feature, PageEntry

FEATURE = Feature(
    name="moves",
    says="migrates, resizes, evacuates, shelves and rebuilds instances, also between cells",
    adds=(
        "messages",
        "scheduler",
        "conductor",
        "agent",
        "rest",
        "cell_audit",
        "explaining",
        "problems",
        "pages",
    ),
    defines=("dry_runs",),
    commands={
        "instance move": "commands.moves",
        "instance resize": "commands.moves",
        "instance shelve": "commands.moves",
        "instance unshelve": "commands.moves",
        "instance rebuild": "commands.moves",
        "host drain": "commands.draining",
        "host evacuate": "commands.draining",
        "move": "commands.move_list",
    },
    exit_codes=dict.fromkeys(
        ("host drain", "host evacuate"), "an instance stays, which is listed with the reason"
    ),
    command_groups={
        "move": "Moves of instances from host to host (features/moves/README.md): moves in progress, and the"
        " results of ended ones. `berth instance move`, `resize`, `shelve`, `evacuate`, `drain` request them."
    },
    pages={"/moves": PageEntry("Moves", "Instances")},
    meters=(("features.moves.placing", "scheduler"), ("features.moves.cell_moves", "conductor")),
    reasons=(
        ReasonTable(
            "Of moves",
            {
                "unknown": "no cell has a record of the instance",
                "no_conductor": "the conductor of the cell did not answer or act on the move",
                "status": "the instance is not active, or for an unshelve not shelved; or it has ended"
                " meanwhile",
                "moving": "the instance is in another move, or another move of it waits for capacity",
                "held": "its allocations in placement differ from its cell's records",
                "not_fenced": "evacuate: the host is not forced down, so the guest may still run",
                "source_down": "the host is forced down: the instance can only be evacuated",
                "bare_metal": "the instance is on a bare-metal node",
                "same_host": "the instance is on the wanted host already",
                "not_on_source": "the instance is not on the expected host (`source`): it was moved"
                " meanwhile",
                "image": "rebuild: its host does not satisfy the new image",
            },
            "A move that does not begin (`move.refused`) has one of these, `waited`, `cancelled` or `crashed`"
            "\nas above, or the code of the decision that found no host for it.",
            "it does not move because",
        ),
    ),
)
