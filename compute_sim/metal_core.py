"""What the bare-metal agent does next with a node: decided from what Ironic says of it, and nothing else.

An agent that was killed knows no more than this, so all it must not forget is written into Ironic: whose the
node is (`instance_uuid`), for which attempt (`instance_info`), and which attempts it has seen (`extra`), all
three in one write. An attempt that was seen, and no longer has the node, is over there: an order for it that
comes late finds the node closed to it.

    build:    available → Claim → Deploy → ... → active: built
                ours and deploy failed → Close(why) → Undeploy or LetGo → no longer ours: failed(why)
                anybody else's, in maintenance, in any other state: failed
    destroy:  ours → Undeploy, LetGo or Abort → no longer ours: destroyed
                never seen: Close, if the node may be written to → destroyed
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from bus.messages import BuildOrdered, DestroyOrdered
from bus.vocabulary import BuildSpec, Flavor

Order = BuildOrdered | DestroyOrdered
Json = dict[str, Any]

ATTEMPT = "berth_attempt"  # in instance_info
SEEN = "berth_seen"  # in extra
KEPT = 4  # builds a node remembers
LONGEST_CAUSE = 300  # characters of a cause that are written into Ironic
UNDONE = "what was begun on the node has been undone"

# What may be said of an image to Ironic; one without an image_source is named by its name.
OF_IMAGES = (
    "image_source", "image_checksum", "image_os_hash_algo", "image_os_hash_value", "image_disk_format",
    "image_container_format", "image_type", "image_url", "kernel", "ramdisk", "stage2", "ks_template",
    "boot_iso", "image_pull_secret",
)  # fmt: skip

_FREE = frozenset({"available", None})  # None: what available was called before Kilo
_DEPLOYING = frozenset({"deploying", "wait call-back", "deploy hold"})
# Only from active a node gets into these: what was ordered was built.
_DEPLOYED = frozenset({
    "active", "rescuing", "rescue wait", "rescue", "rescue failed", "unrescuing", "unrescue failed",
    "servicing", "service wait", "service hold", "service failed",
})  # fmt: skip
_UNDEPLOYABLE = frozenset({
    "active", "deploy failed", "wait call-back", "error", "rescue", "rescue wait", "rescue failed",
    "unrescue failed", "service wait", "service failed",
})  # fmt: skip
_HELD = frozenset({"deploy hold", "service hold"})  # they must fail before they can be undeployed
# Nothing is deployed there: a node that is ours in name only.
_UNUSED = frozenset({
    "available", None, "manageable", "enroll", "verifying", "inspect failed", "inspect wait",
    "clean failed", "adopt failed",
})  # fmt: skip
# Where Ironic lets a node be written to; in all others it is at work, or about to be.
_WRITABLE = _UNUSED | {
    "active", "rescue", "deploy failed", "error", "rescue failed", "unrescue failed", "service hold",
    "service failed",
}  # fmt: skip


class SeenAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The last attempt of a build that came to the node; with a cause it has failed."""

    build: str
    attempt: int
    cause: str = ""


class MetalNode(msgspec.Struct, frozen=True, kw_only=True):
    """What of a node decides."""

    uuid: str
    provision_state: str | None = None
    instance_uuid: str | None = None
    instance_info: Json = {}
    extra: Json = {}
    maintenance: bool = False
    maintenance_reason: str | None = None
    resource_class: str | None = None
    last_error: str | None = None

    @property
    def seen(self) -> list[SeenAttempt]:
        """The newest is the last. `extra` is everybody's: what is not ours in there is no mistake of ours."""
        try:
            return msgspec.convert(self.extra.get(SEEN, []), list[SeenAttempt])
        except msgspec.ValidationError:
            return []

    def last(self, build: str) -> SeenAttempt:
        found = (one for one in reversed(self.seen) if one.build == build)
        return next(found, SeenAttempt(build=build, attempt=0))

    def attempt_of(self, build: str) -> int | None:
        """The attempt that holds it; 0 where nobody wrote that down, None when the build does not hold it."""
        if self.instance_uuid != build:
            return None
        attempt = self.instance_info.get(ATTEMPT)
        return attempt if isinstance(attempt, int) else 0


FIELDS = MetalNode.__struct_fields__


def node_of(said: Mapping[str, Any]) -> MetalNode:
    """Of the answer to a read."""
    return msgspec.convert({name: said[name] for name in FIELDS if said.get(name) is not None}, MetalNode)


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
    if held is None:
        if last.attempt > order.attempt:
            return Say("destroyed")
        why = given_up
        if last.attempt == order.attempt:
            why = why or last.cause or UNDONE
        why = why or _unusable(node, order.spec.flavor)
        return Say("failed", why) if why else Claim()
    if held > order.attempt:
        return Say("destroyed")
    if 0 < held < order.attempt:
        return Wait("an earlier attempt is still on it")
    if last.attempt == order.attempt and last.cause:
        return _clear(node)
    why = given_up or _broken(node)
    if why:
        return Close(why) if writes and node.provision_state in _WRITABLE else _clear(node)
    if node.provision_state in _FREE:
        return Deploy()
    if node.provision_state in _DEPLOYED:
        return Say("built")
    return Wait(f"it is {node.provision_state}")


