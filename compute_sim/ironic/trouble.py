"""Fault injection: failing works, wrong power states, event storms."""

from starlette.responses import Response

from compute_sim.ironic.conductor import FAULTS, KINDS, Conductor
from compute_sim.ironic.machine import event_of
from compute_sim.ironic.power import BMC, Power
from compute_sim.ironic.request import ApiRefusal, SimRequest, json_response, text_of
from compute_sim.ironic.transitions import Works


class TroubleHandlers:
    """Handlers of the paths under /sim."""

    def __init__(self, conductor: Conductor, works: Works, power: Power) -> None:
        self._conductor = conductor
        self._works = works
        self._power = power

    async def fault(self, call: SimRequest) -> Response:
        """Handle {"work": "clean", "fault": "step"}: the node's next work of that kind fails."""
        body = await call.fields()
        work, fault = body.get("work"), body.get("fault")
        if work not in KINDS or fault not in (*FAULTS, None):
            raise ApiRefusal(
                400, f"work is one of {', '.join(KINDS)}; fault is one of {', '.join(FAULTS)} or null"
            )
        self._conductor.plan_fault(self._conductor.find(call.ident), work, fault)
        return Response(status_code=204)

    async def bmc(self, call: SimRequest) -> Response:
        """Handle {"says": "unreachable"}: the node's BMC reports this; null restores the state that Ironic
        assumes.
        """
        says = (await call.fields()).get("says")
        if says not in (*BMC, None):
            raise ApiRefusal(400, f"says is one of {', '.join(BMC)} or null")
        self._power.tamper(self._conductor.find(call.ident), says)
        return Response(status_code=204)

    async def storm(self, call: SimRequest) -> Response:
        """Handle {"target": "provide", "count": 5000}: start this transition on so many nodes
        simultaneously.
        """
        body = await call.fields()
        target, count = text_of(body, "target"), body.get("count")
        if not isinstance(count, int) or count < 1:
            raise ApiRefusal(400, "count is how many nodes")
        return json_response({"nodes": storm(self._conductor, self._works, target, count, call.id)}, 202)


def storm(conductor: Conductor, works: Works, target: str, count: int, request: str) -> int:
    """Start this transition on at most `count` free nodes simultaneously, and return their number."""
    asked = 0
    for node in conductor.nodes.values():
        event = event_of(target, node.provision_state)
        if asked == count:
            break
        busy = node.reservation is not None or node.maintenance
        if event is None or busy or node.protected or node.retired:
            continue
        works.begin(node, event, request)
        asked += 1
    return asked
