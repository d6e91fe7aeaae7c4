"""The codes of decisions, for programs: of what removed hosts, and of why there is none at all.

A rule without a code of its own is known by its name (`berth rules`); so are an operator's own.
"""

from collections.abc import Mapping

EXCLUDED = "excluded by the request"  # placement's constraint of code forbidden_host

# Of a removal or a near miss. That of the constraint that left nobody is the code of the decision.
CONSTRAINTS: Mapping[str, str] = {
    "cell": "it is in another cell",
    "cell_disabled": "an operator has disabled its cell",
    "zone": "it is in another zone",
    "host": "it is not the host that was asked for",
    "forbidden_host": "it is among the hosts that were ruled out",
    "reserved": "it is reserved for a waiting request, or being emptied",
    "class": "too little of a resource class is free there, or it has none",
    "trait": "it lacks a trait",
    "forbidden_trait": "it has a trait that it must not have",
    "aggregate": "it is in none of the aggregates that were asked for",
    "forbidden_aggregate": "it is in an aggregate that was ruled out",
    "tree": "it is not the tree that was asked for",
    "group": "all is there, but not together where one group of the flavor needs it",
    "together": "each group fits, but not all of them beside one another",
    "unseen": "there are too many combinations to know",
    "has_agent": "nobody builds on it, or its cell has no conductor here",
    "down": "it is not heard of, or an operator says that it is down",
    "disabled": "an operator or its agent has disabled it",
    "tenant": "it is for other projects",
    "server_group": "the policy of the server group does not let it be there",
    "chosen": "what room it has was given to others a moment ago",
}

# Of a decision, where no constraint by itself left nobody.
ENDS: Mapping[str, str] = {
    "no_hosts": "placement knows no host at all",
    "room": "hosts would do, but not for all instances at once",
    "refused": "placement refused every host that would do",
    "claim": "placement cannot take such a claim",
    "no_server_group": "the server group is none of this project, or none any more",
    "unreadable": "the request cannot be meant: the reason names the field",
    "waited": "it waited as long as it said, and there was no room",
    "cancelled": "it was cancelled while it waited",
    "line": "it waits behind others that ask for the same",
    "client": "the client is not bound to the project, or may not ask this",
}

# Of a move that did not begin: one of these, or why there was no host for it.
MOVES: Mapping[str, str] = {
    "unknown": "no cell knows of such an instance",
    "no_conductor": "the conductor of its cell does not answer, or heard of it in vain",
    "status": "it is not active, or for an unshelve not shelved; or it has ended meanwhile",
    "moving": "it is in another move, or another move of it waits for room",
    "held": "what it holds in placement is not what its cell knows of",
    "not_fenced": "evacuate: its host is not forced down, so its guest may still run",
    "source_down": "its host is forced down: it can only be evacuated",
    "bare_metal": "it is a bare-metal node itself",
    "same_host": "it is on the wanted host already",
    "image": "rebuild: the host it is on does not do for the image",
}
