"""The facts that `berth openstack check` observes, and its findings."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from berth.kit import PlacementContents
from features.nova.conf import NovaSchedulerConf
from features.nova.core.facts import NovaFacts
from features.nova.oslo.topic import TopicQueue

Level = Literal["error", "warning", "note"]
Step = Literal["import", "placement", "scheduler"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")

SHOWN = 5  # names in one finding


class TakeoverFinding(msgspec.Struct, frozen=True):
    """A finding about a step of the take-over: the fact, its consequence, and the command that repairs it."""

    level: Level
    about: str
    says: str
    means: str = ""
    do: str = ""


class ChoiceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """berth's filters and weighers, and its settings that correspond to options of nova-scheduler."""

    filters: tuple[str, ...] = ()
    weighers: dict[str, float] = {}  # name → multiplier
    subset: int = 1
    limits_io_ops: bool = False  # the filter io_ops limits builds of Nova, too
    tenant_aggregates: str = "off"
    isolate_aggregates: bool = False
    image_traits: tuple[str, ...] = ()


class BridgeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of berth that `berth openstack check` judges."""

    has_database: bool = True
    has_amqp: bool = True
    has_fallback: bool = False
    wait: float = 0.0
    long_rpc_timeout: int = 1800  # option of Nova
    auth: str = "keystone"  # setting placement_auth
    choice: ChoiceFacts = ChoiceFacts()
    # options of nova-scheduler; None: nova_conf is not set
    scheduler: NovaSchedulerConf | None = None


class TakeoverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The observed state of Nova, Placement and berth from which the findings are derived."""

    step: Step | None = None  # None: all steps
    is_done: bool = False  # the step has been taken
    bridge: BridgeFacts = BridgeFacts()
    nova: NovaFacts = msgspec.field(default_factory=NovaFacts)
    place: str = "placement"  # URL of the Placement that was read
    placement: PlacementContents | None = None
    placement_problem: str = ""
    queue: TopicQueue | None = None  # None: the setting nova_amqp_url is empty

    def is_checking(self, *steps: Step) -> bool:
        """Return True if the operator checks one of the given take-over steps, or all (`step` is None)."""
        return self.step is None or self.step in steps


def exit_code(findings: Iterable[TakeoverFinding]) -> int:
    """Return `berth openstack check`'s exit code: 0 without errors or warnings, 1 with warnings, 2 with
    errors.
    """
    levels = {finding.level for finding in findings}
    return 2 if "error" in levels else 1 if "warning" in levels else 0


def named(names: Sequence[str]) -> str:
    """Return the first SHOWN names as text, followed by the number of the other names."""
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN:,} more" if len(names) > SHOWN else shown
