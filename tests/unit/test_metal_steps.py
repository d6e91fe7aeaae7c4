"""The next action of the bare-metal agent for every state and owner of a node."""

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from bus.messages import BuildOrdered, DestroyOrdered
from bus.requests import BuildSpec, Flavor, Image
from ironic_sync.agent.core import node as metal_node
from ironic_sync.agent.core.node import ATTEMPT, SEEN, MetalNode, node_of
from ironic_sync.agent.core.steps import Action, Close, Order, Say, Step, Wait, next_step
from tests.support.conductor_builders import CELL
from tests.support.ids import uid

US, THEM, NODE = uid(1, "b"), uid(2, "b"), uid(1, "c")
SPEC = BuildSpec(flavor=Flavor(name="metal", extra_specs={"resources:CUSTOM_BAREMETAL_GOLD": "1"}))

# A node that is ours, and in this state: what comes next of an order to build, of one to destroy.
OURS: dict[str | None, tuple[Step, Step]] = {
    "available": (Action.DEPLOY, Action.RELEASE),
    None: (Action.DEPLOY, Action.RELEASE),
    "deploying": (Wait("it is deploying"), Wait("it is deploying")),
    "wait call-back": (Wait("it is wait call-back"), Action.UNDEPLOY),
    "deploy hold": (Wait("it is deploy hold"), Action.ABORT),
    "active": (Say("built"), Action.UNDEPLOY),
    "deploy failed": (Close("the node is deploy failed: no disk"), Action.UNDEPLOY),
    "error": (Close("the node is error: no disk"), Action.UNDEPLOY),
    "deleting": (Wait("it is deleting"), Wait("it is deleting")),
    # it was active once
    "rescuing": (Say("built"), Wait("it is rescuing")),
    "rescue wait": (Say("built"), Action.UNDEPLOY),
    "rescue": (Say("built"), Action.UNDEPLOY),
    "rescue failed": (Say("built"), Action.UNDEPLOY),
    "unrescuing": (Say("built"), Wait("it is unrescuing")),
    "unrescue failed": (Say("built"), Action.UNDEPLOY),
    "servicing": (Say("built"), Wait("it is servicing")),
    "service wait": (Say("built"), Action.UNDEPLOY),
    "service hold": (Say("built"), Action.ABORT),
    "service failed": (Say("built"), Action.UNDEPLOY),
    "manageable": (Close("the node is manageable: no disk"), Action.RELEASE),
    "enroll": (Close("the node is enroll: no disk"), Action.RELEASE),
    "verifying": (Close("the node is verifying: no disk"), Action.RELEASE),
    "inspect wait": (Close("the node is inspect wait: no disk"), Action.RELEASE),
    "inspect failed": (Close("the node is inspect failed: no disk"), Action.RELEASE),
    "clean failed": (Close("the node is clean failed: no disk"), Action.RELEASE),
    "adopt failed": (Close("the node is adopt failed: no disk"), Action.RELEASE),
    "inspecting": (Wait("it is inspecting"), Wait("it is inspecting")),
    "adopting": (Wait("it is adopting"), Wait("it is adopting")),
    "cleaning": (Wait("it is cleaning"), Wait("it is cleaning")),
    "clean wait": (Wait("it is clean wait"), Wait("it is clean wait")),
    "clean hold": (Wait("it is clean hold"), Wait("it is clean hold")),
}
# Where nothing is deployed and Ironic lets us write.
IDLE = {
    "available", None, "manageable", "enroll", "verifying", "inspect wait", "inspect failed", "clean failed",
    "adopt failed",
}  # fmt: skip

NOT_TORN_DOWN = {"error", "deleting"}


def build(attempt: int = 1, spec: BuildSpec = SPEC) -> BuildOrdered:
    return BuildOrdered(build=US, attempt=attempt, cell=CELL, agent="metal", root=NODE, host=NODE, spec=spec)


def destroy(attempt: int = 1) -> DestroyOrdered:
    return DestroyOrdered(build=US, attempt=attempt, cell=CELL, agent="metal", root=NODE, host=NODE)


def a_seen_node(state: str | None = "available", **more: Any) -> MetalNode:
    return MetalNode(uuid=NODE, provision_state=state, **{"resource_class": "baremetal.gold"} | more)


def ours(state: str | None, attempt: int | None = 1, **more: Any) -> MetalNode:
    info = {} if attempt is None else {ATTEMPT: attempt}
    return a_seen_node(state, instance_uuid=US, instance_info=info, **more)


def seen(attempt: int, cause: str = "", who: str = US) -> dict[str, Any]:
    return {SEEN: [{"build": who, "attempt": attempt, "cause": cause}]}


