"""What is chosen is exactly the best there is at that moment, as a slow look at everybody has it."""

from random import Random

import pytest
from msgspec.structs import replace

from bus.candidates import Heard
from bus.messages import HostReported
from bus.vocabulary import Aggregate, Flavor, HostState, Image, Inventory
from placement_worker import IndexedSource
from placement_worker.core.index import Index
from scheduler_worker import ChoicePolicy
from tests.support.ids import uid
from tests.support.plain_choice import PlainChoice
from tests.support.provider_trees import state, tree
from tests.support.ranking_builders import Hall
from tests.support.scheduler_builders import a_request

CLOUDS = 1200
FLAVORS = tuple(
    Flavor(name=f"f{cpus}x{ram}", vcpus=cpus, memory_mb=ram, disk_gb=disk, extra_specs=specs)
    for cpus, ram, disk, specs in (
        (1, 512, 1, {}),
        (2, 1024, 5, {}),
        (4, 4096, 10, {"trait:CUSTOM_A": "required"}),
        (1, 256, 0, {"capabilities:hypervisor_type": "qemu"}),
        (3, 3000, 7, {"trait:CUSTOM_B": "forbidden"}),
    )
)
WEIGHERS = (
    "ram", "cpu", "disk", "io_ops", "load", "build_failure", "num_instances", "hypervisor_version",
    "image_cached", "preferred_traits", "soft_anti_affinity", "metrics",
)  # fmt: skip
RULES = ("up", "enabled", "io_ops", "num_instances", "compute_capabilities", "server_group_anti_affinity")


class FilledMemory:
    """Placement's memory as a test filled it."""

    def __init__(self) -> None:
        self.index = Index()

    def watch(self, heard: Heard) -> None: ...