def _toward_gone(node: MetalNode | None, order: DestroyOrdered, writes: bool) -> Step:
    if node is None:
        return Say("destroyed")
    held, last = node.attempt_of(order.build), node.last(order.build)
    if held is not None and held <= order.attempt:
        return _clear(node)
    if node.instance_uuid is not None:
        return Say("destroyed")
    if node.seen and node.seen[-1].build == order.build:
        # Ironic could not tear it down, and has taken our name off it all the same.
        if node.provision_state == "error":
            return Undeploy()
        if node.provision_state == "deleting":
            return Wait("it is torn down once more")
    if last.attempt < order.attempt and writes and node.provision_state in _UNUSED:
        return Close("")
    return Say("destroyed")


def _clear(node: MetalNode) -> Step:
    """The way from a node that is ours to one that is not."""
    state = node.provision_state
    if state in _UNDEPLOYABLE:
        return Undeploy()
    if state in _UNUSED:
        return LetGo()
    return Abort() if state in _HELD else Wait(f"it is {state}")


def _unusable(node: MetalNode, flavor: Flavor) -> str:
    """Why nothing can be deployed on a node that is not ours yet; empty when it can."""
    if node.instance_uuid is not None:
        return f"the node is taken: it has the instance {node.instance_uuid}"
    if node.maintenance:
        return f"the node is in maintenance: {node.maintenance_reason or 'no reason is given'}"
    if node.provision_state not in _FREE:
        return f"the node is {node.provision_state}, not available"
    asked = classes_of(flavor)
    if asked and class_of(node.resource_class) not in asked:
        return f"the node is of the class {class_of(node.resource_class)}, not of {' or '.join(asked)}"
    return ""


def _broken(node: MetalNode) -> str:
    """Why the deploy of a node that is ours has failed, or cannot begin; empty while it may succeed."""
    state = node.provision_state
    if state in _FREE:
        if node.maintenance:
            return f"the node went into maintenance: {node.maintenance_reason or 'no reason is given'}"
        return ""
    if state in _DEPLOYING or state in _DEPLOYED or state == "deleting":
        return ""
    return f"the node is {state}: {node.last_error}" if node.last_error else f"the node is {state}"


# What is asked for, and what is written


def class_of(resource_class: str | None) -> str:
    """What placement calls it."""
    return "CUSTOM_" + re.sub("[^0-9A-Za-z]+", "_", resource_class or "").upper()


def classes_of(flavor: Flavor) -> list[str]:
    """The custom classes this flavor asks for."""
    found = (re.fullmatch(r"resources[\w-]*:(CUSTOM_\w+)", name) for name in flavor.extra_specs)
    return sorted({match[1] for match in found if match})


def claim(node: MetalNode, order: BuildOrdered) -> list[Json]:
    """The patch that makes the node ours: Ironic refuses it when it is somebody else's by then."""
    info = {**instance_info(order.spec), ATTEMPT: order.attempt}
    return [
        {"op": "add", "path": "/instance_uuid", "value": order.build},
        {"op": "add", "path": "/instance_info", "value": info},
        *close(node, order, ""),
    ]


def let_go() -> list[Json]:
    return [
        {"op": "remove", "path": "/instance_uuid"},
        {"op": "add", "path": "/instance_info", "value": {}},
    ]


def close(node: MetalNode, order: Order, cause: str) -> list[Json]:
    """The patch that says the node has seen this attempt."""
    others = [one for one in node.seen if one.build != order.build]
    this = SeenAttempt(build=order.build, attempt=order.attempt, cause=cause[:LONGEST_CAUSE])
    return [{"op": "add", "path": f"/extra/{SEEN}", "value": msgspec.to_builtins([*others, this][-KEPT:])}]


def instance_info(spec: BuildSpec) -> Json:
    """What Ironic must know of the instance, in the words Nova's driver uses."""
    flavor, image = spec.flavor, spec.image
    info: Json = {}
    if image is not None:
        info.update({name: image.properties[name] for name in OF_IMAGES if name in image.properties})
        if "boot_iso" not in info:
            info.setdefault("image_source", image.name)
    sizes = {
        "root_gb": flavor.disk_gb, "vcpus": flavor.vcpus, "memory_mb": flavor.memory_mb,
        "local_gb": flavor.disk_gb,
    }  # fmt: skip
    info.update({name: str(size) for name, size in sizes.items() if size})
    info["capabilities"] = {
        name.removeprefix("capabilities:"): value
        for name, value in flavor.extra_specs.items()
        if name.startswith("capabilities:")
    }
    info["traits"] = _traits(flavor, image.traits_required if image is not None else ())
    info["project_id"] = spec.project
    return info


def _traits(flavor: Flavor, of_image: Sequence[str]) -> list[str]:
    """What the node must have; Ironic refuses to deploy on one that has lost it since."""
    matches = (
        re.fullmatch(r"trait[\w-]*:(\w+)", name)
        for name, value in flavor.extra_specs.items()
        if value == "required"
    )
    return sorted({match[1] for match in matches if match} | set(of_image))
