"""Whatever a page points at is there: pages, headings, files, settings, metrics, make targets."""

import re

import pytest

from tests.docs.names import is_module, is_setting, known_metric, metrics_of
from tests.docs.pages import PAGES, Page, anchor_of
from tests.tools import REPOSITORY

SECTION = re.compile(r"^(gateway|worker|redis|log)(\.[a-z_][\w-]*)+$")
TARGETS = frozenset(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE))
BY_PATH = {page.path: page for page in PAGES}

every_page = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])


@every_page
def test_links_lead_somewhere(page: Page) -> None:
    lost = [link for link in page.links if not leads_somewhere(page, link)]
    assert lost == []


def leads_somewhere(page: Page, link: str) -> bool:
    if link.startswith(("https://", "http://", "mailto:")):
        return True
    path, _, anchor = link.partition("#")
    target = (page.path.parent / path).resolve() if path else page.path
    if not target.exists() or not target.is_relative_to(REPOSITORY):
        return False
    if not anchor:
        return True
    there = BY_PATH.get(target) or Page(str(target.relative_to(REPOSITORY)), target.read_text("utf-8"))
    return anchor in there.anchors


@every_page
def test_settings_that_are_named_exist(page: Page) -> None:
    named = {code.partition("=")[0].strip().removesuffix(".*") for code in page.inline_code}
    dotted = {name for name in named if SECTION.fullmatch(name) and not name.endswith((".py", ".toml"))}
    assert {name for name in dotted if not is_setting(name) and not is_module(name)} == set()


@every_page
def test_metrics_that_are_named_exist(page: Page) -> None:
    text = " ".join([*page.inline_code, *(block.text for block in page.blocks if block.kind in {"text", "console"})])
    assert {name for name in metrics_of(text) if not known_metric(name)} == set()


@every_page
def test_targets_of_make_exist(page: Page) -> None:
    commands = [code for code in page.inline_code if code.startswith("make ")]
    commands += [line for block in page.blocks for line in block.text.splitlines() if line.startswith("make ")]
    assert {command.split()[1] for command in commands} - TARGETS == set()


def test_an_anchor_is_that_of_github() -> None:
    assert anchor_of("What is shared, and what is not") == "what-is-shared-and-what-is-not"
    assert anchor_of("`radixgate size` (TOML)") == "radixgate-size-toml"


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("worker.cache.host_slots", True),
        ("worker.cache.storage", True),
        ("worker.cache.shares.acme.floor", True),
        ("gateway.operators.alice", True),
        ("worker.cache.hostslots", False),
        ("worker.cache.host_slots.more", False),
        ("gateway.policies.tenants.acme.weight", True),
    ],
)
def test_a_setting_is_one_of_the_configuration(path: str, there: bool) -> None:
    assert is_setting(path) is there
