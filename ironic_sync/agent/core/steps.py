"""Decides the next step on a node only from the state that Ironic returns.

After a crash an agent knows only this state. So it stores all that it needs in Ironic with one write: the
build (`instance_uuid`), its attempt (`instance_info`) and the recorded attempts (`extra`). An attempt that is
recorded but no longer has the node has ended: a late order for this attempt has no effect.

Order to build, by the node's state → steps of the agent → its report:

    available → reserve the node, deploy → built
    reserved for this attempt, but the deployment failed →
        record why the attempt ended, tear down or release the node → failed
    reserved for another instance, in maintenance, or in any other state → failed
    available, but it can only deploy an image and the build names no image → failed, without a retry

Order to destroy:

    reserved for this attempt → tear down, abort or release the node → destroyed
    no record of this attempt → record that the attempt has ended, if the node's state permits → destroyed
"""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from bus.messages import BuildOrdered, DestroyOrdered
from bus.requests import Flavor
from ironic_sync.agent.core.node import MetalNode, classes_of, image_lacking
from ironic_sync.core.node import DEPLOYED, DEPLOYING, FREE, HELD, UNDEPLOYABLE, UNUSED, WRITABLE
from ironic_sync.core.rule import Invalid, class_of

Order = BuildOrdered | DestroyOrdered

UNDONE = "what was started on the node has been undone"


class Action(Enum):
    """A step on an Ironic node: to reserve, deploy, tear down, abort or release it."""

    CLAIM = "claim"  # reserve the node for a build
    DEPLOY = "active"  # start the deployment on the reserved node
    UNDEPLOY = "deleted"  # let Ironic tear the node down, end its reservation and clean it
    ABORT = "abort"  # fail a deployment in a wait state of Ironic, so that it can be undeployed
    RELEASE = "release"  # remove the reservation of a node on which nothing is deployed


@dataclass(frozen=True, slots=True)
class Close:
    """The step that records on the Ironic node that a build's attempt on it has ended, and why it failed."""

    cause: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The step to check the node again later."""

    why: str


@dataclass(frozen=True, slots=True)
class Say:
    """The step to report the outcome of an order."""

    outcome: Literal["built", "failed", "destroyed"]
    cause: str = ""
    retry: bool = True  # failed: another node may succeed
    leftover: bool = False  # failed: the deployment may still be there


Step = Action | Close | Wait | Say


def next_step(
    node: MetalNode | None,
    order: Order,
    *,
    given_up: str = "",  # why the build must fail
    writes: bool = True,  # False: Ironic refused to store that an attempt has ended
) -> Step:
    """Return the agent's next step for an order to build or destroy on an Ironic node; `node` is the state
    just read, or None if Ironic has no such node. `given_up`: why the build must fail; `writes`: False if
    Ironic refuses to record ended attempts.
    """
    if isinstance(order, BuildOrdered):
        return _toward_built(node, order, given_up, writes)
    return _toward_deleted(node, order, writes)


def _toward_built(node: MetalNode | None, order: BuildOrdered, given_up: str, writes: bool) -> Step:
    if node is None:
        return Say("failed", "Ironic has no such node")
    held, last = node.attempt_of(order.build), node.last(order.build)
    if order.adopt:  # adoption never changes the node
        deployed = held is not None and node.provision_state in DEPLOYED
        return Say("built") if deployed else Say("failed", f"not found there: the node is {_describe(node)}")
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
        return Say("failed", lacking, retry=False) if lacking else Action.CLAIM
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
        return Action.DEPLOY
    if node.provision_state in DEPLOYED:
        return Say("built")
    return Wait(f"it is {node.provision_state}")


def _toward_deleted(node: MetalNode | None, order: DestroyOrdered, writes: bool) -> Step:
    if node is None:
        return Say("destroyed")
    held, last = node.attempt_of(order.build), node.last(order.build)
    if held is not None and held <= order.attempt and not 0 < held <= order.above:
        return _clear(node)
    if node.instance_uuid is not None:
        return Say("destroyed")
    if _not_torn_down(node, order):
        return Action.UNDEPLOY if node.provision_state == "error" else Wait("it is torn down once more")
    if last.attempt < order.attempt and writes and node.provision_state in UNUSED:
        return Close("")
    return Say("destroyed")


def _describe(node: MetalNode) -> str:
    return f"{node.provision_state}, with instance {node.instance_uuid or 'none'}"


def _not_torn_down(node: MetalNode, order: Order) -> bool:
    """Return whether this build's teardown failed: the node is unreserved but in `error` or `deleting`."""
    last_here = bool(node.seen) and node.seen[-1].build == order.build and node.instance_uuid is None
    return last_here and node.provision_state in ("error", "deleting")


def _clear(node: MetalNode) -> Step:
    state = node.provision_state
    if state in UNDEPLOYABLE:
        return Action.UNDEPLOY
    if state in UNUSED:
        return Action.RELEASE
    return Action.ABORT if state in HELD else Wait(f"it is {state}")


def _unusable(node: MetalNode, flavor: Flavor) -> str:
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
    state = node.provision_state
    if state in FREE:
        if node.maintenance:
            return f"the node went into maintenance: {node.maintenance_reason or 'no reason is given'}"
        return ""
    if state in DEPLOYING or state in DEPLOYED or state == "deleting":
        return ""
    return f"the node is {state}: {node.last_error}" if node.last_error else f"the node is {state}"


def _class_of(node: MetalNode) -> str:
    try:
        return class_of(node.resource_class or "")
    except Invalid:
        return ""
