"""All that features import of `control_room`: the frame of pages, refresh, forms, text (README.md)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from control_room.kit.access import AccessRules, Credential, Project, SingleSignOn, Visitor
    from control_room.kit.build_records import BuildRecords
    from control_room.kit.charts import Chart, chart
    from control_room.kit.decisions import DecisionShown, Scores, decision_shown
    from control_room.kit.flavors import RESOURCE_NAME, FlavorTerms, PlannedFlavor, parse_flavor, split_count
    from control_room.kit.forms import (
        FormField,
        InvalidForm,
        PageForm,
        RequestField,
        is_project,
        split_words,
        whole_numbers,
    )
    from control_room.kit.frame import (
        AddedPages,
        FoundPage,
        FoundRecords,
        PageContext,
        PageGroup,
        PagePart,
        PageRefused,
        Renderer,
        get,
        live,
        post,
        unknown_operation,
    )
    from control_room.kit.host_reading import known_hosts
    from control_room.kit.hosts import HostStock, KnownHost, host_of_tree
    from control_room.kit.page_requests import parameter, session_of, user_of, uuid_in
    from control_room.kit.placement_watch import PlacementWatch
    from control_room.kit.queries import NO_ANSWER, QUERY_SECONDS, query
    from control_room.kit.refresh import PageUpdates, live_data, soon
    from control_room.kit.replies import Reply
    from control_room.kit.shared_data import READ_TIMES, BackgroundTasks, Changes, SharedData
    from control_room.kit.words import (
        address,
        amounts_text,
        duration,
        expected_evaluation,
        expected_start,
        listed,
        several,
    )

# Each name that features may import, with the module that defines it and the reason why it is offered.
OFFERED = {
    # A page
    "PagePart": ".frame",  # the value PART of a feature's module `pages`
    "live": ".frame",  # the routes of a page and of its event stream
    "get": ".frame",  # the route of a page
    "post": ".frame",  # the route of a form
    "unknown_operation": ".frame",  # the refusal of a form whose operation does not exist
    "AddedPages": ".frame",  # the pages of a feature, and what it adds to pages of others
    "FoundPage": ".frame",  # the page of an object that the search found
    "PageGroup": ".frame",  # the base class of pages about one subject
    "PageContext": ".frame",  # what all pages share: queries, events, clock
    "Renderer": ".frame",  # renders templates, and reads posted forms
    "PageRefused": ".frame",  # an error page with the reason
    "FoundRecords": ".frame",  # what a feature adds to the page of a build
    "BuildRecords": ".build_records",  # the subject of sections on the page of a build
    "parameter": ".page_requests",  # a parameter in the URL
    "uuid_in": ".page_requests",  # a uuid in the URL or a form
    "session_of": ".page_requests",  # the session of the browser
    "user_of": ".page_requests",  # the name of the user, for the log
    # Data and refresh
    "query": ".queries",  # sends a query; the reply has the answer, or why there is none
    "QUERY_SECONDS": ".queries",  # the time limit of usual queries
    "NO_ANSWER": ".queries",  # the errors of a query
    "Reply": ".replies",  # the answer of a worker
    "live_data": ".refresh",  # a cache of a page's data, and its refresh
    "PageUpdates": ".refresh",  # sends the part of an open page again
    "soon": ".refresh",  # data that arrive at once, or with the first refresh
    "SharedData": ".shared_data",  # a cache that several pages share
    "READ_TIMES": ".shared_data",  # how long data that are slow to read are used
    "Changes": ".shared_data",  # wakes pages when something changed
    "BackgroundTasks": ".shared_data",  # the tasks of the process
    "PlacementWatch": ".placement_watch",  # receives the changes of placement while a page is open
    "known_hosts": ".host_reading",  # reads all hosts
    # Forms
    "FormField": ".forms",  # a field of a form
    "RequestField": ".forms",  # a field that `boot_options` of a feature adds to the form for requests
    "PageForm": ".forms",  # the entered texts, and why they were refused
    "InvalidForm": ".forms",  # refuses a form
    "whole_numbers": ".forms",  # numbers in a form
    "split_words": ".forms",  # words in a form
    "is_project": ".forms",  # whether a text can be the id of a project
    "PlannedFlavor": ".flavors",  # a flavor that an operator entered
    "parse_flavor": ".flavors",  # reads such a flavor
    "FlavorTerms": ".flavors",  # the words of such a flavor
    "split_count": ".flavors",  # a number before a flavor
    "RESOURCE_NAME": ".flavors",  # the name of a resource class or trait
    # What pages show
    "DecisionShown": ".decisions",  # a decision of the scheduler
    "decision_shown": ".decisions",  # makes it
    "Scores": ".decisions",  # computes the scores of a host
    "KnownHost": ".hosts",  # a host with its resources
    "HostStock": ".hosts",  # the inventory of a class on a host
    "host_of_tree": ".hosts",  # makes a host from a provider tree
    "Chart": ".charts",  # a line chart
    "chart": ".charts",  # draws it
    # Text, for commands as well
    "several": ".words",  # a number with its noun
    "listed": ".words",  # the first names of a list
    "duration": ".words",  # a duration
    "amounts_text": ".words",  # amounts of resources
    "expected_start": ".words",  # when a waiting request starts
    "expected_evaluation": ".words",  # when a waiting request is evaluated
    "address": ".words",  # a path with parameters
    # Sign-in
    "AccessRules": ".access",  # who may sign in, read and act
    "Visitor": ".access",  # a signed-in user
    "Credential": ".access",  # whether a token is valid still
    "Project": ".access",  # a project of a user
    "SingleSignOn": ".access",  # sign-in by an identity provider
}
__all__ = [*OFFERED]

if not TYPE_CHECKING:  # a type checker reads the imports above: it would accept any name here

    def __getattr__(name: str) -> Any:
        """Import the module of a name when the name is used: a command loads only what it needs."""
        if name not in OFFERED:
            raise AttributeError(f"{__name__} offers no {name}")
        return getattr(import_module(OFFERED[name], __name__), name)
