"""Tables of docs/tenants.md are whole. What it tells people to type and to set is tried in tests/docs."""

import re
from dataclasses import fields

from cli.isolation_check.plan import NAMES
from gateway.policy import TenantPolicy
from tests.tools import REPOSITORY

DOCUMENT = (REPOSITORY / "docs" / "tenants.md").read_text("utf-8")


def table_below(heading: str) -> list[str]:
    """Return the first cells of the table below a heading, as they are written between backquotes."""
    rows = [line for line in DOCUMENT.split(heading)[1].split("\n## ")[0].splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]


def test_the_table_of_a_policy_is_whole() -> None:
    assert set(table_below("## Tenants and policies")) - {"max_deadline"} == {
        each.name for each in fields(TenantPolicy)
    }


def test_the_table_of_checks_is_whole() -> None:
    assert set(table_below("## Checking isolation")) == set(NAMES)
