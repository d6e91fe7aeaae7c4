"""Settings: sources, precedence, and errors."""

import inspect
import os
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from berth import composition, ironic, simulated_agents, worker_roles
from berth.commands.run import layout_chosen
from berth.configuration import EFFECTIVE_ENV, read
from berth.kit.choice_policies import request_options
from berth.logs import secrets_of
from berth.services import metrics_addresses
from berth.settings import GROUP_OF, KINDS, BadSetting, Cell, Settings, settings_by_name
from berth.settings_checks import DATABASE_PARAMETERS
from bus.delivery.runner import Bus
from bus.masking import masked
from bus.sql import postgres
from tests.support.written_settings import settings_of

pytestmark = pytest.mark.usefixtures("no_settings_file")

SECRET = "geheim"


ENV, HOSTS = "BERTH_SIMULATOR_HOSTS", "simulator.hosts"


def variable_of(name: str) -> str:
    return f"BERTH_{name.upper().replace('.', '_')}"


@pytest.mark.parametrize(
    ("environment", "toml", "sets", "flags", "hosts", "origin"),
    [
        ({}, "", {}, {}, 200, None),
        ({ENV: "1"}, "", {}, {}, 1, ENV),
        ({ENV: "1"}, "[simulator]\nhosts = 2", {HOSTS: "3"}, {}, 3, "--set simulator.hosts"),
        ({ENV: "1"}, "[simulator]\nhosts = 2", {}, {}, 1, ENV),
        ({ENV: "1"}, "[simulator]\nhosts = 2", {HOSTS: "3"}, {HOSTS: 4}, 4, "--hosts"),
        ({ENV: "1"}, "", {}, {HOSTS: None}, 1, ENV),  # a flag that was not given
        ({ENV: ""}, "", {}, {}, 200, None),  # what is empty is not set
        ({"BERTH_SIMULATOR": "sim.toml"}, "", {}, {}, 9, "sim.toml"),
        ({"BERTH_SIMULATOR_FILE": "sim.toml"}, "", {}, {}, 9, "sim.toml"),
        ({"BERTH_SIMULATOR": "sim.toml", ENV: "1"}, "", {}, {}, 1, ENV),
        ({ENV: "1"}, 'simulator = "sim.toml"', {}, {}, 1, ENV),
        ({}, "[simulator]\nhosts = 2", {"simulator": "sim.toml"}, {}, 9, "sim.toml"),
        ({}, "", {"simulator": "sim.toml", HOSTS: "3"}, {}, 3, "--set simulator.hosts"),
        ({}, "simulator.hosts = 2", {}, {}, 2, "berth.toml"),
    ],
)
def test_file_then_environment_then_set_then_flags(
    environment: dict[str, str],
    toml: str,
    sets: dict[str, str],
    flags: dict[str, Any],
    hosts: int,
    origin: str | None,
) -> None:
    Path("berth.toml").write_text(toml)
    Path("sim.toml").write_text("hosts = 9")
    effective = read(flags, sets=sets, environment=environment)
    assert (effective.settings.simulator.hosts, effective.origins.get(HOSTS)) == (hosts, origin)


def test_a_file_that_an_option_names_outranks_the_environment_and_the_environment_all_other_files() -> None:
    Path("mine.toml").write_text("[simulator]\nhosts = 3")
    assert read(file=Path("mine.toml"), environment={ENV: "1"}).settings.simulator.hosts == 3
    assert read(environment={"BERTH_CONFIG": "mine.toml", ENV: "1"}).settings.simulator.hosts == 1


@pytest.mark.parametrize("mode", [0o646, 0o602, 0o666])
def test_a_file_that_other_users_can_write_is_refused(mode: int) -> None:
    Path("berth.toml").write_text("[simulator]\nhosts = 2")
    Path("berth.toml").chmod(mode)
    with pytest.raises(BadSetting, match=r"/berth.toml: not used, because other users can write to it"):
        read(environment={})
    with pytest.raises(BadSetting, match="other users can write"):
        read(file=Path("berth.toml"), environment={})


