"""The problem that many moves end in error, which only the rates of Prometheus show."""

from berth.kit import ProblemsPart
from bus.problems import Alert, ProblemKind

MOVES_FAIL = ProblemKind(
    name="moves-fail",
    severity="warning",
    says="More than a tenth of the moves of cell {cell} end in error.",
    consequence="Instances stay where their moves left them; `berth move show` shows the host of each"
    " instance.",
    do="`berth move list --all` lists them with their causes; check whether they have a host in common.",
    link="/moves",
    alert=Alert(
        name="BerthMovesFail",
        expr=(
            'sum by (cell) (rate(berth_moves_ended_total{end="error"}[30m]))'
            " > 0.1 * sum by (cell) (rate(berth_moves_ended_total[30m]))"
        ),
        after="15m",
        values={"cell": "{{ $labels.cell }}"},
    ),
)

PART = ProblemsPart(kinds=(MOVES_FAIL,))
