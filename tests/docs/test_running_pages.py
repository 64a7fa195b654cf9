"""What pages tell readers to run does what they say, one block after the other, against a live deployment."""

import contextlib
import io
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.docs.conftest import PLACEHOLDER, Session
from tests.docs.pages import PAGES, Block, Page
from tests.docs.transcript import commands_and_output, matches

pytestmark = [pytest.mark.live, pytest.mark.model, pytest.mark.timeout(600)]

RUN = ("sh", "console", "python")


def runs(page: Page) -> bool:
    return any(block.kind in RUN and block.not_run is None for block in page.blocks)


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)], ids=lambda page: page.name)
def test_a_page_does_what_it_says(page: Page, session_for: Callable[[str], AbstractContextManager[Session]]) -> None:
    with session_for(page.name) as session:
        last = ""
        names: dict[str, object] = {}
        for block in page.blocks:
            if block.is_output:
                check_output(block, last)
            elif block.not_run is None:
                last = run(block, session, names)


def run(block: Block, session: Session, names: dict[str, object]) -> str:
    for line in block.before:
        session.run(line)
    if block.kind == "sh":
        return session.run(block.text)
    if block.kind == "console":
        for command, expected in commands_and_output(block.text):
            check(block, expected, session.run(command))
    if block.kind == "python":
        return run_python(block, session, names)
    return ""


def run_python(block: Block, session: Session, names: dict[str, object]) -> str:
    source = PLACEHOLDER.sub(lambda found: repr(session.variables[found[1]]), session.here(block.text))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, block.where, "exec"), names)
    return printed.getvalue()


def check_output(block: Block, output: str) -> None:
    if block.follows is not None and block.follows.not_run is None and block.not_run is None:
        check(block, block.text, output)


def check(block: Block, expected: str, output: str) -> None:
    assert matches(expected, output), f"{block.where} shows\n{expected}\nand it printed\n{output}"