def test_a_file_of_another_user_is_used_only_if_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("berth.toml").write_text("[simulator]\nhosts = 2")
    owner = Path("berth.toml").stat().st_uid or 4711
    if os.getuid() == 0:
        os.chown("berth.toml", owner, -1)
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(BadSetting, match="belongs to another user; --config uses it"):
        read(environment={})
    assert read(file=Path("berth.toml"), environment={}).settings.simulator.hosts == 2


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("amqp_url", "", ""),
        ("simulator.hosts", "17", 17),
        ("build_timeout", "2.5", 2.5),
        ("isolate_aggregates", "false", False),
        ("isolate_aggregates", "1", True),
        ("cells", "a, b,", ("a", "b")),
        ("scheduler_weighers", "ram=2, load=-1.5", {"ram": 2.0, "load": -1.5}),
        ("scheduler_filters", "up, ComputeFilter", ("up", "ComputeFilter")),
        ("scheduler_rules", "io_ops.max_io_ops_per_host=4", {"io_ops": {"max_io_ops_per_host": "4"}}),
        ("scheduler_rules", '{"io_ops": {"for_nova": false}}', {"io_ops": {"for_nova": False}}),
    ],
)
def test_an_environment_variable_is_converted_to_the_settings_type(name: str, text: str, value: Any) -> None:
    assert settings_by_name(settings_of({variable_of(name): text}).settings)[name] == value


# Cells

SERVED = {"BERTH_AMQP_URL": "amqp://all@h/", "BERTH_DATABASE_URL": "postgresql://h/all"}
TABLES = """
[cells.a]
broker = "amqp://a@h/"
[cells.b]
database = "postgresql://h/b"
"""


@pytest.mark.parametrize(
    ("environment", "toml", "flags", "cells"),
    [
        ({"BERTH_CELLS": "a,b"}, "", {}, (Cell("a"), Cell("b"))),
        ({}, 'cells = ["a", "b"]', {}, (Cell("a"), Cell("b"))),
        ({}, 'cells = "a,b"', {}, (Cell("a"), Cell("b"))),
        ({}, "cells = 2", {}, (Cell("c1"), Cell("c2"))),
        ({}, 'cells = "2"', {}, (Cell("c1"), Cell("c2"))),
        ({"BERTH_CELLS": "2"}, "", {}, (Cell("c1"), Cell("c2"))),
        ({}, "cells = 4", {"cells": "1"}, (Cell("c1"),)),
        ({}, TABLES, {}, (Cell("a", "amqp://a@h/"), Cell("b", database="postgresql://h/b"))),
        ({}, TABLES, {"cells": ("b", "c")}, (Cell("b", database="postgresql://h/b"), Cell("c"))),
        ({}, TABLES, {"cell_amqp_urls": {"b": "amqp://b@h/"}},
         (Cell("a"), Cell("b", "amqp://b@h/", "postgresql://h/b"))),
        ({"BERTH_CELLS": "a,b", "BERTH_CELL_AMQP_URLS": "b=amqp://b@h/"}, "", {}, (Cell("a"), Cell("b", "amqp://b@h/"))),
        ({"BERTH_CELLS": "a,b",
          "BERTH_CELL_AMQP_URLS": "a=amqp://a@h1,h2:1/v?heartbeat=9, b=amqp://b@h,i/"}, "", {},
         (Cell("a", "amqp://a@h1,h2:1/v?heartbeat=9"), Cell("b", "amqp://b@h,i/"))),
    ],
)  # fmt: skip
def test_a_cell_is_a_name_or_a_table(
    environment: dict[str, str], toml: str, flags: dict[str, Any], cells: tuple[Cell, ...]
) -> None:
    assert settings_of(SERVED | environment, toml, **flags).settings.every_cell == cells


