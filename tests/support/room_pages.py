"""Every page of the control room, by its address: what the browser's tests and screenshots go through.

Between braces stands what `lived_in` has made (tests/support/open_berth.py).
"""

PAGES = {
    "now": "/",
    "hosts": "/hosts",
    "host": "/hosts/{host}",
    "builds": "/builds",
    "waiting": "/waiting",
    "moves": "/moves",
    "move": "/moves/{move}",
    "metal": "/metal?wait=1",
    "bus": "/bus",
    "dead-letters": "/bus/dead",
    "dead-letter": "/bus/letter?id={letter}",
    "what-if": "/what-if?vcpus=4&memory_mb=4096&count=3&zone=nowhere",
    "capacity": "/what-if/capacity?mix=2xVCPU:2,MEMORY_MB:4096%0AVCPU:30,MEMORY_MB:70000&add=2xlike:{host}",
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

ACTS = {
    "waiting": ("button Show", "button Cancel request {waits}"),
    "moves": ("button Confirm: stay on the new host", "button Revert: return to the source"),
    "move": ("button Confirm: stay on the new host", "button Revert: return to the source"),
    "host": (
        "button Drain: disable it and move all instances",
        "button Disable",
        "button Enable",
        "button Force down",
        "button Undo force down",
    ),
    "dead-letters": ("button Replay marked …", "button Drop marked …"),
    "dead-letter": ("button Replay …", "button Drop …"),
    "what-if": ("button Would it fit?",),
    "capacity": ("button How many fit?",),
    "sign-in": ("button Sign in",),
    "hosts": ("button Show", "section Hosts as tiles; arrow keys go from one to the next, Enter opens it"),
    "builds": ("button Show",),
}
