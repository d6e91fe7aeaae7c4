"""Runs the builds of a cell: orders agents to build, tries the next host after a failure, reports the end."""

from cell_conductor.core.events import AttemptLimits
from cell_conductor.removed_agents import RemovedAgents, assumed_guests
from cell_conductor.worker import cell_conductor
