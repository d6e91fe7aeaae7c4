"""The scheduler filters and weighs all hosts for build requests, then claims the best in placement.

The module `worker` is not imported here, so that commands that only parse a request do not load its database
code.
"""

from scheduler_worker.core.policy import (
    FILTER_BOOK,
    NEEDLESS,
    PROFILES,
    SPREAD,
    WEIGHER_BOOK,
    BadChoice,
    ChoicePolicy,
    Choosable,
    all_rules,
    all_weighers,
    default_profile,
    with_profile,
)
from scheduler_worker.core.ranking import scores_of
from scheduler_worker.core.request import RequestOptions, alternatives_of
from scheduler_worker.core.scores import replay
from scheduler_worker.core.spec_values import Unreadable
