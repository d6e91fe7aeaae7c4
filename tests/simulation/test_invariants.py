"""The invariants themselves: they let pass what is legal, and nothing else."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from bus.claims import Claimed
from bus.clock import Clock
from bus.reports import Inventory
from cell_conductor.core.build import holder_consumer
from tests.simulation.broken import Broken
from tests.simulation.guest_checks import GuestSeen
from tests.simulation.invariants import check_always
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_provider, a_report, an_order, on_hosts

HOST, CHILD, OTHER, POOL = 1, 11, 2, 3
ACTIVE = 5
RACK = (uid(1, "e"),)


class Stores:
    cells = ("c1",)

    def __init__(self, placement: sqlite3.Connection) -> None:
        self.placement = placement
        self.there = [GuestSeen(uid(ACTIVE), 1, uid(HOST, "a"), runs=True)]
        self.apart = set[int]()
        self.beside: dict[tuple[str, int], float] = {}
        self.back: set[str] | None = set()
        self.now = 0.0
        self.cell = sqlite3.connect(":memory:")
        self.cell.execute("CREATE TABLE builds (id, status, root, attempt)")
        self.cell.execute("INSERT INTO builds VALUES (?, 'active', ?, 1)", (uid(ACTIVE), uid(HOST, "a")))

    def guests(self) -> list[GuestSeen]:
        return self.there

    def went_back(self) -> set[str] | None:
        return self.back

    def time(self) -> float:
        return self.now

    def committed(self, name: str) -> sqlite3.Connection:
        return self.placement if name == "placement" else self.cell


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[Stores]:
    """A build that holds a child of its host and of a pool; and a host with less room than was in use."""
    async with a_placement(f"sqlite+aiosqlite:///{tmp_path}/p.db", Clock(now=lambda: 1.0)) as placement:
        disk = {"DISK_GB": Inventory(total=100)}
        await placement.reports.report_many(
            [
                a_report(HOST, a_provider(CHILD, HOST), aggregates=RACK),
                a_report(OTHER),
                a_report(POOL, inventories=disk, traits=("MISC_SHARES_VIA_AGGREGATE",), aggregates=RACK),
            ]
        )
        held = on_hosts(CHILD) | on_hosts(POOL, DISK_GB=1)
        orders = [an_order(a_claim(ACTIVE, held)), an_order(a_claim(6, on_hosts(OTHER)))]
        answers = await placement.claims.claim_many(orders)
        assert all(isinstance(answer.results[0], Claimed) for answer in answers)
        less = {"VCPU": Inventory(total=8, reserved=8)}
        await placement.reports.report_many([a_report(OTHER, sequence=2, inventories=less)])
    with closing(sqlite3.connect(tmp_path / "p.db")) as database:
        made = Stores(database)
        yield made
        made.cell.close()


def check(stores: Any) -> None:
    check_always(stores)


async def test_children_pools_and_less_room_than_is_used_are_legal(stores: Stores) -> None:
    check(stores)


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("UPDATE inventories SET used_when_set = 0", "more is used than there is"),
        ("UPDATE inventories SET used = used - 1 WHERE used > 0", "used is not the sum of the allocations"),
        (
            "UPDATE allocations SET consumer_id = (SELECT min(consumer_id) FROM allocations)",
            "held on two hosts at once",
        ),
        (
            "INSERT INTO retired_consumers (uuid, why, at) SELECT uuid, '', 0 FROM consumers",
            "retired, and holds resources",
        ),
    ],
)
async def test_what_is_not_is_found(stores: Stores, statement: str, complaint: str) -> None:
    stores.placement.execute(statement)
    with pytest.raises(Broken, match=complaint):
        check(stores)


@pytest.mark.parametrize(
    ("policy", "most", "complaint"),
    [
        ("affinity", 1, "members of a server group are apart"),
        ("anti-affinity", 0, "more of a server group on a host than may be"),
        ("anti-affinity", 1, None),
        ("soft-affinity", 1, None),
        ("soft-anti-affinity", 0, None),
    ],
)
async def test_a_hard_server_group_that_does_not_hold_is_found(
    stores: Stores, policy: str, most: int, complaint: str | None
) -> None:
    stores.placement.execute(
        "INSERT INTO server_groups VALUES (1, :uuid, 'web', 'p1', :policy, :most, 0.0, 0.0)",
        {"uuid": uid(1, "9"), "policy": policy, "most": most},
    )
    stores.placement.execute("UPDATE consumers SET group_id = 1")
    with pytest.raises(Broken, match=complaint) if complaint else nullcontext():
        check(stores)


@pytest.mark.parametrize("keeps_for", [ACTIVE, 6, None])
async def test_what_is_kept_of_an_instance_counts_with_it(stores: Stores, keeps_for: int | None) -> None:
    stores.placement.execute(
        "INSERT INTO server_groups VALUES (1, 'g', 'web', 'p1', 'anti-affinity', 1, 0, 0)"
    )
    stores.placement.execute("UPDATE consumers SET group_id = 1")
    move = (
        "UPDATE resource_providers SET root_provider_id = (SELECT id FROM resource_providers WHERE uuid = ?)"
    )
    stores.placement.execute(f"{move} WHERE uuid = ?", (uid(HOST, "a"), uid(OTHER, "a")))  # both on one host
    whose = keeps_for and uid(keeps_for)
    stores.placement.execute("UPDATE consumers SET keeps_for = ? WHERE uuid = ?", (whose, uid(6)))
    with nullcontext() if keeps_for == ACTIVE else pytest.raises(Broken, match="more of a server group"):
        check(stores)


@pytest.mark.parametrize(
    ("back", "legal"), [(set(), False), ({uid(6)}, True), ({uid(7)}, False), (None, True)]
)
async def test_members_are_together_unless_one_of_them_was_taken_back(
    stores: Stores, back: set[str] | None, legal: bool
) -> None:
    together(stores)
    stores.back = back
    with nullcontext() if legal else pytest.raises(Broken, match="members of a server group are apart"):
        check(stores)
    assert stores.apart == ({1} if back == {uid(6)} else set())


async def test_who_is_together_again_is_not_to_part_once_more(stores: Stores) -> None:
    together(stores)
    stores.apart = {1}
    check(stores)
    stores.placement.execute("UPDATE consumers SET group_id = NULL WHERE uuid = ?", (uid(6),))
    check(stores)
    stores.placement.execute("UPDATE consumers SET group_id = 1")
    with pytest.raises(Broken, match="members of a server group are apart"):
        check(stores)


def together(stores: Stores) -> None:
    """Both are in one group of affinity."""
    stores.placement.execute(
        f"INSERT INTO server_groups VALUES (1, '{uid(1, '9')}', 'web', 'p1', 'affinity', 1, 0.0, 0.0)"
    )
    stores.placement.execute("UPDATE consumers SET group_id = 1")


async def test_a_build_that_is_elsewhere_is_found(stores: Stores) -> None:
    stores.cell.execute("UPDATE builds SET root = ?", (uid(OTHER, "a"),))
    with pytest.raises(Broken, match=f"is active on {uid(OTHER, 'a')} and holds {uid(HOST, 'a')}"):
        check(stores)


@pytest.mark.parametrize(
    ("guest", "legal"),
    [
        (GuestSeen(uid(6), 1, uid(OTHER, "a")), True),
        (GuestSeen(uid(6), 1, uid(OTHER, "a"), on_hosts(OTHER)), True),
        (GuestSeen(uid(6), 1, uid(OTHER, "a"), on_hosts(OTHER, VCPU=100)), False),  # it has more than is held
        (GuestSeen(uid(6), 2, uid(HOST, "a")), False),  # its room is held, and not there
        (GuestSeen(uid(7), 1, uid(OTHER, "a")), False),  # room is held there, and for another
    ],
)
async def test_a_guest_without_its_room_is_found(stores: Stores, guest: GuestSeen, legal: bool) -> None:
    stores.there.append(guest)
    complaint = (
        f"{guest.build} may still be on {guest.root}, of attempt {guest.attempt}, and its room is not held"
    )
    with nullcontext() if legal else pytest.raises(Broken, match=complaint):
        check(stores)


@pytest.mark.parametrize(
    ("type_", "attempt", "legal"),
    [
        ("CLEANUP", 1, True),
        ("CLEANUP", 2, False),
        ("CLEANUP", 0, True),
        ("MIGRATION", 1, True),
        ("MIGRATION", 2, True),  # it was called 1 when another move began, and has been rebuilt since
        ("MIGRATION", 0, True),
    ],
)
async def test_what_may_be_left_of_an_attempt_has_the_room_that_is_kept_for_it(
    stores: Stores, type_: str, attempt: int, legal: bool
) -> None:
    keep(stores, uid(7), type_)
    stores.there.append(GuestSeen(uid(7), attempt, uid(OTHER, "a")))
    with nullcontext() if legal else pytest.raises(Broken, match="its room is not held"):
        check(stores)


def keep(stores: Stores, build: str, type_: str) -> None:
    stores.placement.execute(
        "INSERT OR IGNORE INTO consumer_types (name, created_at, updated_at) VALUES (?, 0, 0)", (type_,)
    )
    stores.placement.execute(
        "UPDATE consumers SET uuid = ?, keeps_for = ?,"
        " consumer_type_id = (SELECT id FROM consumer_types WHERE name = ?) WHERE uuid = ?",
        (holder_consumer(build, 1), build, type_, uid(6)),
    )


async def test_no_migration_keeps_room_for_two_by_their_numbers(stores: Stores) -> None:
    keep(stores, uid(7), "MIGRATION")
    stores.there += [GuestSeen(uid(7), attempt, uid(OTHER, "a")) for attempt in (0, 1)]
    with pytest.raises(Broken, match="has the room of one guest, and there are two"):
        check(stores)


async def test_two_guests_do_not_share_one_room(stores: Stores) -> None:
    stores.there.append(GuestSeen(uid(ACTIVE), 2, uid(HOST, "a")))
    with pytest.raises(Broken, match="has the room of one guest, and there are two"):
        check(stores)


@pytest.mark.parametrize(
    ("runs", "type_", "booted", "legal"),
    [
        (False, "MIGRATION", True, True),
        (True, "MIGRATION", True, False),
        (True, "CLEANUP", False, False),
        (True, "CLEANUP", True, True),  # its boot was given up, and its agent is late
    ],
)
async def test_of_no_instance_two_guests_run(
    stores: Stores, runs: bool, type_: str, booted: bool, legal: bool
) -> None:
    keep(stores, uid(ACTIVE), type_)
    [guest] = stores.there
    stores.there = [
        guest._replace(attempt=2),
        GuestSeen(uid(ACTIVE), 1, uid(OTHER, "a"), runs=runs, booted=booted),
    ]
    with nullcontext() if legal else pytest.raises(Broken, match="runs twice"):
        check(stores)


async def test_who_comes_late_is_to_be_gone_soon(stores: Stores) -> None:
    keep(stores, uid(ACTIVE), "CLEANUP")
    [guest] = stores.there
    late = GuestSeen(uid(ACTIVE), 1, uid(OTHER, "a"), runs=True)
    stores.there = [guest._replace(attempt=2), late]
    for stores.now in (1.0, 16.0):
        check(stores)
    stores.there.remove(late)
    check(stores)
    stores.there.append(late)
    for stores.now in (17.0, 32.0):
        check(stores)
    stores.now = 33.0
    with pytest.raises(Broken, match=r"runs twice.*for 15 s"):
        check(stores)


@pytest.mark.parametrize(("type_", "legal"), [("MIGRATION", True), ("CLEANUP", False)])
async def test_a_build_whose_place_a_move_keeps_is_where_it_was_until_its_cell_knows(
    stores: Stores, type_: str, legal: bool
) -> None:
    keep(stores, uid(ACTIVE), type_)
    stores.cell.execute("UPDATE builds SET root = ?", (uid(OTHER, "a"),))
    with nullcontext() if legal else pytest.raises(Broken, match="is active on"):
        check(stores)
