"""The extension point of planning for instances whose hosts depend on each other, as in a server group."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.candidates import Ints
from bus.vocabulary import Id
from features.moves.core.start import MoveStart
from features.planning.core.room_demand import DomainLimit
from scheduler_worker.extension import Alternative, Choosing

# A planned move, and the roots of the host that its instance gets.
Moved = tuple[MoveStart, tuple[Id, ...]]


class JointPlacingRules:
    """The rules of a feature for instances that it places jointly. This class has those of instances that do
    not depend on others; a join derives its rules from it.
    """

    def concerns(self, alternative: Alternative) -> bool:
        """Return whether the hosts of an alternative's instances depend on other instances."""
        return False

    def apart(self, alternative: Alternative) -> Id | None:
        """Return a key; instances with equal keys must be on different hosts. None: no such rule."""
        return None

    def on_one_host(self, alternative: Alternative) -> bool:
        """Return whether all instances of a request must be on one host."""
        return False

    def domains(
        self, alternative: Alternative, choosing: Choosing
    ) -> tuple[Sequence[DomainLimit], Ints | None]:
        """Return the limits of domains for builds, and for each host the domain if all must share one."""
        return (), None

    def after(self, moved: Sequence[Moved], alternative: Alternative) -> Alternative:
        """Return an alternative as it is judged after planned moves of other instances."""
        return alternative


_ALONE = JointPlacingRules()


@dataclass(eq=False)
class JointPlacing:
    """The rules that joins of planning have added."""

    rules: list[JointPlacingRules] = field(default_factory=list)

    def of(self, alternative: Alternative) -> JointPlacingRules:
        """Return the rules of a feature that concern the alternative; without any, each instance is placed
        alone.
        """
        return next((rules for rules in self.rules if rules.concerns(alternative)), _ALONE)

    def concerns(self, alternative: Alternative) -> bool:
        """Return whether the hosts of the instances depend on each other."""
        return self.of(alternative) is not _ALONE
