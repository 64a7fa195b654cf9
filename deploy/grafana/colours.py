"""Colours that mean the same on every dashboard, and that people who see colours differently can tell apart.

After the palette of Okabe and Ito, lightened so that they hold on dark and on light backgrounds. What is bad is
vermilion, and nothing else is.
"""

from collections.abc import Mapping

BLUE = "#4C9BE8"
ORANGE = "#E69F00"
GREEN = "#1BA784"
VERMILION = "#D8532B"
PURPLE = "#C27BA0"
YELLOW = "#D9C53A"
SKY = "#8CCBF2"
GREY = "#8E9199"
PALE = "#5A5D66"

BAD = VERMILION
WARNING = ORANGE
GOOD = GREEN
CALM = BLUE  # a figure that is neither good nor bad

Colours = Mapping[str, str]

TIERS: Colours = {"device": BLUE, "host": ORANGE, "storage": GREEN, "computed": GREY}
STATES: Colours = {"in use": BLUE, "evictable": SKY, "free": PALE}
QUANTILES: Colours = {"p50": SKY, "p90": BLUE, "p99": PURPLE}
COPIES: Colours = {"mirror": ORANGE, "load back": BLUE, "prefetch": GREEN, "save": PURPLE}
OUTCOMES: Colours = {"ok": BLUE, "refused": ORANGE, "client error": PURPLE, "cancelled": GREY, "failed": VERMILION}
DECISIONS: Colours = {"admitted": BLUE, "queued": YELLOW, "refused": ORANGE}
EXPECTATIONS: Colours = {"expected": GREY, "found": BLUE, "too much": VERMILION, "too little": YELLOW}
BATCH: Colours = {"tokens": PURPLE, "sequences": BLUE}
OWNERS: Colours = {"own": BLUE, "public": YELLOW}
LINE: Colours = {"running": BLUE, "waiting": ORANGE}
PAGES: Colours = {
    "saved": PURPLE,
    "read": GREEN,
    "skipped": YELLOW,
    "missing": SKY,
    "corrupt": VERMILION,
    "dropped": GREY,
}
FAULTS: Colours = {
    "mirror failed": ORANGE,
    "load back failed": BLUE,
    "copy stalled": VERMILION,
    "prefetch failed": GREEN,
    "prefetch late": YELLOW,
    "save failed": PURPLE,
}
REASONS: Colours = {
    "prefix": BLUE,
    "load": ORANGE,
    "warm_up": YELLOW,
    "only": GREY,
    "turn": PURPLE,
    "session": GREEN,
}
CAUSES: Colours = {
    "shutting_down": BLUE,
    "overloaded": SKY,
    "lost": ORANGE,
    "silent": YELLOW,
    "stalled": PURPLE,
    "failed": VERMILION,
}
EVENTS: Colours = {"told": BLUE, "taken over": GREEN, "dropped": ORANGE, "snapshots": PURPLE}
UPKEEP: Colours = {"gaps": ORANGE, "snapshots": PURPLE, "digests that differ": VERMILION, "pages forgotten": GREY}
CODES: Colours = {
    "CANCELLED": GREY,
    "DEADLINE_EXCEEDED": YELLOW,
    "INTERNAL": VERMILION,
    "INVALID_ARGUMENT": PURPLE,
    "NOT_FOUND": SKY,
    "PERMISSION_DENIED": GREEN,
    "RESOURCE_EXHAUSTED": ORANGE,
    "UNAUTHENTICATED": BLUE,
    "UNAVAILABLE": VERMILION,
}