def test_a_cells_workers_speak_to_the_broker_as_the_cells_user(monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []
    monkeypatch.setattr("bus.rabbit.RabbitTransport", lambda url, **_: urls.append(url))
    settings = settings_of(SERVED, TABLES).settings
    for cell in ("", "a", "b"):
        composition.transport(settings, "test", cell)
    assert urls == ["amqp://all@h/", "amqp://a@h/", "amqp://all@h/"]


FERRIED = """
[cells.a]
[cells.b]
ferry = "amqp://ferry:geheim@far/"
[cells.c]
ferry = "amqp://ferry:geheim@far/"
broker = "amqp://c:geheim@far/"
"""


def test_a_cell_with_its_own_broker_has_a_ferry(monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []
    monkeypatch.setattr("bus.rabbit.RabbitTransport", lambda url, **_: urls.append(url))
    settings = settings_of(SERVED, FERRIED).settings
    ferries = [role for role in worker_roles.roles_of(settings) if role.worker == "ferry"]
    assert [role.cell for role in ferries] == ["b", "c"]
    for role in (ferries[0], *(worker_roles.Role("conductor", cell) for cell in ("a", "b", "c"))):
        composition.way_of([role], settings)
    common = SERVED["BERTH_AMQP_URL"]
    assert urls == [common, common, "amqp://ferry:geheim@far/", "amqp://c:geheim@far/"]
    stages = [
        {role.worker for role in stage} for stage in worker_roles.stages_of(worker_roles.roles_of(settings))
    ]
    assert [stages.index({worker}) for worker in ("conductor", "ferry", "placement")] == [1, 2, 3]
    assert worker_roles.role_named("ferry", "b", settings) == ferries[0]
    with pytest.raises(BadSetting, match=r"cell 'a' has no separate RabbitMQ; .* are: b, c"):
        worker_roles.role_named("ferry", "a", settings)


def test_the_way_to_a_cells_broker_is_shown_without_its_password() -> None:
    values = settings_by_name(settings_of(SERVED, FERRIED).settings)["cell_ferry_urls"]
    assert "geheim" not in str(masked(values)) and "geheim" in str(values)


def test_a_cell_without_its_own_urls_uses_the_common_ones() -> None:
    settings = settings_of(SERVED, TABLES).settings
    assert settings.cell("a") == Cell("a", "amqp://a@h/", "postgresql://h/all")
    assert settings.cell("b") == Cell("b", "amqp://all@h/", "postgresql://h/b")
    assert (settings.cell("a").user, settings.cell("b").user) == ("a", "all")


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[cells.a]\nbrokers = 1", "cells.a: there is no 'brokers' of a cell; there are: broker, database,"),
        ("[cells]\na = 'amqp://u:geheim@h/'", "cells.a: there is no 'amqp://u:****@h/' of a cell"),
        ("[cells.a]\nbroker = 1", "cell_amqp_urls takes name=value, comma separated, not a table of 1"),
        ("[cells.A]", "cells = ('A',): a cell's name has lower-case letters"),
        ("[cells.a]\nbroker = 'h'", "cell_amqp_urls = {'a': 'h'}: must begin with amqp:// or amqps://"),
        ("[cells.a]\nbroker = 'amqp://h'", "cell_amqp_urls = {'a': 'amqp://h'}: without amqp_url there is"),
        ("[cells.a]\nferry = 'h'", "cell_ferry_urls = {'a': 'h'}: must begin with amqp:// or amqps://"),
        ("[cells.a]\nferry = 'amqp://h'", "cell_ferry_urls = {'a': 'amqp://h'}: without amqp_url there is"),
    ],
)
def test_a_bad_table_of_a_cell_is_named(toml: str, says: str) -> None:
    with pytest.raises(BadSetting) as refused:
        settings_of(toml=toml)
    assert str(refused.value).startswith(f"berth.toml: {says}")


# Groups


def test_every_setting_is_in_one_group() -> None:
    values = settings_by_name(Settings())
    assert set(values) == set(KINDS) == set(GROUP_OF)
    assert Settings().having(**values) == Settings()
    assert Settings().having(simulator={"seed": 2}).having(simulator={"hosts": 3}).simulator.seed == 2
    assert Settings().having(ironic_api="c").ironic.connection.api == "c"
    with pytest.raises(TypeError, match="no settings: hots"):
        Settings().having(hots=5)


# Secrets


def test_a_secret_may_be_kept_in_a_file() -> None:
    Path("url").write_text("amqp://u:p@127.0.0.1/\n")
    effective = settings_of({"BERTH_AMQP_URL_FILE": "url", "BERTH_DATABASE_URL": "postgresql://h/b"})
    assert effective.settings.bus.amqp_url == "amqp://u:p@127.0.0.1/"
    assert effective.origins["amqp_url"] == "BERTH_AMQP_URL_FILE"
    with pytest.raises(BadSetting, match=r"^BERTH_AMQP_URL_FILE: cannot read nowhere: No such file"):
        settings_of({"BERTH_AMQP_URL_FILE": "nowhere"})


