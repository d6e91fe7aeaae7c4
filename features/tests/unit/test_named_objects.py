"""Each text in a message that a client may send is declared: it names an object, gives an id to a new object,
or names nothing.
"""

from typing import Any

import pytest

from berth.kit import DescribedOperation
from berth.kit.testing import rest_operations
from bus.decisions import FindRefused
from bus.messages import BuildDeleteRequested, BuildRequested
from bus.named_objects import named_objects
from bus.parts import RequestParts
from bus.queries import FindBuilds, FindDecision, FindInstances
from bus.requests import Flavor, Hints, ResourceGroup
from bus.resources import FindAllocations, FindUsages
from bus.vocabulary import Message
from features.clients.messages import actions
from features.groups.messages import GroupPart
from features.moves.messages import MoveRequested
from features.reservations.messages import ReservationPart
from features.topology.messages import GangRole, TopologyPart
from features.what_if.messages import WhatIf
from tests.support.feature_parts import modules_of_features
from tests.support.ids import uid
from tests.support.named_fields import text_fields

QUERIES: tuple[type[Message], ...] = (
    FindBuilds, FindInstances, FindRefused, FindDecision, FindAllocations, FindUsages,
)  # fmt: skip
OF_CLIENTS = "of_clients"  # function of a feature's module `scheduler`


def questions() -> list[type[Message]]:
    """Return the queries that clients may send."""
    return [
        *QUERIES,
        *(
            getattr(each, OF_CLIENTS)(None).asks
            for each in modules_of_features("scheduler")
            if hasattr(each, OF_CLIENTS)
        ),
    ]


def requests() -> list[Any]:
    """Return the messages by which members of projects request acts, on the bus and over HTTP."""
    bodies = [each.body for each in rest_operations().values() if isinstance(each, DescribedOperation)]
    return [kind.topic.message for kind in actions().values()] + [body for body in bodies if body is not None]


SENT: list[type[Message]] = sorted(
    {*questions(), *requests(), BuildDeleteRequested}, key=lambda kind: kind.__name__
)


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.__name__)
def test_every_text_of_a_client_is_declared(kind: type[Message]) -> None:
    assert [field.path for field in text_fields(kind) if not field.is_declared] == []


def test_the_declarations_are_those_by_which_requests_are_judged() -> None:
    assert {MoveRequested, BuildRequested, WhatIf} <= {*SENT}
    judged = {(field.path, field.kind and field.kind.judged) for field in text_fields(BuildRequested)}
    assert ("parts.groups.members[]", "owner") in judged
    assert ("parts.reservations.reservation", "worker") in judged


A, B, C, D, E, F = (uid(number, "b") for number in range(1, 7))
GROUPS = (ResourceGroup(member_of=((E,),), in_tree=F),)
PARTS = RequestParts(
    GroupPart(group=C, members=(D,)),
    ReservationPart(reservation=E),
    TopologyPart(roles=(GangRole(name="web", flavor=Flavor(name="s")),)),
)
BOOT = BuildRequested(
    request=A, instances=(A, B), flavor=Flavor(name="small"), project="p1", user="u", zone="z", cell="c1",
    hints=Hints(same_host=(C,), different_host=(D,)), groups=GROUPS, ignore_hosts=("h1",), parts=PARTS,
)  # fmt: skip
NAMED = [
    ("request", "request", A), ("instance", "instances[0]", A), ("instance", "instances[1]", B),
    ("project", "project", "p1"), ("user", "user", "u"), ("zone", "zone", "z"), ("cell", "cell", "c1"),
    ("instance", "hints.same_host[0]", C), ("instance", "hints.different_host[0]", D),
    ("host", "ignore_hosts[0]", "h1"), ("aggregate", "groups[0].member_of[0][0]", E),
    ("provider", "groups[0].in_tree", F), ("server group", "hints.group", C),
    ("instance", "parts.groups.members[0]", D), ("reservation", "hints.reservation", E),
]  # fmt: skip


def test_the_objects_of_a_request_are_found_in_its_fields_hints_and_parts() -> None:
    assert [(each.kind.name, each.path, each.id) for each in named_objects(BOOT)] == NAMED
    assert {each.path for each in named_objects(BOOT) if each.is_new} == {
        "request", "instances[0]", "instances[1]",
    }  # fmt: skip


def test_the_objects_of_a_nested_request_are_found() -> None:
    inner = {(each.kind.name, each.id) for each in named_objects(WhatIf(request=BOOT))}
    assert inner == {(kind, id_) for kind, _, id_ in NAMED}
