"""Every page of the control room, by its address: what the browser's tests and screenshots go through.

Between braces stands what `lived_in` has made (tests/support/open_berth.py).
"""

PAGES = {
    "now": "/",
    "hosts": "/hosts",
    "host": "/hosts/{host}",
    "builds": "/builds",
    "waiting": "/waiting",
    "bus": "/bus",
    "dead-letters": "/bus/dead",
    "builds-failed": "/builds?failed=1",
    "build": "/builds/{build}",
    "build-again": "/builds/{build}?then=again",
    "build-today": "/builds/{build}?then=now",
    "build-refused": "/builds/{refused}",
    "sign-in": "/login",
    "nowhere": "/nowhere",
}
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")

# What an operator does there, as its button says.
ACTS = {
    "host": ("button Disable", "button Enable", "button Force down", "button Take that back"),
    "sign-in": ("button Sign in",),
    "hosts": ("button Show", "section Hosts as tiles; arrow keys go from one to the next, Enter opens it"),
    "builds": ("button Why?",),
}