@pytest.mark.parametrize(
    ("variable", "url", "says"),
    [
        ("BERTH_AMQP_URL", f"u:{SECRET}@h/", "'u:****@h/'"),
        ("BERTH_AMQP_URL", f"http://u:{SECRET} {SECRET}@h/", "'http://u:****@h/'"),
        ("BERTH_DATABASE_URL", f"mysql://h/b?PASSWORD={SECRET}", "'mysql://h/b?PASSWORD=****'"),
        ("BERTH_IRONIC_API", f"u:{SECRET}@h/", "'u:****@h/'"),
        ("BERTH_AMQP_URL", f"amqp://u:{SECRET}", "must look like amqp://user:password@host:5672/vhost"),
        ("BERTH_AMQP_URL", f"amqp://u:{SECRET}@h1,,h2/", "'amqp://u:****@h1,,h2/': must look like"),
        ("BERTH_AMQP_URL", f"amqp://u:{SECRET}@h1,u:{SECRET}@h2/", "has user and password once, before"),
        ("BERTH_IRONIC_AMQP_URL", f"amqp://u:{SECRET}@h1/,h2/", "has the virtual host once, after the last"),
        ("BERTH_AMQP_URL", f"amqp://u:{SECRET}@h,h/", "names an address twice"),
        (
            "BERTH_CELL_FERRY_URLS",
            f"c1=amqp://u:{SECRET}@h1,h2:x/",
            "must look like amqp://user:password@host",
        ),
        ("BERTH_AMQP_URL", f"amqp://u:x[{SECRET}@h", "must look like amqp://user:password@host:5672/vhost"),
        ("BERTH_DATABASE_URL", f"postgresql://u:{SECRET}@[::1", "must look like postgresql://user:passwo"),
        ("BERTH_DATABASE_URL", f"sqlite+aiosqlite://u:{SECRET}@h/b", "must look like postgresql://user:"),
        (ENV, f"amqp://u:{SECRET}@h/", "not a text of"),
    ],
)
def test_refused_values_are_shown_without_passwords(variable: str, url: str, says: str) -> None:
    with pytest.raises(BadSetting) as refused:
        settings_of({variable: url})
    assert says in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_secret_in_place_of_a_name_is_not_shown() -> None:
    with pytest.raises(BadSetting) as refused:
        read(sets={f"amqp://u:{SECRET}@h/?a": "b"}, environment={})
    assert SECRET not in str(refused.value)


# Ironic


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ironic_cells": {"rack1": "c1"}}, "default: ironic_cell_by = ''"),
        ({"ironic_amqp_url": "amqp://h", "ironic_selection": ("shard=s1",)},
         "default: ironic_api = '': no notification contains a node's shard"),
        ({"ironic_selection": ("rack=r1",)},
         "takes FIELD=VALUE with one of the fields conductor_group, shard, owner, resource_class"),
        ({"ironic_cell_by": "owner", "ironic_cells": {"o": "c9"}},
         "--ironic-cells: ironic_cells = {'o': 'c9'}: there is no cell 'c9'"),
    ],
)  # fmt: skip
def test_settings_of_ironic_require_each_other(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSetting) as refused:
        settings_of(**given)
    assert says in str(refused.value)


CLOUDS = """
clouds:
  ours:
    auth: {auth_url: http://k/v3, username: u, password: geheim-eins}
  secured:
    auth_type: none
    baremetal_endpoint_override: https://h
    cacert: nowhere.pem
"""


def test_ironics_address_can_come_from_the_catalogue() -> None:
    Path("clouds.yaml").write_text(CLOUDS)
    settings = settings_of(ironic_api="ours").settings
    assert (settings.ironic.is_read, ironic.access(settings).url) == (True, "")
    assert secrets_of(settings) == ("geheim-eins",)


def test_a_certificate_that_cannot_be_read_is_named() -> None:
    Path("clouds.yaml").write_text(CLOUDS)
    settings = settings_of(ironic_api="secured").settings
    with pytest.raises(BadSetting, match=r"^ironic_api = 'secured': nowhere.pem: No such file"):
        ironic.access(settings)


@pytest.mark.parametrize(
    ("given", "cells"),
    [
        ({}, ()),
        ({"ironic_amqp_url": "amqp://h"}, ()),
        ({"ironic_api": "http://h"}, ("c1",)),
        ({"ironic_api": "http://h", "ironic_cells": {"*": "c2"}}, ("c2",)),
        ({"ironic_api": "http://h", "ironic_cell_by": "shard", "ironic_cells": {"s": "c2"}}, ("c2",)),
        ({"ironic_api": "http://h", "ironic_agents": {"c1": "another"}}, ()),
    ],
)
def test_every_cell_with_nodes_of_ironics_has_an_agent_for_them(
    given: dict[str, Any], cells: tuple[str, ...]
) -> None:
    settings = settings_of(**given).settings
    assert tuple(role.cell for role in worker_roles.roles_of(settings) if role.worker == "metal") == cells
    ending = {role for stage in worker_roles.stages_of(worker_roles.roles_of(settings)) for role in stage}
    assert ending == set(worker_roles.roles_of(settings))


@pytest.mark.parametrize(
    ("given", "cell", "says"),
    [
        ({}, "c1", "metal builds through Ironic's API: set ironic_api"),
        ({"ironic_api": "http://h"}, "", "metal belongs to a cell: name it with --cell"),
        ({"ironic_api": "http://h"}, "c2", "in cell 'c2'; there are: c1"),
    ],
)
def test_an_agent_that_could_not_build_is_not_run(given: dict[str, Any], cell: str, says: str) -> None:
    with pytest.raises(BadSetting) as refused:
        worker_roles.role_named("metal", cell, settings_of(**given).settings)
    assert says in str(refused.value)


