"""What a gateway expects of a worker: how far off it was, and what it forgets."""

import pytest

from gateway.routing.sent import BLOCK_TOKENS, SentPrefixes
from tests.unit.hicache.support import key

PROMPT = key(list(range(4 * BLOCK_TOKENS + 7)))
EXPECTED = 4 * BLOCK_TOKENS


def sent_before() -> SentPrefixes:
    sent = SentPrefixes()
    first = sent.sent(PROMPT)
    first.admitted(0)
    first.generated(0, [1])
    first.ended()
    return sent


def test_nothing_is_expected_of_a_worker_that_was_sent_nothing() -> None:
    assert SentPrefixes().sent(PROMPT).tokens == 0


@pytest.mark.parametrize(
    ("cached", "error"),
    [
        (EXPECTED, 0),
        (EXPECTED + BLOCK_TOKENS - 1, 0),  # the block that the prompt does not fill
        (EXPECTED + BLOCK_TOKENS, -1),
        (EXPECTED - 1, 1),
        (0, EXPECTED),
    ],
)
def test_an_expectation_is_off_by_what_lies_outside_of_its_block(cached: int, error: int) -> None:
    assert sent_before().sent(PROMPT).admitted(cached) == error


def test_another_tenants_prompt_raises_no_expectation() -> None:
    assert sent_before().sent(key(PROMPT.token_ids, "another")).tokens == 0


def test_a_request_that_was_never_admitted_leaves_no_expectation() -> None:
    sent = SentPrefixes()
    sent.sent(PROMPT).ended()
    assert sent.sent(PROMPT).tokens == 0


def test_a_prompt_that_was_admitted_and_not_computed_to_its_end_leaves_no_expectation() -> None:
    sent = SentPrefixes()
    cancelled = sent.sent(PROMPT)
    cancelled.admitted(0)
    cancelled.ended()
    assert sent.sent(PROMPT).tokens == 0


def test_a_completion_of_no_tokens_says_that_its_prompt_was_computed() -> None:
    sent = SentPrefixes()
    empty = sent.sent(PROMPT)
    empty.admitted(0)
    empty.generated(0, [])
    empty.ended()
    assert sent.sent(PROMPT).tokens == EXPECTED


def test_what_another_request_has_computed_outlives_the_cancellation_of_who_sent_it_first() -> None:
    sent = SentPrefixes()
    cancelled, other = sent.sent(PROMPT), sent.sent(PROMPT)
    cancelled.ended()
    other.admitted(0)
    other.generated(0, [1])
    other.ended()
    assert sent.sent(PROMPT).tokens == EXPECTED


def test_a_request_that_was_never_admitted_takes_away_nothing_that_others_brought() -> None:
    sent = sent_before()
    sent.sent(PROMPT.extend([1] * BLOCK_TOKENS)).ended()
    assert sent.sent(PROMPT).tokens == EXPECTED


def test_of_a_worker_that_was_lost_nothing_is_expected() -> None:
    sent = sent_before()
    sent.forget()
    assert sent.sent(PROMPT).tokens == 0
