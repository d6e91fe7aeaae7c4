"""Ironic's provision states by what they mean to us. `None` is what available was called before Kilo."""

FREE = frozenset({"available", None})  # something can be deployed
DEPLOYING = frozenset({"deploying", "wait call-back", "deploy hold"})
# Only from active a node gets into these: what was ordered was built.
DEPLOYED = frozenset({
    "active", "rescuing", "rescue wait", "rescue", "rescue failed", "unrescuing", "unrescue failed",
    "servicing", "service wait", "service hold", "service failed",
})  # fmt: skip
UNDEPLOYABLE = frozenset({
    "active", "deploy failed", "wait call-back", "error", "rescue", "rescue wait", "rescue failed",
    "unrescue failed", "service wait", "service failed",
})  # fmt: skip
HELD = frozenset({"deploy hold", "service hold"})  # they must fail before they can be undeployed
# Nothing is deployed there: a node with an instance has it in name only.
UNUSED = frozenset({
    "available", None, "manageable", "enroll", "verifying", "inspect failed", "inspect wait",
    "clean failed", "adopt failed",
})  # fmt: skip
# Where Ironic lets a node be written to; in all others it is at work, or about to be.
WRITABLE = UNUSED | {
    "active", "rescue", "deploy failed", "error", "rescue failed", "unrescue failed", "service hold",
    "service failed",
}  # fmt: skip
