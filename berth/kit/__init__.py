"""All that features import of `berth`: commands, output, options, queries, HTTP (README.md)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from berth.client.over_http import RestClient
    from berth.composition import placement_queries
    from berth.features import add_messages, added
    from berth.kit.aggregates import aggregate_named
    from berth.kit.audit_records import (
        AuditPart,
        CellAuditPart,
        HealingPart,
        OperationMark,
        Recording,
        ReleasedBuild,
    )
    from berth.kit.boot_command_options import boot_descriptions, print_notes
    from berth.kit.boot_options import BootOptions, BootOptionsPart, names_of, options_named
    from berth.kit.boot_requests import boot_request, image_named, parts_given
    from berth.kit.broker_permissions import (
        KEY_FIELD,
        MATCHES_NOTHING,
        NAME_PATTERN,
        RANDOM_PATTERN,
        BrokerUser,
        KeyPatterns,
        Permissions,
        UserLimits,
        any_of,
        definitions,
        exchange_patterns,
        queue_patterns,
        queue_policy,
    )
    from berth.kit.broker_users import BrokerTool, RecordedUsers
    from berth.kit.builds import builds_by_uuid, instance_pages, refused_builds, uuid_of, whole_id, whole_ids
    from berth.kit.cells import (
        ask_cells,
        cells_text,
        check_to_cell,
        chosen_cells,
        known_cells,
        require_all_answers,
    )
    from berth.kit.choice_policies import choice_policy, rule_options
    from berth.kit.command_groups import Commands, WaitingCommand
    from berth.kit.credentials import Credential, CredentialsPart
    from berth.kit.decision_output import attempts_of, cause_after, held_sentence, print_funnel, wait_sentence
    from berth.kit.dry_run import ActCli
    from berth.kit.ended_waits import end_wait
    from berth.kit.explanations import AnswerAddition, BuildExplanation
    from berth.kit.feature_parts import AgentQueuesPart, AuthenticationPart, OperatorPart, ProcessPart
    from berth.kit.findings import Finding
    from berth.kit.flavors import changed_flavor, described_flavor, flavor_in_file
    from berth.kit.host_marks import Marking, causes_of, checked_cause, disabling, enabling, forcing_down
    from berth.kit.host_output import HostNames, provider_tree
    from berth.kit.hosts import (
        check_host_names,
        every_provider,
        host_id,
        host_named,
        host_names,
        providers_by_id,
        reported_hosts,
    )
    from berth.kit.http_descriptions import (
        EVENT_STREAM,
        DescribedOperation,
        HttpApiPart,
        HttpDescription,
        OperationKey,
    )
    from berth.kit.instant_cloud import InstantCloud, InstantPlacement, SteppedTime
    from berth.kit.key_values import domains_given, labels_given, pairs_given
    from berth.kit.listing import ListCli, plain_table
    from berth.kit.named_objects import HostRequestOptions, resolved_request
    from berth.kit.options import HOW_MANY, WHEN, WHERE, OptionsOf, argument, described, option, positional
    from berth.kit.oslo_conf import BadConf, OsloConf, read_conf
    from berth.kit.placement_access import check_certificates, placement_url, token_of
    from berth.kit.placement_client import PlacementClient, Rejected, each_in_parallel
    from berth.kit.placement_contents import ImportedConsumer, ImportedProvider, PlacementContents
    from berth.kit.problems import ProblemReader, ProblemsPart
    from berth.kit.publishing import (
        PUBLISH_SECONDS,
        checked,
        each_message,
        publish,
        repeated_until_answered,
        within_seconds,
    )
    from berth.kit.record_output import show_records
    from berth.kit.record_queries import ExplainedId, ExplainingPart, KnownRecords, known_records
    from berth.kit.recorded_requests import recorded_request
    from berth.kit.refusals import OPERATION_ERRORS, operations_refused, single_errors
    from berth.kit.request_sense import asked_amounts, sense_of
    from berth.kit.rest import RestOperation, RestPart, RestRequests
    from berth.kit.rest_ends import REPLY_TO, EndRule
    from berth.kit.secret_files import as_user, write_secret
    from berth.kit.settings_files import scheduler_settings_in
    from berth.kit.short_ids import SHORTEST_ID, only_one
    from berth.kit.terminal import Cli, complain, note, progress_bar, write_json
    from berth.kit.timeline import Happening
    from berth.kit.times import age_text, is_time, seconds_given, seconds_since, time_given, waiting_time
    from berth.kit.undoing import undone_on_failure
    from berth.kit.urls import check_broker_url, is_loopback
    from berth.rest.call import Call, answer
    from berth.rest.callers import NotFound, RestCaller
    from berth.settings import BadSetting, Settings, settings_by_name

# Each name that features may import, with the module that defines it and the reason why it is offered.
OFFERED = {
    # A command
    "Commands": ".command_groups",  # registers the functions of a feature as commands
    "WaitingCommand": ".command_groups",  # a command whose option --wait may have a time
    "Cli": ".terminal",  # a parameter of commands: prints text or JSON, connects to the bus
    "ActCli": ".dry_run",  # the same for commands that delete, close or move: they have --dry-run
    "ListCli": ".listing",  # the same for commands that list: columns, order and form of the table
    "option": ".options",  # an option in a dataclass or signature
    "argument": ".options",  # an argument in a dataclass
    "described": ".options",  # an option in `Annotated`
    "positional": ".options",  # an argument in `Annotated`
    "OptionsOf": ".options",  # the options of several dataclasses, such as those of features
    "HOW_MANY": ".options",  # the panel of options for numbers and times of build requests
    "WHERE": ".options",  # the panel of options for places of build requests
    "WHEN": ".options",  # the help of an option that is a time
    "HostNames": ".host_output",  # the argument of commands on several hosts
    "ExplainedId": ".record_queries",  # the argument of commands on a build, request or move
    "BadSetting": "berth.settings",  # refuses wrong options and settings: exit code 2
    "Settings": "berth.settings",  # the settings in force; `settings.of(...)` returns those of a feature
    "settings_by_name": "berth.settings",  # shows a setting by the name that operators know
    # Output
    "plain_table": ".listing",  # a table without borders
    "note": ".terminal",  # a note on standard error
    "complain": ".terminal",  # the console of error messages
    "progress_bar": ".terminal",  # shows how far long work is
    "write_json": ".terminal",  # prints a line of JSON
    "age_text": ".times",  # a short text of an age, such as 3m
    "print_funnel": ".decision_output",  # prints how filters reduced the hosts of a decision
    "attempts_of": ".decision_output",  # the attempts of a build, as lines
    "cause_after": ".decision_output",  # a cause at the end of a sentence
    "wait_sentence": ".decision_output",  # a sentence about a waiting request
    "held_sentence": ".decision_output",  # a sentence about a held host
    "provider_tree": ".host_output",  # draws the providers of a host
    "show_records": ".record_output",  # prints the records about a build, as `berth why` does
    # Options that several commands read alike
    "time_given": ".times",  # a time such as +2h
    "seconds_given": ".times",  # a duration such as 30m
    "seconds_since": ".times",  # the duration of --since
    "is_time": ".times",  # whether a text is a duration
    "waiting_time": ".times",  # the time of --wait
    "pairs_given": ".key_values",  # options of the form KEY=VALUE
    "labels_given": ".key_values",  # labels of hosts
    "domains_given": ".key_values",  # domains of hosts
    "uuid_of": ".builds",  # checks the uuid of a build
    "SHORTEST_ID": ".short_ids",  # characters of an id that name an object
    "only_one": ".short_ids",  # the only id that begins with a text
    "whole_id": ".builds",  # the id of a build that is given by its first characters
    "whole_ids": ".builds",  # the same for several builds
    "checked_cause": ".host_marks",  # checks the cause for which a host is disabled
    "BootOptions": ".boot_options",  # the options of a build request
    "options_named": ".boot_options",  # boot options by name, also those of features
    "names_of": ".boot_options",  # the objects that boot options name
    "boot_descriptions": ".boot_command_options",  # the descriptions of boot options, for another command
    "print_notes": ".boot_command_options",  # warns of ignored parts of a request
    "boot_request": ".boot_requests",  # the request that boot options describe
    "image_named": ".boot_requests",  # the image of a request
    "parts_given": ".boot_requests",  # the parts of features in a message, from options
    "described_flavor": ".flavors",  # the flavor that boot options describe
    "changed_flavor": ".flavors",  # a flavor with changes
    "flavor_in_file": ".flavors",  # a flavor in a JSON file
    "HostRequestOptions": ".named_objects",  # the interface of boot options that a feature adds
    "resolved_request": ".named_objects",  # a request with ids instead of names
    "sense_of": ".request_sense",  # refuses a request that no cloud satisfies
    "asked_amounts": ".request_sense",  # the resources of a request
    "recorded_request": ".recorded_requests",  # the request of a recorded build
    # Messages and queries
    "checked": ".publishing",  # refuses an invalid message before it is published
    "publish": ".publishing",  # publishes messages, and waits for a worker that starts
    "PUBLISH_SECONDS": ".publishing",  # how long `publish` waits
    "within_seconds": ".publishing",  # refuses an operation that takes too long
    "each_message": ".publishing",  # handles the messages of a subscription
    "repeated_until_answered": ".publishing",  # repeats a query while its worker restarts
    "known_cells": ".cells",  # the names of all cells
    "chosen_cells": ".cells",  # the cells of an option, or all
    "check_to_cell": ".cells",  # checks the destination cell of a move
    "ask_cells": ".cells",  # sends a query to cells in parallel
    "require_all_answers": ".cells",  # refuses an incomplete result
    "cells_text": ".cells",  # names of cells in a sentence
    "builds_by_uuid": ".builds",  # finds builds in all cells
    "instance_pages": ".builds",  # reads the instances of a cell
    "refused_builds": ".builds",  # reads the builds that found no host
    "end_wait": ".ended_waits",  # cancels a waiting request
    "host_named": ".hosts",  # finds a host by name or id
    "host_id": ".hosts",  # the id of a host
    "host_names": ".hosts",  # the names of hosts
    "check_host_names": ".hosts",  # refuses an ambiguous name of a host
    "reported_hosts": ".hosts",  # the hosts of agents
    "every_provider": ".hosts",  # reads providers page by page
    "providers_by_id": ".hosts",  # reads providers by id
    "aggregate_named": ".aggregates",  # finds an aggregate by name or id
    "Marking": ".host_marks",  # such an act, which can be rehearsed
    "disabling": ".host_marks",  # disables a host for a cause
    "enabling": ".host_marks",  # enables a host
    "forcing_down": ".host_marks",  # marks a host as forced down
    "causes_of": ".host_marks",  # the causes for which a host is disabled
    "operations_refused": ".refusals",  # converts the errors of an operation, for a page that shows them
    "OPERATION_ERRORS": ".refusals",  # the errors that `operations_refused` converts
    "single_errors": ".refusals",  # the errors in an exception group
    # Types of the values PART of a feature's modules
    "AuditPart": ".audit_records",  # of the module `audit`
    "CellAuditPart": ".audit_records",  # of the module `cell_audit`
    "HealingPart": ".audit_records",  # of the module `healing`
    "AuthenticationPart": ".feature_parts",  # of the module `authentication`
    "ProcessPart": ".feature_parts",  # of the module `processes`
    "AgentQueuesPart": ".feature_parts",  # of the module `agent_queues`
    "OperatorPart": ".feature_parts",  # of the module `operators`
    "CredentialsPart": ".credentials",  # of the module `credentials`
    "BootOptionsPart": ".boot_options",  # of the module `boot_options`
    "ExplainingPart": ".record_queries",  # of the module `explaining`
    "HttpApiPart": ".http_descriptions",  # of the module `http`
    "ProblemsPart": ".problems",  # of the module `problems`
    "ProblemReader": ".problems",  # sends the queries by which a feature finds its problems
    # What a feature adds to commands of the kernel and of other features
    "added": "berth.features",  # the values PART that features add to a command or page of this feature
    "add_messages": "berth.features",  # adds the messages of all features, for a client library
    "Happening": ".timeline",  # what happened to a build at a time, for `berth why --timeline`
    "BuildExplanation": ".explanations",  # a line of `berth why`
    "AnswerAddition": ".explanations",  # lines and JSON fields in the output of another feature's command
    "KnownRecords": ".record_queries",  # the records about a build that `berth why` has found
    "known_records": ".record_queries",  # finds these records
    "Finding": ".findings",  # a line of `berth doctor`
    "Credential": ".credentials",  # a row of `berth access list`
    "OperationMark": ".audit_records",  # the record of a move, for `berth audit check`
    "ReleasedBuild": ".audit_records",  # the record of a build without resources, for `berth audit check`
    "Recording": ".audit_records",  # an instance that a cell shall record, for `berth audit heal`
    # HTTP
    "DescribedOperation": ".http_descriptions",  # describes an operation of an HTTP API
    "HttpDescription": ".http_descriptions",  # describes what a feature adds to the Placement API
    "OperationKey": ".http_descriptions",  # the pattern and method of an operation
    "EVENT_STREAM": ".http_descriptions",  # the media type of server-sent events
    "RestPart": ".rest",  # what a feature adds to the REST API
    "RestRequests": ".rest",  # accepts requests, and reads their projects and ends
    "RestOperation": ".rest",  # an operation of the REST API
    "EndRule": ".rest_ends",  # stores the ends of a feature's requests
    "REPLY_TO": ".rest_ends",  # the reply address of requests over REST
    "Call": "berth.rest.call",  # an HTTP request with its caller
    "answer": "berth.rest.call",  # the HTTP response with a value
    "RestCaller": "berth.rest.callers",  # checks what a caller may do
    "NotFound": "berth.rest.callers",  # the response 404
    "RestClient": "berth.client.over_http",  # the client library, which a feature may extend
    # Choices of hosts, repeated in memory
    "choice_policy": ".choice_policies",  # the filters and weighers of settings
    "rule_options": ".choice_policies",  # the options of filters and weighers
    "scheduler_settings_in": ".settings_files",  # the settings of a file to compare with
    "InstantCloud": ".instant_cloud",  # a cloud in memory for which a scheduler decides
    "InstantPlacement": ".instant_cloud",  # the placement of such a cloud
    "SteppedTime": ".instant_cloud",  # the clock of such a cloud
    "placement_queries": "berth.composition",  # the queries of a scheduler to the present placement
    # Users of RabbitMQ
    "BrokerTool": ".broker_users",  # the options that select the tool to administer users
    "RecordedUsers": ".broker_users",  # administers users, and records it in the audit trail
    "BrokerUser": ".broker_permissions",  # a user with its permissions
    "Permissions": ".broker_permissions",  # what a user may do
    "KeyPatterns": ".broker_permissions",  # the routing keys of a user
    "UserLimits": ".broker_permissions",  # the limits of a user
    "definitions": ".broker_permissions",  # users in the format of RabbitMQ
    "queue_policy": ".broker_permissions",  # the policy that limits the queues of a user
    "queue_patterns": ".broker_permissions",  # patterns of names of queues
    "exchange_patterns": ".broker_permissions",  # patterns of names of exchanges
    "any_of": ".broker_permissions",  # one pattern for several
    "NAME_PATTERN": ".broker_permissions",  # a name in a routing key
    "RANDOM_PATTERN": ".broker_permissions",  # a random part of a name
    "KEY_FIELD": ".broker_permissions",  # a field in the pattern of a routing key
    "MATCHES_NOTHING": ".broker_permissions",  # the pattern of no permission
    "as_user": ".secret_files",  # a URL with user and password
    "write_secret": ".secret_files",  # writes a file that only its owner reads
    "undone_on_failure": ".undoing",  # undoes the steps of a command that fails
    "check_broker_url": ".urls",  # checks the URL of a RabbitMQ
    "is_loopback": ".urls",  # whether an address is of this machine
    # Other services
    "OsloConf": ".oslo_conf",  # a configuration file of OpenStack
    "BadConf": ".oslo_conf",  # refuses such a file
    "read_conf": ".oslo_conf",  # reads such a file that a setting names
    "PlacementClient": ".placement_client",  # reads another Placement
    "Rejected": ".placement_client",  # another Placement refused a request
    "each_in_parallel": ".placement_client",  # requests for many objects
    "PlacementContents": ".placement_contents",  # the contents of a Placement
    "ImportedConsumer": ".placement_contents",  # a consumer of a Placement
    "ImportedProvider": ".placement_contents",  # a provider of a Placement
    "placement_url": ".placement_access",  # checks the address of a Placement
    "check_certificates": ".placement_access",  # checks a file of certificates
    "token_of": ".placement_access",  # reads a token
}
__all__ = [*OFFERED]

if not TYPE_CHECKING:  # a type checker reads the imports above: it would accept any name here

    def __getattr__(name: str) -> Any:
        """Import the module of a name when the name is used: a command loads only what it needs."""
        if name not in OFFERED:
            raise AttributeError(f"{__name__} offers no {name}")
        return getattr(import_module(OFFERED[name], __name__), name)
