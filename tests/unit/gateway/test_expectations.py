"""What a gateway expects of a worker: how far off it was, and what it forgets."""

import pytest

from gateway.routing.expected import UNTOLD, Expectation, Pages, ToldExpectation, UntoldExpectation
from gateway.routing.index import DEVICE, HOST, PageIndex
from hicache.keys import PrefixKey
from tests.unit.hicache.support import key

PAGE = UNTOLD.page_size
PROMPT = key(list(range(4 * PAGE + 7)))
EXPECTED = 4 * PAGE


def new_pages(cache_page_size: int = 1) -> Pages:
    return Pages(PageIndex(1000), UNTOLD, cache_page_size)


def sent(pages: Pages, prompt: PrefixKey = PROMPT) -> Expectation:
    return UntoldExpectation(pages, prompt)


def computed(expectation: Expectation) -> None:
    expectation.admitted(0)
    expectation.generated(0, [1])
    expectation.ended()


def sent_before() -> Pages:
    pages = new_pages()
    computed(sent(pages))
    return pages


def test_nothing_is_expected_of_a_worker_that_was_sent_nothing() -> None:
    assert sent(new_pages()).tokens == 0


@pytest.mark.parametrize(
    ("cached", "error"),
    [
        (EXPECTED, 0),
        (EXPECTED + PAGE - 1, 0),  # the page that the prompt does not fill
        (EXPECTED + PAGE, -1),
        (EXPECTED - 1, 1),
        (0, EXPECTED),
    ],
)
def test_an_expectation_is_off_by_what_lies_outside_of_its_page(cached: int, error: int) -> None:
    assert sent(sent_before()).admitted(cached) == error


def test_another_tenants_prompt_raises_no_expectation() -> None:
    assert sent(sent_before(), key(PROMPT.token_ids, "another")).tokens == 0


def test_a_prompt_is_expected_as_soon_as_it_is_sent() -> None:
    pages = new_pages()
    sent(pages)
    assert sent(pages).tokens == EXPECTED


def test_a_request_that_was_never_admitted_leaves_no_expectation() -> None:
    pages = new_pages()
    sent(pages).ended()
    assert sent(pages).tokens == 0


def test_a_completion_of_no_tokens_says_that_its_prompt_was_computed() -> None:
    pages = new_pages()
    empty = sent(pages)
    empty.admitted(0)
    empty.generated(0, [])
    empty.ended()
    assert sent(pages).tokens == EXPECTED


def test_what_another_request_has_computed_outlives_the_cancellation_of_who_sent_it_first() -> None:
    pages = new_pages()
    cancelled, other = sent(pages), sent(pages)
    cancelled.ended()
    computed(other)
    assert sent(pages).tokens == EXPECTED


def test_what_another_request_still_waits_for_outlives_the_cancellation_of_who_sent_it_first() -> None:
    pages = new_pages()
    cancelled, _ = sent(pages), sent(pages)
    cancelled.ended()
    assert sent(pages).tokens == EXPECTED


def test_a_request_that_was_never_admitted_takes_away_nothing_that_others_brought() -> None:
    pages = sent_before()
    sent(pages, PROMPT.extend([1] * PAGE)).ended()
    assert sent(pages).tokens == EXPECTED


def test_where_the_cache_has_pages_of_its_own_the_last_of_a_prompt_is_computed_whole() -> None:
    prompt = key(list(range(4 * PAGE)))
    pages = new_pages(cache_page_size=16)
    computed(sent(pages, prompt))
    assert sent(pages, prompt).tokens == 4 * PAGE - 16


def test_pages_on_the_host_are_expected_behind_those_on_the_device() -> None:
    pages = new_pages()
    names = pages.names(PROMPT)
    pages.holder.add(DEVICE, names[:1])
    pages.holder.add(HOST, names[:3])
    assert ToldExpectation(pages, PROMPT).tokens == 3 * PAGE


def test_what_was_told_of_is_not_expected_any_more_and_goes_when_it_is_evicted() -> None:
    pages = new_pages()
    first = ToldExpectation(pages, PROMPT)
    names = pages.names(PROMPT)
    pages.holder.add(DEVICE, names)
    pages.holder.confirm(names)
    pages.holder.remove(DEVICE, names)
    assert ToldExpectation(pages, PROMPT).tokens == 0
    first.ended()