def test_each_agent_of_a_cell_is_a_process_with_its_own_hosts() -> None:
    settings = Settings().having(cells=("c1", "c2"), simulator={"hosts": 8, "agents_per_cell": 2})
    computes = [role for role in worker_roles.roles_of(settings) if role.worker == "compute"]
    assert list(map(str, computes)) == [
        f"compute.{cell}.{cell}-agent{number}" for cell in ("c1", "c2") for number in (1, 2)
    ]
    assert [role.agent for role in computes] == sorted(
        agent.agent for agent in simulated_agents.agents(settings)
    )
    assert worker_roles.role_named("compute", "c2", settings, "c2-agent2") == computes[-1]
    all_in_one = worker_roles.role_named("compute", "c2", settings)
    assert all_in_one == worker_roles.Role("compute", "c2")
    for role, names in ((computes[-1], ["c2-agent2"]), (all_in_one, ["c2-agent1", "c2-agent2"])):
        tables = simulated_agents.at_work(role, settings, Bus(composition.alone()), None)
        assert [table.name for table in tables] == [f"agent.c2.{name}" for name in names]
    with pytest.raises(
        BadSetting, match="--agent 'c1-agent1': the agents of cell 'c2' are c2-agent1, c2-agent2"
    ):
        worker_roles.role_named("compute", "c2", settings, "c1-agent1")
    with pytest.raises(BadSetting, match="share a cell's hosts or nodes; conductor takes no agent"):
        worker_roles.role_named("conductor", "c2", settings, "c1-agent1")


def test_without_a_feature_for_several_agents_a_cell_has_one_agent_for_its_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ironic, "parts_of", lambda *_: [])
    settings, bus = settings_of(ironic_api="http://h").settings, Bus(composition.alone())
    assert ironic.metal(settings, worker_roles.Role("metal", "c1"), bus).name == "agent.c1.c1-metal"
    with pytest.raises(BadSetting, match="--agent 'other': c1-metal is the only agent of these nodes"):
        ironic.metal(settings, worker_roles.Role("metal", "c1", "other"), bus)