def test_a_node_of_the_build_is_deployed_or_torn_down() -> None:
    for state in OURS:
        node = ours(state, last_error="no disk", extra=seen(1))
        assert (next_step(node, build()), next_step(node, destroy())) == OURS[state]


def test_a_failed_build_is_torn_down_before_it_is_reported() -> None:
    for state in OURS:
        failed = seen(1, "no disk")
        assert next_step(ours(state, extra=failed), build()) == OURS[state][1]
        may_be_there = state in NOT_TORN_DOWN
        assert next_step(a_seen_node(state, extra=failed), build()) == Say(
            "failed", "no disk", leftover=may_be_there
        )


def test_adopting_a_node_only_reads_it() -> None:
    adopt = replace(build(), adopt=True)
    for state, (expected, _) in OURS.items():
        its_own = ours(state, None, last_error="no disk")
        for node in (its_own, a_seen_node(state), a_seen_node(state, instance_uuid=THEM)):
            if node is its_own and expected == Say("built"):
                assert next_step(node, adopt) == Say("built")
                continue
            found = f"the node is {state}, with instance {node.instance_uuid or 'none'}"
            assert next_step(node, adopt) == Say("failed", f"not found there: {found}")


def test_a_node_that_is_not_ours_is_only_built_on_when_it_is_available() -> None:
    for state in OURS:
        refused = Say("failed", f"the node is {state}, not available")
        expected = Action.CLAIM if state in ("available", None) else refused
        assert next_step(a_seen_node(state), build()) == expected
        taken = Say("failed", f"the node is taken: it has the instance {THEM}")
        assert next_step(a_seen_node(state, instance_uuid=THEM), build()) == taken


def test_nodes_of_other_instances_are_never_destroyed() -> None:
    for state, extra in product(OURS, ({}, seen(1))):
        assert next_step(a_seen_node(state, instance_uuid=THEM, extra=extra), destroy()) == Say("destroyed")


def test_a_released_node_is_destroyed_unless_its_tear_down_failed() -> None:
    again: dict[str | None, Step] = {"error": Action.UNDEPLOY, "deleting": Wait("it is torn down once more")}
    for state in OURS:
        expected = again.get(state, Say("destroyed"))
        assert next_step(a_seen_node(state, extra=seen(1)), destroy()) == expected


def test_a_node_that_never_was_ours_is_closed_to_an_order_that_may_still_come() -> None:
    for state in OURS:
        assert next_step(a_seen_node(state), destroy()) == (Close("") if state in IDLE else Say("destroyed"))
        assert next_step(a_seen_node(state), destroy(), writes=False) == Say("destroyed")


def test_a_failed_tear_down_of_another_instance_is_not_repeated() -> None:
    both = {SEEN: [*seen(1)[SEEN], *seen(1, who=THEM)[SEEN]]}
    for state in ("error", "deleting"):
        assert next_step(a_seen_node(state, extra=both), destroy()) == Say("destroyed")


def test_a_node_missing_in_ironic() -> None:
    assert next_step(None, build()) == Say("failed", "Ironic has no such node")
    assert next_step(None, destroy()) == Say("destroyed")


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (a_seen_node(maintenance=True, maintenance_reason="a disk"), "the node is in maintenance: a disk"),
        (a_seen_node(maintenance=True), "the node is in maintenance: no reason is given"),
        (
            a_seen_node(resource_class="baremetal"),
            "the node is of the class CUSTOM_BAREMETAL, not of CUSTOM_BAREMETAL_GOLD",
        ),
        (a_seen_node(resource_class=None), "the node is of the class none, not of CUSTOM_BAREMETAL_GOLD"),
    ],
)
def test_why_nothing_can_be_built_on_an_available_node(node: MetalNode, why: str) -> None:
    assert next_step(node, build()) == Say("failed", why)


@pytest.mark.parametrize(
    ("interface", "image", "needs"),
    [
        ("direct", None, "an image to write (image_source)"),
        ("direct", Image(name="rescue", properties={"boot_iso": "http://images/r.iso"}), "an image to write"),
        ("ramdisk", None, "an image to boot (boot_iso, or kernel and ramdisk, or image_source)"),
        ("direct", Image(name="debian"), ""),
        ("ramdisk", Image(name="net", properties={"kernel": "file:///k", "ramdisk": "file:///r"}), ""),
        ("fake", None, ""),
    ],
)
def test_a_build_without_a_required_image_fails_for_every_node(
    interface: str, image: Image | None, needs: str
) -> None:
    step = next_step(a_seen_node(deploy_interface=interface), build(spec=replace(SPEC, image=image)))
    if needs:
        assert isinstance(step, Say) and (step.outcome, step.retry) == ("failed", False)
        assert needs in step.cause and interface in step.cause
    else:
        assert step == Action.CLAIM


