"""Codes in decisions, for programs: why hosts were removed, and why a request got none.

A filter without a code is identified by its name (`berth rules`); so are an operator's filters.
"""

from collections.abc import Mapping

EXCLUDED = "excluded by the request"  # name of placement's constraint with the code forbidden_host

# Codes of removals and near misses. The constraint that removed the last host gives the decision its code.
CONSTRAINTS: Mapping[str, str] = {
    "cell": "the host is in another cell",
    "cell_disabled": "an operator has disabled the cell of the host",
    "zone": "the host is in another zone",
    "host": "the host is not the requested one",
    "forbidden_host": "the request excludes the host",
    "reserved": "the host is reserved for a waiting request, or being drained",
    "class": "the host has too little free capacity of a resource class, or no inventory of it",
    "trait": "the host lacks a required trait",
    "forbidden_trait": "the host has a forbidden trait",
    "aggregate": "the host is in no requested aggregate",
    "forbidden_aggregate": "the host is in an excluded aggregate",
    "tree": "the host is not the requested tree",
    "group": "no single provider of the host has all resources and traits of a request group",
    "together": "each request group fits, but not all together",
    "unseen": "the search stopped early because of too many combinations",
    "has_agent": "the host has no agent, or its cell has no conductor",
    "down": "the host sends no heartbeats, or is forced down by an operator",
    "disabled": "the host is disabled by an operator or its agent",
    "tenant": "the host is dedicated to other projects",
    "server_group": "the policy of the server group forbids the host",
    "chosen": "the free capacity of the host was just reserved for other requests",
}

# Codes of decisions when no single constraint removed the last host.
ENDS: Mapping[str, str] = {
    "no_hosts": "placement has no hosts",
    "room": "hosts fit, but not for all instances together",
    "refused": "placement refused the claims on all hosts that fit",
    "claim": "placement rejects the claim as invalid",
    "no_server_group": "the server group does not exist in this project",
    "unreadable": "the request is invalid: the reason names the field",
    "waited": "the request waited for its maximum time without free capacity",
    "cancelled": "the request was cancelled while it waited",
    "line": "the request waits behind requests of the same equivalence class",
    "client": "the client is not registered for the project, or may not send this request",
}

# Codes of moves that did not begin; or the code of the decision.
MOVES: Mapping[str, str] = {
    "unknown": "no cell has a record of the instance",
    "no_conductor": "the conductor of the cell did not answer or act on the move",
    "status": "the instance is not active, or for an unshelve not shelved; or it has ended meanwhile",
    "moving": "the instance is in another move, or another move of it waits for capacity",
    "held": "its allocations in placement differ from its cell's records",
    "not_fenced": "evacuate: the host is not forced down, so the guest may still run",
    "source_down": "the host is forced down: the instance can only be evacuated",
    "bare_metal": "the instance is on a bare-metal node",
    "same_host": "the instance is on the wanted host already",
    "image": "rebuild: its host does not satisfy the new image",
}
