"""The page about models says what is tested."""

import pytest

from tests.integration.model_tables import PAGE, tables, within


@pytest.mark.parametrize("name", ["compared", "refused"])
def test_the_page_has_the_table_that_the_tests_make(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert within(page, name) == tables()[name], "python -m tests.integration.model_tables writes it anew"
