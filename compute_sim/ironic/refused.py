"""Error answers of Ironic's API: an HTTP status and a message."""

from compute_sim.ironic.node import SimNode


class ApiRefusal(Exception):
    """Ironic refuses the request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def not_found(ident: str) -> ApiRefusal:
    return ApiRefusal(404, f"Node {ident} could not be found.")


def not_acceptable(text: str = "Request not acceptable.") -> ApiRefusal:
    return ApiRefusal(406, text)


def locked(node: SimNode) -> ApiRefusal:
    return ApiRefusal(
        409,
        f"Node {node.uuid} is locked by host {node.reservation}, please retry after the current operation "
        "is completed.",
    )


def wrong_state(action: str, node: SimNode, state: str | None) -> ApiRefusal:
    return ApiRefusal(
        400,
        f'The requested action "{action}" can not be performed on node "{node.uuid}" while it is in state '
        f'"{state}".',
    )
