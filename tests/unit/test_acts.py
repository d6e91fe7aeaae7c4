"""The table of acts and roles: which message is which act, what it is done to, and who may do it."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus import topics
from bus.acts import ACTS, BY_NAME, Act, Target, act_of, allowed, completed, describe, judged
from bus.aggregates import AggregateEditRequested, DropAggregate
from bus.audit_trail import Operator
from bus.cells import CellEditRequested, RegisterCell
from bus.domains import LabelEditRequested
from bus.messages import BuildDeleteRequested, BuildRequested
from bus.names import MakeName, NameEditRequested, RenameName
from bus.projects import ProjectsFound
from bus.requests import Flavor
from bus.resources import EditRequested, MakeProvider, Provider, ProvidersFound, SetTraits
from bus.topics import ANYONE
from bus.vocabulary import MAX_CAUSE, Message, cause_of
from tests.support.ids import uid

BOOT = BuildRequested(
    request=uid(1), instances=(uid(2), uid(3)), flavor=Flavor(name="vm", vcpus=1), project="p1", cell="c1"
)
BOOTED = Target(f"{uid(2)} and 1 more", "", "c1", "p1", (uid(2), uid(3)))
READS = ("Find", "WhatIf", "Plan", "TryPolicy", "GuestsAsked")
DOORS = ("ClientRequested", "ClientAsked", "ClientRelay", "ActsRecorded")  # of clients, who are checked there
RECORDS = ("ProcessRestarted",)  # of a process about itself: nothing else changes


def test_every_message_that_anyone_may_send_is_an_act_or_changes_nothing() -> None:
    open_ = [topic.message for topic in topics.TOPICS if topic.source == ANYONE]
    open_ += [query.asks for query in topics.QUERIES if query.source == ANYONE]
    acting = {message for act in ACTS for message in act.messages}
    others = [message.__name__ for message in open_ if message not in acting]
    assert [name for name in others if not name.startswith((*READS, *DOORS, *RECORDS))] == []


EXPECTED: dict[str, tuple[Message, str, Target]] = {
    "boot": (BOOT, "boot", BOOTED),
    "delete": (BuildDeleteRequested(build=uid(2), cell="c1"), "delete", Target(uid(2), cell="c1")),
    "traits": (EditRequested(edit=SetTraits(provider=uid(5), traits=())), "mark host", Target(uid(5))),
    "a provider": (
        EditRequested(edit=MakeProvider(provider=uid(5), name="h")), "edit provider", Target(uid(5)),
    ),
    "a new trait": (
        NameEditRequested(kind="trait", edit=MakeName(name="CUSTOM_A")), "make name", Target("CUSTOM_A"),
    ),
    "a renamed class": (
        NameEditRequested(kind="resource class", edit=RenameName(name="CUSTOM_A", to="CUSTOM_B")),
        "edit name",
        Target("CUSTOM_A"),
    ),
    "a cell": (CellEditRequested(edit=RegisterCell(cell="c9")), "cell", Target("c9", cell="c9")),
    "an aggregate": (
        AggregateEditRequested(edit=DropAggregate(aggregate=uid(7))), "aggregate", Target(uid(7)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("message", "act", "target"), EXPECTED.values(), ids=EXPECTED.keys())
def test_a_message_names_its_act_and_target(message: Message, act: str, target: Target) -> None:
    found = act_of(message)
    assert (found and found.name, describe(message)) == (act, target)


def an_operator(role: Any, **limits: tuple[str, ...]) -> Operator:
    return Operator(name="ann", role=role, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
@pytest.mark.parametrize("role", ["", "reader", "operator", "admin"])
def test_a_role_does_what_the_table_says(role: str, act: Act) -> None:
    may = {"reader": ("reader", "operator", "admin"), "operator": ("operator", "admin"), "admin": ("admin",)}
    why = allowed(an_operator(role), act, Target("x"))
    assert (why == "") == (role in may[act.role])
    assert not why or act.name in why


LIMITED = {
    "in its cell": ("delete", {"cells": ("c1",)}, Target("x", cell="c1"), True),
    "in another cell": ("delete", {"cells": ("c1",)}, Target("x", cell="c2"), False),
    "in an unknown cell": ("delete", {"cells": ("c1",)}, Target("x"), False),
    "in its project": ("delete", {"projects": ("p1",)}, Target("x", project="p1"), True),
    "in another project": ("delete", {"projects": ("p1",)}, Target("x", project="p2"), False),
    "in its cell, in another project": (
        "delete", {"cells": ("c1",), "projects": ("p1",)}, Target("x", cell="c1", project="p2"), False,
    ),
    "a read, limited to cells": ("read", {"cells": ("c1",)}, Target("x", cell="c2"), True),
    "a read of another project": ("read", {"projects": ("p1",)}, Target("x", project="p2"), False),
    "without a cell by nature": ("make name", {"cells": ("c1",)}, Target("x"), True),
    "of the whole region": ("aggregate", {"cells": ("c1",)}, Target("x", cell="c1"), False),
    "of a cell, not a project": (
        "mark host", {"projects": ("p1",)}, Target("x", cell="c1", project="p1"), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("act", "limits", "target", "may"), LIMITED.values(), ids=LIMITED.keys())
def test_a_limited_role_acts_only_where_the_target_is_known_to_be_inside(
    act: str, limits: dict[str, tuple[str, ...]], target: Target, may: bool
) -> None:
    assert (allowed(an_operator("operator", **limits), BY_NAME[act], target) == "") == may


def test_an_admin_act_is_refused_to_a_limited_admin() -> None:
    assert allowed(an_operator("admin", cells=("c1",)), BY_NAME["give host"], Target("x", cell="c1"))


def found(*cells: str) -> ProvidersFound:
    hosts = (
        Provider(id=uid(number), name=f"h{number}", parent=None, root=uid(number), generation=0, cell=cell)
        for number, cell in enumerate(cells)
    )
    return ProvidersFound(providers=tuple(hosts))


def test_the_state_of_the_target_tells_its_name_and_cell() -> None:
    assert completed(Target("x"), found("c1")) == Target("x", "h0", "c1")


def test_targets_in_several_cells_have_no_cell() -> None:
    assert completed(Target("x"), found("c1", "c2")).cell == ""


def test_the_stored_cell_counts_and_not_the_requested_one() -> None:
    assert completed(Target("x", cell="c1"), found("c2")).cell == "c2"


def test_a_long_text_is_cut() -> None:
    assert len(cause_of("x" * 10_000)) == MAX_CAUSE


def test_an_edit_of_a_host_by_a_limited_role_is_bound_to_the_cell_on_which_it_was_judged() -> None:
    operator = Operator(name="ann", role="operator", cells=("c1",))
    provider = Provider(id=uid(5), name="h", parent=None, root=uid(5), generation=1, cell="c1")
    state = ProvidersFound(providers=(provider,))
    traits = EditRequested(edit=SetTraits(provider=uid(5), traits=()))
    labels = LabelEditRequested(roots=(uid(5),), set={"rack": "r1"})
    assert judged(operator, traits, ProjectsFound(), state) == (
        "",
        EditRequested(edit=SetTraits(provider=uid(5), traits=(), cell="c1")),
    )
    assert judged(operator, labels, ProjectsFound(), state) == ("", replace(labels, cell="c1"))
