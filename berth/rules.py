"""The names that filters and weighers of operators import (docs/howto/filter.md).

Rules of claims are parts of features, which import the surfaces of workers (docs/howto/claim-rule.md).
"""

from bus.aggregates import Aggregate
from bus.candidates import FreeProvider
from bus.messages import BuildRequested
from bus.queries import Candidate
from bus.reports import HostState
from bus.requests import Flavor, Hints, Image
from scheduler_worker.core.extension import (
    Alternative,
    HostFacts,
    Number,
    Rule,
    View,
    WayValues,
    Weigher,
    array_rule,
)

__all__ = [
    "Aggregate",  # an element of `HostFacts.aggregates`
    "Alternative",  # one flavor of a request, with everything that filters may read
    "BuildRequested",  # `Alternative.request`
    "Candidate",  # a way in which an instance fits a host
    "Flavor",  # `Alternative.flavor`
    "FreeProvider",  # a provider with its free amounts, as weighers of ways read it
    "Hints",  # `BuildRequested.hints`
    "HostFacts",  # the data of one host
    "HostState",  # `HostFacts.state`: the last report of the host
    "Image",  # `BuildRequested.image`
    "Number",  # the number of one host, or the array of all hosts
    "Rule",  # a filter of one host and of all hosts at once
    "View",  # one host or all hosts, as `Rule.admits` and `Weigher.value` read them
    "WayValues",  # the values that `Weigher.of_ways` returns
    "Weigher",  # a weigher of all hosts at once
    "array_rule",  # makes a Rule of one expression for one host and for all
]