@pytest.mark.parametrize(
    ("choice", "options"), [("off", (False, False)), ("optional", (True, False)), ("required", (True, True))]
)
def test_projects_are_restricted_to_their_aggregates(choice: str, options: tuple[bool, bool]) -> None:
    read = request_options(settings_of(tenant_aggregates=choice).settings)
    assert (read.tenant_aggregates, read.tenant_aggregates_required) == options


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("simulator.hosts", "many", "simulator.hosts takes a whole number, not a text of 4 characters"),
        ("simulator.hosts", "0", "simulator.hosts = 0: must be at least 1"),
        ("max_wait", "-1", "max_wait = -1.0: must be at least 0"),
        ("max_wait", "inf", "max_wait = inf: must be a finite number of seconds"),
        ("keep", "0", "keep = 0.0: must be more than 0 seconds"),
        ("keep_changes", "10", "keep_changes = 10: must be at least 1000"),
        ("metrics_http", "h:0", "metrics_http = 'h:0': needs a port: further processes use the next ports"),
        ("metrics_http", "h:70000", "metrics_http = 'h:70000': takes HOST:PORT, as in 127.0.0.1:9100"),
        ("build_timeout", "0", "build_timeout = 0.0: must be more than 0 seconds"),
        ("simulator.fail", "1.5", "simulator.fail = 1.5: is a share between 0 and 1"),
        ("isolate_aggregates", "maybe", "isolate_aggregates takes true or false, not a text of 5 characters"),
        ("log_level", "loud", "log_level = a text of 4 characters: is debug, info, warning or error"),
        ("cells", ",", "cells = (): name at least one"),
        ("cells", "Cell-1", "cells = ('Cell-1',): a cell's name has lower-case letters"),
        ("cells", "a,b,a", "cells = ('a', 'b', 'a'): a cell is named twice"),
        (
            "simulator.build_time",
            "long",
            "simulator.build_time = 'long': 'long' is not a duration: constant:s",
        ),
        ("scheduler_filters", "luck", "scheduler_filters = ('luck',): unknown filter 'luck'; known filters:"),
        ("scheduler_filters", "json:rule", "scheduler_filters = ('json:rule',): there is no function 'rule'"),
        ("scheduler_weighers", "lode=1", "scheduler_weighers = {'lode': 1.0}: unknown weigher 'lode', did"),
        ("scheduler_weighers", "ram=nan", "scheduler_weighers = {'ram': nan}: ram: nan is no multiplier"),
        ("scheduler_rules", "io_ops.most=3", "scheduler_rules = {'io_ops': {'most': '3'}}: io_ops.most: no"),
        ("scheduler_rules", "io_op.a=1", "scheduler_rules = {'io_op': {'a': '1'}}: there is no rule or"),
        ("scheduler_rules", "io_ops=1", "scheduler_rules takes name.option=value, comma separated, or JSON"),
        (
            "database_url",
            f"postgresql://u@h/b?PASSWORD={SECRET}&sslmodus=require",
            "database_url = 'postgresql://u@h/b?PASSWORD=****&sslmodus=require': "
            "PASSWORD, sslmodus: no such parameter; there are: ",
        ),
        (
            "database_url",
            "postgresql://u@h/b?sslmode=verify-full&sslrootcert=/nowhere/ca.pem",
            "database_url = 'postgresql://u@h/b?sslmode=verify-full&sslrootcert=/nowhere/ca.pem': "
            "sslrootcert=/nowhere/ca.pem: there is no such file, or it cannot be read",
        ),
        (
            "cell_database_urls",
            f"c9=postgresql://u:{SECRET}@h/",
            "cell_database_urls = {'c9': 'postgresql://u:****@h/'}: there is no cell 'c9'; there are: c1, c2",
        ),
        ("ironic_api", "nowhere", "ironic_api = 'nowhere': there is no clouds.yaml in ., ~/.config/"),
        ("cell_limits", "channels=9", "cell_limits = {'channels': 9.0}: channels must be at least 10"),
        ("cell_limits", "lock_seconds=nan", "cell_limits = {'lock_seconds': nan}: lock_seconds must be at"),
        ("cell_limits", "cups=9", "cell_limits = {'cups': 9.0}: takes integers (seconds: any number)"),
        ("ironic_cell_by", "conductor_group", "ironic_cell_by = 'conductor_group': a mapping to cells takes"),
        ("ironic_zone_by", "rack", "ironic_zone_by = 'rack': 'rack' is not a field to select nodes by;"),
    ],
)
def test_a_bad_value_is_named_with_its_setting_and_origin(name: str, text: str, says: str) -> None:
    variable = variable_of(name)
    with pytest.raises(BadSetting) as refused:
        settings_of({variable: text})
    assert str(refused.value).startswith(f"{variable}: {says}")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[simulator]\nhosts = true", "berth.toml: simulator.hosts takes a whole number, not True"),
        ("hosts = 8", "berth.toml: there is no setting 'hosts'; did you mean simulator.hosts?"),
        (
            "[simulator]\nhost = 8",
            "berth.toml: there is no setting 'simulator.host'; did you mean simulator.h",
        ),
        (
            "[simulator]\ncup = 8",
            "berth.toml: there is no setting 'simulator.cup'; there are: simulator.hosts",
        ),
        ("simulator = 8", "berth.toml: simulator takes a TOML file or a table, not 8"),
        ('simulator = "no.toml"', "berth.toml: simulator = 'no.toml': no.toml: cannot be read: No such file"),
        ('simulator = "clouds.yaml"', "berth.toml: simulator = 'clouds.yaml': clouds.yaml: not TOML: "),
        (
            'simulator = "sim.toml"',
            "sim.toml: there is no setting 'simulator.cup'; there are: simulator.hosts,",
        ),
        ('state_dir = ""', "berth.toml: state_dir = '': must not be empty"),
        ("host = 5", "berth.toml: there is no setting 'host'; did you mean simulator.hosts?"),
        ("nonsense = 5", "berth.toml: there is no setting 'nonsense'; there are: amqp_url, exchange, manag"),
        ("hosts 5", "berth.toml: not TOML: "),
        ('[simulator]\ndrivers = ["nuam"]', "berth.toml: simulator.drivers = ('nuam',): there is no"),
        (
            '[simulator]\nmachines = "no.toml"',
            "berth.toml: simulator.machines = 'no.toml': no.toml: cannot be read: No such file",
        ),
        (
            '[simulator]\nprovider_config = "no.yaml"',
            "berth.toml: simulator.provider_config = 'no.yaml': no.yaml: cannot be read: No such file",
        ),
    ],
)
def test_a_bad_file_is_named(toml: str, says: str) -> None:
    Path("sim.toml").write_text("cup = 1")
    Path("clouds.yaml").write_text("clouds: {}")
    with pytest.raises(BadSetting) as refused:
        settings_of(toml=toml)
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"file": Path("nowhere.toml")}, "nowhere.toml: cannot be read: No such file"),
        ({"sets": {"host": "5"}}, "--set host: there is no setting 'host'; did you mean simulator.hosts?"),
        (
            {"sets": {HOSTS: "x"}},
            "--set simulator.hosts: simulator.hosts takes a whole number, not a text of 1 characters",
        ),
        (
            {"sets": {"simulator": "hosts=3"}},
            "--set simulator: simulator = 'hosts=3': hosts=3: cannot be read",
        ),
        ({"flags": {"simulator.fail": 2.0}}, "--fail: simulator.fail = 2.0: is a share between 0 and 1"),
        ({"flags": {"simulator.build_time": "x"}}, "--build-time: simulator.build_time = 'x': "),
        (
            {"flags": {"simulator.fail": 0.7}, "sets": {"simulator.hang": "0.5"}},
            "--fail: simulator.fail = 0.7: with abort and hang it is",
        ),
    ],
)
def test_a_bad_flag_is_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSetting) as refused:
        read(**arguments, environment={})
    assert str(refused.value).startswith(says)


