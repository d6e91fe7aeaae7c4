"""Operators of extra specs, and queries over host attributes."""

import pytest

from features.nova_filters.core.attributes import Attribute, attribute
from features.nova_filters.core.extra_specs import meets
from features.nova_filters.core.query import UnreadableQuery, holds, parsed
from tests.support.rule_builders import the_facts


@pytest.mark.parametrize(
    ("value", "demand", "met"),
    [
        ("8", "= 8", True),
        ("9", "= 8", True),  # as Nova reads it: at least
        ("7", "= 8", False),
        (8, "== 8.0", True),
        ("8", "!= 8", False),
        ("8", ">= 9", False),
        ("8", "<= 9", True),
        ("eight", ">= 1", False),
        ("8", ">= one", False),
        ("8", ">=", False),
        ("b", "s== b", True),
        ("b", "s!= b", False),
        ("b", "s< c", True),
        ("b", "s<= b", True),
        ("b", "s> a", True),
        ("b", "s>= c", False),
        ("b", "s==", False),
        ("avx2 sse", "<in> avx2", True),
        ("avx2 sse", "<in> avx512", False),
        ("avx2 sse", "<in>", False),
        ("avx2 sse", "<all-in> sse avx2", True),
        ("avx2 sse", "<all-in> sse avx512", False),
        ("avx2 sse", "<all-in>", False),
        ("b", "<or> a <or> b", True),
        ("b", "<or> a <or> c", False),
        ("<or>", "<or> a <or> c", False),
        ("b", "<or>", False),
        ("b", "b", True),
        ("b", "c", False),
        ("b c", "b c", True),
        ("", "", True),
        (8, "8", True),
        (True, "true", True),
        (True, "false", False),
    ],
)
def test_demand(value: object, demand: str, met: bool) -> None:
    assert meets(value, demand) == met


HOST = the_facts(
    architecture="x86_64", instances=2, metrics={"t": 40.0}, capabilities={"cpu_info.arch": "x86_64"}, sent=1
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("free_ram_mb", 8192),
        ("free_disk_mb", 81920),
        ("vcpus_used", 0),
        ("num_io_ops", 1),
        ("num_instances", 2),
        ("architecture", "x86_64"),
        ("host", "host1"),
        ("capabilities:cpu_info:arch", "x86_64"),
        ("capabilities.cpu_info.arch", "x86_64"),
        ("cpu_info:arch", "x86_64"),
        ("metrics.t", 40.0),
        ("metrics:u", None),
        ("luck", None),
    ],
)
def test_attribute(name: str, value: Attribute | None) -> None:
    assert attribute(HOST, name) == value


def test_a_host_without_a_report_has_placements_figures() -> None:
    silent = the_facts()
    assert [attribute(silent, name) for name in ("free_ram_mb", "architecture", "luck")] == [8192, None, None]


@pytest.mark.parametrize(
    ("query", "true"),
    [
        ("[]", True),
        ('[">=", "$free_ram_mb", 8192]', True),
        ('["<", "$free_ram_mb", 8192]', False),
        ('["=", "$architecture", "x86_64"]', True),
        ('["in", "$architecture", "aarch64", "x86_64"]', True),
        ('["in", "$architecture"]', False),
        ('["and", [">", "$free_disk_mb", 1], ["=", "$host", "host2"]]', False),
        ('["or", [">", "$free_disk_mb", 1], ["=", "$host", "host2"]]', True),
        ('["not", ["=", "$host", "host2"]]', True),
        ('["not", ["=", "$host", "host1"]]', False),
        ('["=", "$luck", 1]', False),
        ('["<", "$architecture", 1]', False),  # neither more nor less
        ('["<=", 1, 2, 3]', True),
        ('["<=", 1]', False),
    ],
)
def test_query(query: str, true: bool) -> None:
    assert holds(parsed(query), HOST) == true


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("luck", "it is not JSON"),
        ('"luck"', "it is no list"),
        ('["luck", 1]', "'luck' is no command; there are: =, <, >, <=, >=, in, not, and, or"),
        ('["and", [1]]', "1 is no command"),
        ('["=", {}]', "{} is neither a value nor a list"),
        ("[" * 40 + "]" * 40, "[[[["),
        ('["not", ' * 33 + "1" + "]" * 33, "it is more than 32 lists deep"),
        (f'["and"{", []" * 20}]', "it has 21 lists and 1 values, at most 20 and 200"),
        (f'["in"{", 1" * 200}]', "it has 1 lists and 201 values, at most 20 and 200"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_an_invalid_query_is_refused_with_the_reason(query: str, why: str) -> None:
    with pytest.raises(UnreadableQuery) as refused:
        parsed(query)
    assert why in str(refused.value)