def a_cloud(chance: Random) -> Hall:
    """Hosts alike and unlike, some of which are trees of NUMA cells; most say something of themselves."""
    memory, numbers = FilledMemory(), iter(range(100_000))
    sizes = [(chance.choice((4, 8, 64)), chance.choice((4096, 9000, 65_536))) for _ in range(3)]
    for nth in range(chance.choice((1, 2, 5, 20, 90))):
        cpus, ram = chance.choice(sizes)
        traits = [one for one in ("CUSTOM_A", "CUSTOM_B") if chance.random() < 0.4]
        groups = [one for one in range(3) if chance.random() < 0.2]
        root = next(numbers)
        stock = {"VCPU": cpus, "MEMORY_MB": ram, "DISK_GB": 100}
        used = {name: chance.choice((0, 0, amount // 2, amount - 1)) for name, amount in stock.items()}
        if chance.random() < 0.2:
            cells = [
                state(next(numbers), root, {"VCPU": cpus // 2, "MEMORY_MB": ram // 2}, traits=traits)
                for _ in range(2)
            ]
            parts = [state(root, None, {"DISK_GB": 100}, traits=traits, aggregates=groups), *cells]
        else:
            inventories = {name: Inventory(total=amount) for name, amount in stock.items()}
            parts = [state(root, None, dict(inventories), used, traits, groups)]
        memory.index.put(tree(*parts, cell=f"c{nth % 3}"), 1)
    for number in range(3):
        said = {"ram_weight_multiplier": "-2.5", "max_io_ops_per_host": "2", "cpu_weight_multiplier": "0.5"}
        metadata = {key: value for key, value in said.items() if chance.random() < 0.3}
        memory.index.aggregate_facts[uid(number, "e")] = Aggregate(id=uid(number, "e"), metadata=metadata)
    return told(chance, Hall(IndexedSource(memory), a_policy(chance)))


def told(chance: Random, hall: Hall) -> Hall:
    for nth, host in enumerate(hall.source.hosts()):
        if chance.random() < 0.2:
            continue
        said = HostState(
            root=host.uuid,
            host=host.host,
            load=chance.choice((0.0, 0.5, 2.5)),
            building=chance.choice((0, 0, 1, 7)),
            enabled=chance.random() < 0.9,
            instances=chance.randrange(4),
            hypervisor="qemu" if chance.random() < 0.6 else "xen",
            hypervisor_version=chance.choice((0, 2_000_000, 2_008_000)),
            images=("img",) if chance.random() < 0.3 else (),
            metrics={"temperature": chance.choice((20.0, 35.5))} if chance.random() < 0.8 else {},
        )
        report = HostReported(cell=host.cell, agent=host.agent, sequence=nth + 1, hosts=(said,))
        hall.book.hear(report, hall.now)
        for _ in range(chance.choice((0, 0, 0, 1, 3))):
            hall.book.failed(host.uuid, hall.now)
    return hall


def a_policy(chance: Random) -> ChoicePolicy:
    names = [one for one in WEIGHERS if chance.random() < 0.5]
    return ChoicePolicy.from_names(
        [one for one in RULES if chance.random() < 0.7],
        {name: chance.choice((-2.0, -1.0, 0.0, 0.3, 1.0, 5.0)) for name in names},
        options={
            "io_ops": {"max_io_ops_per_host": chance.choice((1, 3, 8))},
            "metrics": {"weight_setting": {"temperature": -1.0}, "required": chance.random() < 0.3},
        },
        near=chance.choice((0.0, 0.0, 0.01, 0.4)),
        cells=chance.choice((None, None, ("c0", "c1"))),
    )


def one_cloud(seed: int) -> int:
    """How many hosts it gave, each of them the best."""
    chance, given = Random(seed), 0
    hall = a_cloud(chance)
    for kind in range(chance.choice((1, 2, 3))):  # each finds what was promised to those before it
        request = a_request(
            kind,
            flavor=chance.choice(FLAVORS),
            image=Image(name="img") if chance.random() < 0.5 else None,
            preferred_traits={"CUSTOM_A": 1.0} if chance.random() < 0.3 else {},
        )
        choosing, its_seed = hall.choosing(), f"{seed}/{kind}"
        wish = hall.wish(request)
        ranking = choosing.rank(wish, its_seed)
        search, seen = hall.source.search(wish.question), hall.book.level(hall.source, hall.now)
        plain = PlainChoice(wish, search, seen, hall.policy, its_seed)
        picks = []
        for _ in range(chance.choice((1, 4, 40))):
            expected = plain.best()
            pick = ranking.take(3)
            if pick is None:
                assert expected == [], (seed, kind)
                break
            roots = list(dict.fromkeys(way.root for way in pick.choices))
            assert roots == expected[:3], (seed, kind, given)
            plain.choose(pick.root)
            picks.append(pick)
            given += 1
            if chance.random() < 0.1:
                back = picks.pop(chance.randrange(len(picks)))
                ranking.put_back([back])
                plain.chosen[back.root] -= 1
    return given


@pytest.mark.parametrize("first", range(0, CLOUDS, 200))
def test_every_choice_is_the_best_of_all(first: int) -> None:
    given = sum(one_cloud(seed) for seed in range(first, first + 200))
    assert given > 1000


@pytest.mark.parametrize("seed", range(3))
def test_packing_takes_the_fullest_host_that_fits(seed: int) -> None:
    """Of 600 hosts, every one filled otherwise, and flavors mixed."""
    chance, memory = Random(seed), FilledMemory()
    for number, used in enumerate(chance.sample(range(60_000), 600)):
        stock = {"VCPU": 1000, "MEMORY_MB": 65_536, "DISK_GB": 10_000}
        memory.index.put(tree(state(number, None, dict(stock), {"MEMORY_MB": used})), 1)
    policy = ChoicePolicy.from_names(weighers={"ram": -1.0}, max_builds=10_000)
    hall = Hall(IndexedSource(memory), policy)
    everybody = hall.source.search(hall.wish(a_request()).question)
    free = {one.uuid: everybody.amounts(one.position)[0]["MEMORY_MB"] for one in hall.source.hosts()}
    for kind in range(60):
        flavor = chance.choice(FLAVORS[:2])
        ranking = hall.rank(replace(a_request(kind), flavor=flavor), f"{seed}/{kind}")
        for _ in range(20):
            pick = ranking.take()
            assert pick is not None
            fullest = min(left for left in free.values() if left >= flavor.memory_mb)
            assert free[pick.root] == fullest
            free[pick.root] -= flavor.memory_mb
