"""Executes the simulated Ironic's operations, which take time and lead a node through provision states."""

from collections.abc import Callable
from dataclasses import dataclass

from compute_sim.ironic.conductor import Conductor, Fault, Kind
from compute_sim.ironic.node import SimNode, move

_KIND: dict[str, Kind] = {
    "manage": "verify", "provide": "clean", "clean": "clean", "inspect": "inspect", "adopt": "adopt",
    "deploy": "deploy", "rebuild": "deploy", "delete": "delete", "rescue": "rescue", "unrescue": "unrescue",
    "service": "service",
}  # fmt: skip
# works that wait for the node's callback
_CALLED_BACK = frozenset({"clean", "deploy", "rescue", "service", "inspect"})
_STEP = {
    "clean": {"step": "erase", "priority": 10, "abortable": True, "argsinfo": None, "interface": "deploy",
              "requires_ramdisk": False},
    "deploy": {"step": "deploy", "priority": 100, "abortable": True, "argsinfo": None, "interface": "deploy"},
    "service": {"step": "update", "priority": 0, "abortable": True, "interface": "vendor"},
}  # fmt: skip
_FAILED = {
    "verify": "Failed to get power state for node {node}. Error: the BMC does not answer.",
    "inspect": "Failed to inspect hardware. Reason: the node reported no data",
    "clean": "Node {node} failed step deploy.erase: a disk could not be erased",
    "deploy": "Deploy step deploy.deploy failed: the image could not be written",
    "delete": "Failed to tear down: the node's ports could not be removed",
    "rescue": "Failed to rescue: the rescue ramdisk did not start",
    "unrescue": "Failed to unrescue: the node did not start",
    "service": "Node {node} failed step vendor.update: the firmware was refused",
    "adopt": "Error while attempting to adopt node {node}: there is no image",
}
_TIMED_OUT = "Timeout reached while waiting for the node {node} to call back"
_ABORTED = {
    "clean": "By request, the clean operation was aborted during or after the completion of step "
    '"deploy.erase"',
    "inspect": "Inspection was aborted by request.",
    "": "The operation was aborted by request.",
}


@dataclass(eq=False, slots=True)
class Job:
    """An operation on a simulated Ironic node, such as a deployment; the next operation replaces it."""

    node: SimNode
    kind: Kind
    request: str
    seconds: float
    fault: Fault | None
    manual: bool = False  # manual cleaning, which ends as manageable
    hold: bool = False  # one of its steps waits for unhold
    waits: bool = False  # it will wait for the node's callback


