"""Every command by its name: what it does, in a sentence, and the file that has it.

A command's file is loaded when the command is called, with all that it needs; `berth --help` and a shell that
completes a name read this table alone. A test holds the table against the files.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Listed:
    """A command, or a group of them."""

    name: str
    file: str
    panel: str
    says: str  # the first paragraph of its help


COMMANDS = (  # in the order in which they are shown
    Listed(
        "demo", "load", "Run",
        "Show it all in one process: boots on simulated hosts, free bare-metal nodes, and the audit.",
    ),
    Listed(
        "load", "load", "Builds",
        "Boot many instances and follow them to their ends: throughput, latency, audit. Loopback "
        "only.",
    ),
    Listed(
        "up", "run", "Run",
        "Run everything until Ctrl-C: in this process or, with URLs of services, each worker as a"
        " process.",
    ),
    Listed(
        "run", "run", "Run",
        "Run one worker as this process, in service mode: any number of each, compute once per "
        "cell (or, with --agent, once per agent).",
    ),
    Listed(
        "migrate", "run", "Run",
        "Bring every worker's database up to date, which each also does by itself when it starts.",
    ),
    Listed("boot", "builds", "Builds",
        "Publish a build request; with --wait, follow it to its end."),
    Listed(
        "delete", "deleting", "Builds",
        "Take a build down and give its resources back; or end its wait for a host.",
    ),
    Listed(
        "instances", "instances", "Builds",
        "List instances: all cells are queried in parallel.",
    ),
    Listed(
        "waiting", "waiting", "Builds",
        "List waiting requests for builds and moves: their order, what they lack, what would wake"
        " them.",
    ),
    Listed(
        "why", "why", "Builds",
        "Explain why a build is on its host or has none, or why a move chose its host, waits, or "
        "was refused.",
    ),
    Listed(
        "what-if", "what_if", "Builds",
        "Would this fit now, where, how many more, and what would change it. Nothing is claimed.",
    ),
    Listed(
        "move", "moves", "Moves",
        "Move instances to other hosts, chosen by the scheduler or named; to another cell, if you"
        " name one.",
    ),
    Listed("resize", "moves", "Moves",
        "Give an instance another size; only the named values change."),
    Listed("shelve", "moves", "Moves", "Stop instances, keep what they are, and give all their room back."),
    Listed(
        "unshelve", "moves", "Moves",
        "Build shelved instances again, as what they were, wherever there is room.",
    ),
    Listed(
        "rebuild", "moves", "Moves",
        "Build an instance anew, of an image, on the host and in the room it has.",
    ),
    Listed(
        "confirm", "steering", "Moves",
        "Confirm a move that waits for it: the instance stays at its destination, and the source "
        "is released.",
    ),
    Listed(
        "revert", "steering", "Moves",
        "Revert a move that waits for confirmation: the instance returns to its source, "
        "unchanged.",
    ),
    Listed("abort", "steering", "Moves",
        "End a move early: the instance continues at its source."),
    Listed(
        "force", "steering", "Moves",
        "End the copying of a live move early: the instance is stopped for the rest.",
    ),
    Listed(
        "evacuate", "evacuating", "Moves",
        "Rebuild all instances of a dead host on other hosts.",
    ),
    Listed(
        "drain", "draining", "Moves",
        "Empty hosts: disable them, and move their instances to other hosts, a limited number at "
        "a time.",
    ),
    Listed(
        "moves", "move_list", "Moves",
        "Moves of instances from host to host (docs/moves.md): what is under way, and how others "
        "went. `berth move`, `resize`, `shelve`, `evacuate`, `drain` ask for them.",
    ),
    Listed("node", "nodes", "Builds", "Speak for a bare-metal node, as Ironic would."),
    Listed(
        "group", "groups", "Builds",
        "Server groups: instances that are to be together, or apart. `berth boot --group` joins one.",
    ),
    Listed(
        "cell", "cells", "Hosts",
        "Cells: hosts that share a conductor, a database and a part of the broker (docs/cells.md). "
        "Close one to new instances, empty it, make one, end one.",
    ),
    Listed(
        "client", "clients", "Hosts",
        "Programs outside berth: each has a RabbitMQ user of its own and acts for its projects only "
        "(docs/howto/client.md).",
    ),
    Listed(
        "agent", "agents", "Hosts",
        "Who acts on bare metal, where several agents share a cell's nodes (`berth run metal --cell "
        "c1 --agent NAME`).",
    ),
    Listed("host", "hosts", "Hosts", "See what hosts have, and keep new instances away from them."),
    Listed(
        "aggregate", "aggregates", "Hosts",
        "Put hosts and Ironic nodes together, and say what they are: an availability zone, for whom, "
        "with options of filters and weighers.",
    ),
    Listed(
        "provider", "providers", "Hosts",
        "Whose hosts are. A cell's reports are believed of its own only (docs/cells.md).",
    ),
    Listed(
        "audit", "audit", "Look and check",
        "Check the databases: nothing may be over-allocated, allocated twice or without an owner;"
        " else exit 1.",
    ),
    Listed(
        "heal", "heal", "Look and check",
        "Repair what `berth audit` finds if the repair is proven; list everything else for the "
        "operator.",
    ),
    Listed(
        "doctor", "doctor", "Look and check",
        "Check every service, worker, queue and database, and print problems and what to do about"
        " them.",
    ),
    Listed(
        "topology", "descriptions", "Look and check",
        "Show publishers and consumers of every topic, and the direction in which it crosses the "
        "border of a cell.",
    ),
    Listed(
        "asyncapi", "descriptions", "Look and check",
        "Print an AsyncAPI 3 document of every topic and query, as JSON.",
    ),
    Listed(
        "metrics", "descriptions", "Look and check",
        "Show every metric that workers serve for Prometheus (metrics_port), with its labels.",
    ),
    Listed(
        "rules", "descriptions", "Look and check",
        "Show the filters that refuse hosts and the weighers that order them, and how they are set.",
    ),
    Listed(
        "reasons", "descriptions", "Look and check",
        "Show every code that a decision can have, and its meaning.",
    ),
    Listed(
        "http", "descriptions", "Look and check",
        "Show every address of the Placement API, with its methods, microversions and rules.",
    ),
    Listed(
        "settings", "descriptions", "Look and check",
        "Show the settings in force by group, and where each comes from, passwords masked.",
    ),
    Listed(
        "completion", "completing", "Look and check",
        "Print what makes a shell complete `berth`: `eval \"$(berth completion bash)\"` in ~/.bashrc.",
    ),
    Listed("dead", "dead", "Look and check", "Messages nobody could handle, each with its reason."),
    Listed("import", "importing", "Other systems", "Bring over what another service knows."),
    Listed(
        "adopt", "adopting", "Other systems",
        "Adopt instances that placement knows from another system, so that they can be moved and "
        "deleted.",
    ),
    Listed(
        "ironic", "ironic", "Other systems",
        "Ironic: what differs between it and placement, the nodes of any, and a simulated one.",
    ),
)  # fmt: skip


class Later(TyperCommand):
    """Stands for a command, or a group, of a file that is loaded when it is called."""

    def __init__(self, listed: Listed) -> None:
        super().__init__(listed.name, help=listed.says, rich_help_panel=listed.panel)
        self._listed = listed

    def loaded(self) -> Any:
        """Return the command that this placeholder stands for."""
        around = typer.Typer()
        around.add_typer(import_module(f"berth.commands.{self._listed.file}").commands)
        return typer.main.get_group(around).commands[self._listed.name]

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded().make_context(*args, **kwargs)


class EveryCommand(TyperGroup):
    """All commands of the table, after the given ones."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.commands.update({listed.name: Later(listed) for listed in COMMANDS})
