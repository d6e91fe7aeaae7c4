"""What the bare-metal agent does next with a node: decided from what Ironic says of it, and nothing else.

An agent that was killed knows no more than this, so all it must not forget is written into Ironic: whose the
node is (`instance_uuid`), for which attempt (`instance_info`), and which attempts it has seen (`extra`), all
three in one write. An attempt that was seen, and no longer has the node, is over there: an order for it that
comes late finds the node closed to it.

    build:    available → Claim → Deploy → ... → active: built
                ours and deploy failed → Close(why) → Undeploy or LetGo → no longer ours: failed(why)
                anybody else's, in maintenance, in any other state: failed
                its deploy interface needs an image and none is named: failed, and no other node is tried
    destroy:  ours → Undeploy, LetGo or Abort → no longer ours: destroyed
                never seen: Close, if the node may be written to → destroyed
"""

from dataclasses import dataclass
from typing import Literal

from bus.messages import BuildOrdered, DestroyOrdered
from bus.requests import Flavor
from ironic_sync.agent.core.instance import classes_of, image_lacking
from ironic_sync.agent.core.node import MetalNode
from ironic_sync.core.rule import Invalid, class_of
from ironic_sync.core.states import DEPLOYED, DEPLOYING, FREE, HELD, UNDEPLOYABLE, UNUSED, WRITABLE

Order = BuildOrdered | DestroyOrdered

UNDONE = "what was begun on the node has been undone"


# Steps


@dataclass(frozen=True, slots=True)
class Claim:
    """Make it ours."""


@dataclass(frozen=True, slots=True)
class Deploy:
    """It is ours: start."""


@dataclass(frozen=True, slots=True)
class Close:
    """Write down that this attempt is over here: with a cause before anything is undone."""

    cause: str


@dataclass(frozen=True, slots=True)
class Undeploy:
    """Have Ironic tear it down; it stops being ours when that is done, and is cleaned then."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """Nothing is deployed: take our name off it."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Somebody has it held half-way: have that fail."""


@dataclass(frozen=True, slots=True)
class Wait:
    why: str


@dataclass(frozen=True, slots=True)
class Say:
    outcome: Literal["built", "failed", "destroyed"]
    cause: str = ""
    retry: bool = True  # failed: another node may do better
    leftover: bool = False  # failed: what was deployed may be there still


Step = Claim | Deploy | Close | Undeploy | LetGo | Abort | Wait | Say


def next_step(node: MetalNode | None, order: Order, *, given_up: str = "", writes: bool = True) -> Step:
    """`given_up`: why this attempt can only fail. Not `writes`: what we remember cannot be written there."""
    if isinstance(order, BuildOrdered):
        return _toward_built(node, order, given_up, writes)
    return _toward_gone(node, order, writes)


def _toward_built(node: MetalNode | None, order: BuildOrdered, given_up: str, writes: bool) -> Step:
    if node is None:
        return Say("failed", "Ironic has no such node")
    held, last = node.attempt_of(order.build), node.last(order.build)
    if order.adopt:  # whatever it finds, nothing is done to the node
        there = held is not None and node.provision_state in DEPLOYED
        return Say("built") if there else Say("failed", f"not found there: the node is {_told(node)}")
    if held is None:
        if last.attempt > order.attempt:
            return Say("destroyed")
        why = given_up
        if last.attempt == order.attempt:
            why = why or last.cause or UNDONE
        why = why or _unusable(node, order.spec.flavor)
        if why:
            return Say("failed", why, leftover=_not_torn_down(node, order))
        lacking = image_lacking(node, order.spec)
        return Say("failed", lacking, retry=False) if lacking else Claim()
    if held > order.attempt:
        return Say("destroyed")
    if 0 < held < order.attempt:
        return Wait("an earlier attempt is still on it")
    if last.attempt == order.attempt and last.cause:
        return _clear(node)
    why = given_up or _broken(node)
    if why:
        return Close(why) if writes and node.provision_state in WRITABLE else _clear(node)
    if node.provision_state in FREE:
        return Deploy()
    if node.provision_state in DEPLOYED:
        return Say("built")
    return Wait(f"it is {node.provision_state}")


def _toward_gone(node: MetalNode | None, order: DestroyOrdered, writes: bool) -> Step:
    if node is None:
        return Say("destroyed")
    held, last = node.attempt_of(order.build), node.last(order.build)
    if held is not None and held <= order.attempt and not 0 < held <= order.above:
        return _clear(node)
    if node.instance_uuid is not None:
        return Say("destroyed")
    if _not_torn_down(node, order):
        return Undeploy() if node.provision_state == "error" else Wait("it is torn down once more")
    if last.attempt < order.attempt and writes and node.provision_state in UNUSED:
        return Close("")
    return Say("destroyed")


def _told(node: MetalNode) -> str:
    return f"{node.provision_state}, with instance {node.instance_uuid or 'none'}"


def _not_torn_down(node: MetalNode, order: Order) -> bool:
    """Ironic could not tear it down, and has taken our name off it all the same."""
    last_here = bool(node.seen) and node.seen[-1].build == order.build and node.instance_uuid is None
    return last_here and node.provision_state in ("error", "deleting")


def _clear(node: MetalNode) -> Step:
    """The way from a node that is ours to one that is not."""
    state = node.provision_state
    if state in UNDEPLOYABLE:
        return Undeploy()
    if state in UNUSED:
        return LetGo()
    return Abort() if state in HELD else Wait(f"it is {state}")


def _unusable(node: MetalNode, flavor: Flavor) -> str:
    """Why nothing can be deployed on a node that is not ours yet; empty when it can."""
    if node.instance_uuid is not None:
        return f"the node is taken: it has the instance {node.instance_uuid}"
    if node.maintenance:
        return f"the node is in maintenance: {node.maintenance_reason or 'no reason is given'}"
    if node.provision_state not in FREE:
        return f"the node is {node.provision_state}, not available"
    asked = classes_of(flavor)
    if asked and (has := _class_of(node)) not in asked:
        return f"the node is of the class {has or 'none'}, not of {' or '.join(asked)}"
    return ""


def _broken(node: MetalNode) -> str:
    """Why the deploy of a node that is ours has failed, or cannot begin; empty while it may succeed."""
    state = node.provision_state
    if state in FREE:
        if node.maintenance:
            return f"the node went into maintenance: {node.maintenance_reason or 'no reason is given'}"
        return ""
    if state in DEPLOYING or state in DEPLOYED or state == "deleting":
        return ""
    return f"the node is {state}: {node.last_error}" if node.last_error else f"the node is {state}"


def _class_of(node: MetalNode) -> str:
    """What placement calls it; empty where it has none that could be named."""
    try:
        return class_of(node.resource_class or "")
    except Invalid:
        return ""
