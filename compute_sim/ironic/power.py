"""Simulates power states: requests, the real states of BMCs, and their periodic synchronization."""

from dataclasses import dataclass
from typing import Literal, get_args

from compute_sim.ironic.conductor import Conductor
from compute_sim.ironic.node import SimNode
from compute_sim.ironic.patching import ApiRefusal

Bmc = Literal["power on", "power off", "stuck on", "stuck off", "unreachable", "error"]
BMC: tuple[Bmc, ...] = get_args(Bmc)
TARGETS = ("power on", "power off", "rebooting", "soft rebooting", "soft power off")

_UNSYNCED = frozenset({"enroll", "wait call-back", "clean wait", "adopt failed"})
_UNREACHABLE = "Failed to set node power state to (unreachable BMC)."
_ERROR = "Power driver returned ERROR state while trying to sync power state."


@dataclass(slots=True)
class _Board:
    """A management controller (BMC) with a power state other than the state that Ironic has recorded."""

    says: Bmc
    tries: int = 0

    @property
    def power(self) -> str | None:
        """Return the power state that Ironic reads from the BMC, or None if the BMC is unreachable."""
        if self.says == "unreachable":
            return None
        return self.says.replace("stuck", "power")

    @property
    def broken(self) -> bool:
        return self.says in ("unreachable", "error")

    @property
    def obeys(self) -> bool:
        return self.says in ("power on", "power off")


class Power:
    """Simulates power changes of Ironic's nodes, and BMCs with power states other than Ironic's record."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._boards: dict[str, _Board] = {}
        self._faulty: set[str] = set()  # in maintenance because of a power failure

    def start(self) -> None:
        """Start to compare the recorded power states with the states of the nodes' BMCs, periodically."""
        self._conductor.later(self._conductor.plan.sync_every, self._check_power)

    def tamper(self, node: SimNode, bmc: Bmc | None) -> None:
        """Set the power state that a node's BMC reports; None: the state that Ironic has recorded."""
        if bmc is not None:
            self._boards[node.uuid] = _Board(bmc)
            return
        board = self._boards.pop(node.uuid, None)
        if board is not None and node.power_state in (None, "error"):
            self._boards[node.uuid] = _Board("power off")  # Ironic has recorded no valid state

    def set(self, node: SimNode, target: str, request: str) -> None:
        """Lock an unlocked node and begin to change its power state to `target`, such as `power off`."""
        if node.disable_power_off and target in ("power off", "soft power off"):
            raise ApiRefusal(500, f"Failed to set node power state to {target}.")
        goal = "power off" if target in ("power off", "soft power off") else "power on"
        board = self._boards.get(node.uuid)
        seconds, fault = self._conductor.fate(node, "power")
        self._conductor.change(
            node, target_power_state=None if board and board.broken else goal, last_error=None
        )
        node.reservation = self._conductor.host
        self._conductor.notify("power_set", "start", node, request, to_power=target)
        failed = fault is not None or (board is not None and board.broken)
        self._conductor.later(seconds, lambda: self._has_set(node, target, goal, request, failed))

    def _has_set(self, node: SimNode, target: str, goal: str, request: str, failed: bool) -> None:
        if self._conductor.nodes.get(node.uuid) is not node:
            return
        node.target_power_state = None
        if failed:
            node.last_error = f"Failed to change power state to '{target}': {_UNREACHABLE}"
        else:
            node.power_state = goal
            if (board := self._boards.get(node.uuid)) is not None and board.obeys:
                del self._boards[node.uuid]
        self._conductor.change(node)
        self._conductor.unlock(node)
        self._conductor.notify("power_set", "error" if failed else "end", node, request, to_power=target)

    def _check_power(self) -> None:
        for uuid in sorted(self._boards.keys() | self._faulty):
            node = self._conductor.nodes.get(uuid)
            if node is None:
                self._boards.pop(uuid, None)
                self._faulty.discard(uuid)
            elif node.reservation is None and node.target_power_state is None:
                request = f"req-{self._conductor.clock.uuid()}"
                if node.fault == "power failure" and node.provision_state != "enroll":
                    self._recover(node, request)
                elif node.provision_state not in _UNSYNCED and not node.maintenance:
                    self._faulty.discard(uuid)
                    self._sync(node, request)
        self.start()

    def _recover(self, node: SimNode, request: str) -> None:
        board = self._boards.get(node.uuid)
        if board is not None and board.broken:
            return
        before, actual = node.power_state, board.power if board else node.power_state or "power off"
        if board is not None:
            del self._boards[node.uuid]
        self._faulty.discard(node.uuid)
        self._conductor.change(
            node, power_state=actual, maintenance=False, maintenance_reason=None, fault=None
        )
        # Ironic sends no notification of the end of the maintenance; only its API shows it.
        self._corrected(node, before, request)

    def _sync(self, node: SimNode, request: str) -> None:
        board = self._boards.get(node.uuid)
        if board is None:
            return
        if not board.broken and board.power == node.power_state:
            if board.obeys:
                del self._boards[node.uuid]
            board.tries = 0
            return
        board.tries += 1
        if not board.broken and node.power_state is None:
            self._conductor.change(node, power_state=board.power)
            self._corrected(node, None, request)
        elif board.tries > self._conductor.plan.sync_retries:
            self._give_up(node, board, request)
        elif not board.broken:
            believed = node.power_state
            self._conductor.notify("power_set", "start", node, request, to_power=believed)
            self._conductor.notify("power_set", "end", node, request, to_power=believed)
            if board.obeys:
                del self._boards[node.uuid]

    def _give_up(self, node: SimNode, board: _Board, request: str) -> None:
        before, actual = node.power_state, board.power
        text = (
            f"During sync_power_state, max retries exceeded for node {node.uuid}, node state {actual} does "
            f"not match expected state '{before}'. Updating DB state to '{actual}' Switching node to "
            "maintenance mode."
        )
        if board.broken:
            text += f" Error: {_ERROR if board.says == 'error' else _UNREACHABLE}"
        board.tries = 0
        self._faulty.add(node.uuid)
        texts = {"maintenance_reason": text, "last_error": text}
        self._conductor.change(node, power_state=actual, maintenance=True, fault="power failure", **texts)
        if before != actual:
            self._corrected(node, before, request)

    def _corrected(self, node: SimNode, before: str | None, request: str) -> None:
        sort: Literal["real", "silent"] = "silent" if before == node.power_state else "real"
        self._conductor.notify(
            "power_state_corrected", "success", node, request, sort=sort, from_power=before
        )
