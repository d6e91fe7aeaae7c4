"""Groups of Ironic's provision states. Null is available, as called before Kilo."""

FREE = frozenset({"available", None})  # an instance can be deployed
DEPLOYING = frozenset({"deploying", "wait call-back", "deploy hold"})
# A node enters one of these states from active only: the deployment was completed.
DEPLOYED = frozenset({
    "active", "rescuing", "rescue wait", "rescue", "rescue failed", "unrescuing", "unrescue failed",
    "servicing", "service wait", "service hold", "service failed",
})  # fmt: skip
UNDEPLOYABLE = frozenset({
    "active", "deploy failed", "wait call-back", "error", "rescue", "rescue wait", "rescue failed",
    "unrescue failed", "service wait", "service failed",
})  # fmt: skip
# the deployment or service must be failed before the node can be undeployed
HELD = frozenset({"deploy hold", "service hold"})
# Nothing is deployed in such a state: an instance_uuid there is only a mark.
UNUSED = frozenset({
    "available", None, "manageable", "enroll", "verifying", "inspect failed", "inspect wait",
    "clean failed", "adopt failed",
})  # fmt: skip
# Ironic accepts writes to a node in such a state; in any other it is busy or about to be.
WRITABLE = UNUSED | {
    "active", "rescue", "deploy failed", "error", "rescue failed", "unrescue failed", "service hold",
    "service failed",
}  # fmt: skip