def test_rabbitmq_requires_a_database() -> None:
    with pytest.raises(BadSetting, match="default: database_url = '': with amqp_url workers are processes"):
        settings_of({"BERTH_AMQP_URL": "amqp://h/"})


# What follows from them


@pytest.mark.parametrize(
    ("given", "store", "url"),
    [
        ({"state_dir": "/s"}, "placement", "sqlite+aiosqlite:////s/"),
        ({}, "placement", "postgresql://h/b"),
        ({"cell_database_urls": {"c1": "postgresql://c/b"}}, "cell_c1", "postgresql://c/b"),
        ({"cell_database_urls": {"c1": "postgresql://c/b"}}, "cell_c2", "postgresql://h/b"),
    ],
)
def test_the_database_of_each_store(given: dict[str, Any], store: str, url: str) -> None:
    common = {} if "state_dir" in given else {"database_url": "postgresql://h/b"}
    assert Settings().having(**common, **given).database_for(store) == url


@pytest.mark.parametrize(
    ("given", "ports"),
    [
        ({}, ("", "", "", "", "")),
        ({"metrics_http": "h:9100"}, ("h:9100", "h:9101", "h:9102", "h:9103", "h:9104")),
        ({"metrics_http": "[::1]:65531"}, tuple(f"[::1]:{port}" for port in range(65531, 65536))),
    ],
)
def test_every_process_has_a_port_for_its_metrics(given: dict[str, Any], ports: tuple[str, ...]) -> None:
    found = metrics_addresses(settings_of(cells=("c1",), layout="separate", **given).settings)
    names = " ".join(map(worker_roles.name_of, found))
    assert names == "placement ironic conductor.c1 compute.c1 scheduler"
    assert tuple(found.values()) == ports


def test_too_few_ports_for_the_workers_are_refused() -> None:
    with pytest.raises(BadSetting, match="the 5 workers need a port each, and there are no ports above"):
        metrics_addresses(settings_of(cells=("c1",), layout="separate", metrics_http="h:65532").settings)


@pytest.mark.parametrize(
    ("given", "shared"),
    [
        ({}, ["conductor.c1", "conductor.c2", "conductor.c3", "compute.c1", "compute.c2", "compute.c3"]),
        ({"layout": "compact", "cells": ("c1", "c2")}, ["conductor.c1+c2+compute.c1+c2"]),
        (
            {"layout": "compact", "cells": ("c1", "c2"), "cell_amqp_urls": {"c2": "amqp://c2:x@127.0.0.1/"}},
            ["conductor.c1+compute.c1", "conductor.c2+compute.c2"],
        ),
        (
            {"layout": "compact", "cells": ("c1",), "simulator": {"agents_per_cell": 2}},
            ["conductor.c1", "compute.c1.c1-agent1", "compute.c1.c1-agent2"],
        ),
    ],
)
def test_conductors_and_agents_of_several_cells_can_share_a_process(
    given: dict[str, Any], shared: list[str]
) -> None:
    common = {"cells": ("c1", "c2", "c3"), "amqp_url": "amqp://127.0.0.1/", "layout": "separate"}
    settings = Settings().having(**common | given)
    found = worker_roles.processes_of_up(settings)
    assert {role for those in found for role in those} == set(worker_roles.roles_of(settings))
    names = [worker_roles.name_of(those) for those in found]
    assert [name for name in names if ("conductor" in name or "compute" in name)] == shared


