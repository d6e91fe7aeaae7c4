"""All codes of decisions as tables: for docs/reasons.md and for programs."""

from collections.abc import Mapping

from bus.decisions import CONSTRAINTS, ENDS, MOVES

# heading, what leads to the table, its second column, the codes
_TABLES: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    ("Of hosts", "", "the host is not had because", CONSTRAINTS),
    (
        "Of the whole",
        "A decision has the code of the constraint that left no host, or else one of the following.",
        "there is no host because",
        ENDS,
    ),
    (
        "Of moves",
        "A move that does not begin (`move.refused`) has one of these, `waited` or `cancelled` as\n"
        "above, or the code of the decision that found no host for it.",
        "it does not move because",
        MOVES,
    ),
)


def as_json() -> list[dict[str, str]]:
    return [
        {"code": code, "of": title.removeprefix("Of "), "says": says}
        for title, _, _, codes in _TABLES
        for code, says in codes.items()
    ]


def markdown() -> str:
    parts = []
    for title, lead, head, codes in _TABLES:
        lines = [f"### {title}", "", *([lead, ""] if lead else []), f"| code | {head} |", "|---|---|"]
        parts.append("\n".join([*lines, *(f"| `{code}` | {says} |" for code, says in codes.items())]))
    return "\n\n".join(parts) + "\n"