def test_a_node_in_maintenance_before_its_deploy_is_released() -> None:
    node = ours("available", maintenance=True, maintenance_reason="a disk")
    assert next_step(node, build()) == Close("the node went into maintenance: a disk")
    assert next_step(ours("active", maintenance=True), build()) == Say("built")


@pytest.mark.parametrize(
    ("node", "order", "expected"),
    [
        (ours("active", 2), build(1), Say("destroyed")),
        (ours("active", 2), destroy(1), Say("destroyed")),
        (ours("active", 2, extra=seen(2)), build(1), Say("destroyed")),
        (a_seen_node(extra=seen(2, "no disk")), build(1), Say("destroyed")),
        # an earlier attempt has left something
        (ours("active", 1), build(2), Wait("an earlier attempt is still on it")),
        (ours("active", 1, extra=seen(1)), destroy(2), Action.UNDEPLOY),
        (a_seen_node(extra=seen(1)), destroy(2), Close("")),
        (a_seen_node(extra=seen(1, "no disk")), build(2), Action.CLAIM),
        (ours("active", None), build(1), Say("built")),
        (ours("active", None), destroy(1), Action.UNDEPLOY),
    ],
)
def test_attempts_of_a_build_are_distinguished(node: MetalNode, order: Order, expected: Step) -> None:
    assert next_step(node, order) == expected


def test_a_timed_out_deploy_is_undone_and_reported_with_its_reason() -> None:
    assert next_step(ours("available"), build(), given_up="no image") == Close("no image")
    assert next_step(ours("available"), build(), given_up="no image", writes=False) == Action.RELEASE
    assert next_step(a_seen_node(), build(), given_up="no image") == Say("failed", "no image")


def test_the_claim_names_the_build_and_its_attempt_in_one_write() -> None:
    uuid, info, extra = metal_node.claim(a_seen_node(), build(3))
    assert uuid == {"op": "add", "path": "/instance_uuid", "value": US}
    assert info["path"] == "/instance_info"
    assert info["value"][ATTEMPT] == 3
    assert extra == {"op": "add", "path": f"/extra/{SEEN}", "value": seen(3)[SEEN]}


def test_a_node_remembers_the_builds_it_has_seen_last() -> None:
    node = a_seen_node()
    for number in range(1, 8):
        order = DestroyOrdered(
            build=uid(number, "b"), attempt=number, cell=CELL, agent="metal", root=NODE, host=NODE
        )
        (patch,) = metal_node.close(node, order, "x" * 1000)
        node = a_seen_node(extra={SEEN: patch["value"]})
    assert [attempt.build for attempt in node.seen] == [uid(number, "b") for number in (4, 5, 6, 7)]
    assert {len(attempt.cause) for attempt in node.seen} == {metal_node.LONGEST_CAUSE}
    (patch,) = metal_node.close(node, destroy(9), "")
    assert [one["build"] for one in patch["value"]].count(US) == 1


@pytest.mark.parametrize("scribble", [None, "x", 7, [{"build": 1}], {"build": US}, [[]]])
def test_a_foreign_value_in_our_field_is_ignored(scribble: object) -> None:
    assert next_step(a_seen_node(extra={SEEN: scribble}), build()) == Action.CLAIM


def test_the_instance_info_sent_to_ironic() -> None:
    specs = {
        "capabilities:boot_mode": "uefi",
        "trait:CUSTOM_GOLD": "required",
        "trait:CUSTOM_TIN": "forbidden",
    }
    flavor = Flavor(name="metal", vcpus=8, disk_gb=100, extra_specs=specs)
    properties = {"image_checksum": "abc", "hw_disk_bus": "scsi"}
    image = Image(name="http://images/debian.qcow2", properties=properties, traits_required=("CUSTOM_RAID",))
    assert metal_node.instance_info(BuildSpec(flavor=flavor, image=image, project="p1")) == {
        "image_source": "http://images/debian.qcow2",
        "image_checksum": "abc",
        "root_gb": "100",
        "local_gb": "100",
        "vcpus": "8",
        "capabilities": {"boot_mode": "uefi"},
        "traits": ["CUSTOM_GOLD", "CUSTOM_RAID"],
        "project_id": "p1",
    }


def test_unknown_and_null_fields_of_a_node_are_ignored() -> None:
    node = node_of({"uuid": NODE, "provision_state": None, "extra": None, "driver": "fake-hardware"})
    assert node == MetalNode(uuid=NODE)


def test_an_attempt_that_is_to_stay_is_left_alone() -> None:
    stays = DestroyOrdered(build=US, attempt=2, cell=CELL, agent="metal", root=NODE, host=NODE, above=1)
    assert next_step(ours("active", 1), stays) == Say("destroyed")
    assert next_step(ours("active", 2), stays) == next_step(ours("active", None), stays) == Action.UNDEPLOY
