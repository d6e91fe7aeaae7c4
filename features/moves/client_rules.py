"""Rules of what a client may request about moves."""

from bus.clients import DERIVED, NotAllowed, Projects, RegisteredClient, check_project, is_derived, is_of
from bus.parts import waits_since
from features.moves.messages import MoveRequested


def permitted_move(asked: MoveRequested, client: RegisteredClient, known: Projects) -> MoveRequested:
    """Return a client's request to move an instance; raise NotAllowed if the client may not send it. `known`
    maps the ids of the move and of its build to their projects.
    """
    check_project(asked.build, client, known)
    if not is_of(client, known.get(asked.move, known[asked.build])):
        raise NotAllowed("move: use a new uuid")
    if is_derived(asked.move):
        raise NotAllowed(f"move: {DERIVED}")
    if asked.forced_host:
        raise NotAllowed("forced_host: only operators bypass the filters; wanted_host names a host")
    if asked.kind == "evacuate":
        raise NotAllowed("kind: only operators evacuate a host")
    if waits_since(asked.parts):
        raise NotAllowed("since: only preempted instances keep the time of their first request")
    return asked
