"""The problems of a running berth: what a problem tells an operator, and the kinds of problems.

Each kind is one row: its sentence, consequence, next command and page, and the alert of Prometheus with the
same sentence. Every surface shows problems that these rows made, so a trouble reads the same everywhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from bus.vocabulary import Cause, Seconds, Text, Value

Severity = Literal["critical", "warning"]


class KnownProblem(Value, frozen=True, kw_only=True):
    """A present trouble with one cause, and what an operator can do about it."""

    kind: Annotated[Text, Meta(description="name of the kind of problem, such as dead-letters")]
    severity: Severity
    object: Annotated[Text, Meta(description="what has the problem: a worker, agent, host, queue, ...")]
    says: Annotated[Cause, Meta(description="what is wrong, as a sentence")]
    since: Annotated[Seconds, Meta(description="seconds since 1970; 0: unknown")] = 0.0
    consequence: Annotated[Cause, Meta(description="what does not work meanwhile")]
    do: Annotated[Cause, Meta(description="the next command or step")]
    link: Annotated[Text, Meta(description="address of a page of the control room")] = ""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert of Prometheus for a kind of problem. `values` fill the sentence of the kind with labels and
    values of the expression.
    """

    name: str
    expr: str
    values: Mapping[str, str] = field(default_factory=dict)
    after: str = ""  # how long the expression holds before the alert fires, such as 5m


@dataclass(frozen=True, kw_only=True)
class ProblemKind:
    """A kind of problem. `says`, `do` and `link` contain names of values in braces."""

    name: str
    severity: Severity
    says: str
    consequence: str
    do: str
    link: str = ""
    alert: Alert | None = None  # None: Prometheus has no figure for it

    def problem(self, about: str, since: float = 0.0, **values: object) -> KnownProblem:
        """Return a problem of this kind. `values` fill the sentence, the next step and the link."""
        return KnownProblem(
            kind=self.name,
            severity=self.severity,
            object=about,
            says=self.says.format(**values),
            since=since,
            consequence=self.consequence,
            do=self.do.format(**values),
            link=self.link.format(**values),
        )


def earliest(moments: Iterable[float]) -> float:
    """Return since when a problem with several objects exists: the first known moment; 0 if none is known."""
    return min(filter(None, moments), default=0.0)


def most_severe_first(problems: list[KnownProblem]) -> list[KnownProblem]:
    """Return problems, critical ones first, else in the given order."""
    return sorted(problems, key=lambda problem: problem.severity != "critical")
