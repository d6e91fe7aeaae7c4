"""The Placement API over HTTP, microversions 1.0 to 1.39."""

from placement_worker.http.app import Options, http_app
from placement_worker.http.errors import format_refusal