class Works:
    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._jobs: dict[str, Job] = {}

    def begin(self, node: SimNode, event: str, request: str, *, hold: bool = False) -> None:
        """Start a node's change for an event such as `provide`; the node's state must permit this event.
        `hold`: the work stops at a hold step, until `unhold`.
        """
        if event == "abort":
            self._abort(node, request)
        elif event == "unhold":
            self._unhold(node, request)
        elif event == "manage" and node.provision_state != "enroll":
            self._moved(node, event, request)
        else:
            job = self._job(node, _KIND[event], request)
            job.manual, job.hold = event == "clean", hold and job.kind in _STEP
            node.reservation = self._conductor.host
            self._moved(node, event, request, working=True, bound_for="manageable" if job.manual else None)
            self._start(job)

    def _job(self, node: SimNode, kind: Kind, request: str) -> Job:
        seconds, fault = self._conductor.fate(node, kind)
        job = self._jobs[node.uuid] = Job(node, kind, request, seconds, fault)
        return job

    def _start(self, job: Job) -> None:
        plan, cleans = self._conductor.plan, job.node.automated_clean
        cleans = plan.automated_clean if cleans is None else cleans
        if job.kind == "clean" and not job.manual and not cleans:
            job.seconds, job.fault = 0.0, None
        else:
            job.waits = job.kind in _CALLED_BACK and (plan.call_back or job.fault == "timeout")
        self._go_on_later(job, job.seconds / 2 if job.waits else job.seconds, self._worked)

    def _go_on_later(self, job: Job, seconds: float, then: Callable[[Job], None]) -> None:
        def go_on() -> None:
            if self._jobs.get(job.node.uuid) is not job:
                return
            if self._conductor.nodes.get(job.node.uuid) is job.node:
                then(job)
            else:
                del self._jobs[job.node.uuid]

        self._conductor.later(seconds, go_on)

    def _moved(
        self,
        node: SimNode,
        event: str,
        request: str,
        *,
        working: bool = False,
        bound_for: str | None = None,
        last_error: str | None = None,
    ) -> None:
        before, before_target = node.provision_state, node.target_provision_state
        state, target, phase = move(before, event, working=working, bound_for=bound_for)
        node.provision_state, node.target_provision_state = state, target
        node.provision_updated_at = node.updated_at = self._conductor.clock.now()
        if working:
            node.last_error = last_error
        self._conductor.notify(
            "provision_set", phase, node, request,
            event=event, previous_provision_state=before, previous_target_provision_state=before_target,
        )  # fmt: skip

    def _worked(self, job: Job) -> None:
        if job.fault == "prepare":
            self._failed(job)
        elif job.hold:
            job.hold = False
            self._step_on(job, "hold")
        elif job.waits:
            self._step_on(job, "wait")
            self._go_on_later(job, job.seconds / 2, self._called_back)
        elif job.fault is not None:
            self._failed(job)
        else:
            self._succeeded(job)

    def _step_on(self, job: Job, event: str) -> None:
        if job.kind in _STEP:
            setattr(job.node, f"{job.kind}_step", _STEP[job.kind])
        if job.kind == "inspect":
            job.node.inspection_started_at = self._conductor.clock.now()
        self._moved(job.node, event, job.request, bound_for=self._bound_for(job))
        self._conductor.unlock(job.node)

    def _called_back(self, job: Job) -> None:
        if job.fault == "timeout":
            self._failed(job)
            return
        job.node.reservation = self._conductor.host
        self._moved(job.node, "resume", job.request, working=True, bound_for=self._bound_for(job))
        (self._succeeded if job.fault is None else self._failed)(job)

    @staticmethod
    def _bound_for(job: Job) -> str | None:
        return "manageable" if job.manual else None

    def _unhold(self, node: SimNode, request: str) -> None:
        job = self._jobs.get(node.uuid)
        self._moved(node, "unhold", request, bound_for=self._bound_for(job) if job else None)
        if job is not None:
            self._go_on_later(job, job.seconds / 2, self._called_back)

    def _abort(self, node: SimNode, request: str) -> None:
        job = self._jobs.pop(node.uuid, None)
        if node.provision_state in ("service wait", "service hold"):
            self._moved(node, "fail", request)
        self._end_steps(node)
        node.inspection_started_at = None
        back = node.provision_state == "service failed"
        self._moved(
            node, "abort", request, working=True, bound_for=self._bound_for(job) if job else None,
            last_error=None if back else _ABORTED.get(job.kind if job else "", _ABORTED[""]),
        )  # fmt: skip

    def _succeeded(self, job: Job) -> None:
        node, request = job.node, job.request
        if job.kind == "delete":
            self._clear_instance(node)
            cleaning = self._job(node, "clean", request)
            self._moved(node, "clean", request)
            self._start(cleaning)
            return
        self._end_steps(node)
        self._release(job)
        if job.kind == "verify":
            before, node.power_state = node.power_state, node.power_state or "power off"
            self._moved(node, "done", request)
            if before != node.power_state:
                self._conductor.notify("power_state_corrected", "success", node, request, from_power=before)
            return
        if job.kind == "inspect":
            node.inspection_started_at, node.inspection_finished_at = None, self._conductor.clock.now()
        if job.kind == "deploy":
            node.instance_info = {**node.instance_info, "image_type": "whole-disk"}
        to_manageable = job.kind == "clean" and (job.manual or node.retired)
        self._moved(node, "manage" if to_manageable else "done", request)

    def _failed(self, job: Job) -> None:
        node = job.node
        text = _TIMED_OUT if job.fault == "timeout" else _FAILED[job.kind]
        if job.fault == "prepare":
            text = f"Failed to prepare node {{node}}: {text}"
        node.last_error = text.format(node=node.uuid)
        if job.kind == "clean" and job.fault == "step":
            self._to_maintenance(node)
        self._end_steps(node)
        self._release(job)
        self._moved(node, "fail", job.request, bound_for=self._bound_for(job))
        # Ironic sends no notification of the following changes; only its API shows them.
        if job.kind == "clean" and job.fault == "timeout":
            self._to_maintenance(node)
            self._conductor.notify("maintenance_set", "success", node, job.request, sort="silent")
        elif job.kind == "delete":
            self._clear_instance(node)
            self._conductor.notify("update", "success", node, job.request, sort="silent")

    def _to_maintenance(self, node: SimNode) -> None:
        node.maintenance, node.fault = True, "clean failure"
        node.maintenance_reason = node.maintenance_reason or node.last_error

    def _clear_instance(self, node: SimNode) -> None:
        self._conductor.forget(node)
        self._conductor.change(
            node, instance_uuid=None, instance_name=None, instance_info={}, allocation_uuid=None
        )

    def _release(self, job: Job) -> None:
        self._jobs.pop(job.node.uuid, None)
        self._conductor.unlock(job.node)

    @staticmethod
    def _end_steps(node: SimNode) -> None:
        node.clean_step = node.deploy_step = node.service_step = {}