@pytest.mark.parametrize(
    ("cores", "given", "says"),
    [
        (1, {}, "layout compact, for 1 processor core (instead: --layout separate)"),
        (2, {}, "layout compact, for 2 processor cores (instead: --layout separate)"),
        (3, {}, "layout separate, for 3 processor cores (instead: --layout compact)"),
        (8, {"layout": "compact"}, "layout compact"),
        (1, {"layout": "separate"}, "layout separate"),
    ],
)
def test_the_number_of_cores_decides_the_layout_unless_it_is_set(
    cores: int, given: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    settings = settings_of(cells=("c1",), **given).settings
    assert layout_chosen(settings) == says
    shared = "placement+scheduler"
    names = map(worker_roles.name_of, worker_roles.processes_of_up(settings))
    assert (shared in names) == says.startswith("layout compact")


@pytest.mark.parametrize(
    ("worker", "cells", "agent", "says"),
    [
        ("conductor", "c1,c2", "", ["conductor.c1", "conductor.c2"]),
        ("compute", "c2,c1,c2", "", ["compute.c2", "compute.c1"]),
        ("scheduler placement", "", "", ["placement", "scheduler"]),
        (
            "compute conductor scheduler",
            "c1,c2",
            "",
            ["scheduler", "conductor.c1", "conductor.c2", "compute.c1", "compute.c2"],
        ),
        ("placement ironic", "", "", "ironic runs in a process of its own"),
        (
            "conductor compute",
            "c1",
            "c1-agent1",
            "--agent names one agent, which runs in a process of its own",
        ),
        ("conductor", "c1,,c2", "", "conductor belongs to a cell: name it with --cell"),
        ("ferry", "c2,c3", "", "of several cells only conductors, or all agents, share a process"),
        ("compute", "c1,c2", "c1-agent1", "of several cells only conductors, or all agents, share a process"),
        ("conductor", "c1,c2,c3", "", "they are on different RabbitMQs, and each needs a process there"),
    ],
)
def test_a_process_can_serve_several_cells(
    worker: str, cells: str, agent: str, says: str | list[str]
) -> None:
    ferries = {"c2": "amqp://127.0.0.1:1/", "c3": "amqp://127.0.0.1:1/"} if worker == "ferry" else {}
    settings = Settings().having(
        cells=("c1", "c2", "c3"), amqp_url="amqp://h/", cell_amqp_urls={"c3": "amqp://c3@h/"},
        cell_ferry_urls=ferries,
    )  # fmt: skip
    if isinstance(says, list):
        assert list(map(str, worker_roles.roles_named(worker.split(), cells, settings, agent))) == says
        return
    with pytest.raises(BadSetting) as refused:
        worker_roles.roles_named(worker.split(), cells, settings, agent)
    assert says in str(refused.value)


# A worker under its supervisor


def test_settings_of_a_supervisor_replace_all_other_settings() -> None:
    given = Settings().having(simulator={"hosts": 7}, cells=("x",), scheduler_weighers={"ram": 2.0})
    environment = {EFFECTIVE_ENV: msgspec.json.encode(given).decode(), ENV: "9"}
    effective = settings_of(environment, "[simulator]\nhosts = 8", **{HOSTS: 10})
    assert effective.settings == given
    assert set(effective.origins.values()) == {"supervisor"}


@pytest.mark.parametrize("given", ["{", "5", '{"simulator": {"simulator.hosts": "x"}}', '{"unknown": 1}'])
def test_a_supervisors_settings_that_cannot_be_read_are_a_bad_setting(given: str) -> None:
    with pytest.raises(BadSetting, match=f"^{EFFECTIVE_ENV}: "):
        settings_of({EFFECTIVE_ENV: given})


def test_parameters_of_database_urls_are_known_to_the_driver() -> None:
    known = inspect.signature(asyncpg.connect).parameters.keys()
    sqlalchemys, ours = {"prepared_statement_cache_size"}, {"sslmode", *postgres.FILES}
    assert DATABASE_PARAMETERS - sqlalchemys - ours <= known


def test_a_wrong_value_is_not_repeated_because_it_may_be_a_secret() -> None:
    for name in [*(name for name, kind in KINDS.items() if kind not in (str, tuple[str, ...])), "log_level"]:
        for given in ({"sets": {name: SECRET}}, {"environment": {variable_of(name): SECRET}}):
            with pytest.raises(BadSetting) as refused:
                read(**{"environment": {}, **given})  # type: ignore[arg-type]
            assert SECRET not in str(refused.value) and name in str(refused.value)


@pytest.mark.parametrize(("given", "says"), [({"probe_port": 65536}, "must be at most 65535")])
def test_a_setting_that_is_too_large_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        settings_of(**given)
