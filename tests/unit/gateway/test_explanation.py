"""Explanations are JSON that fits into a header, however much there is to say."""

import json

from gateway.dispatch.explanation import MAX_BYTES, Explanation, if_asked, never


def test_choices_and_moves_are_told_in_order() -> None:
    explanation = Explanation()
    explanation.chosen("a:1", {"hit": 3})
    explanation.moved("a:1", "lost", 7)
    explanation.chosen("b:1", {})
    assert json.loads(explanation.text()) == [
        {"worker": "a:1", "hit": 3},
        {"left": "a:1", "cause": "lost", "tokens": 7},
        {"worker": "b:1"},
    ]


def test_one_that_is_too_long_still_says_who_was_chosen() -> None:
    explanation = Explanation()
    explanation.chosen("a:1", {"candidates": ["x" * 100] * 100})
    assert json.loads(explanation.text()) == [{"worker": "a:1", "shortened": True}]


def test_it_never_grows_beyond_its_bound_and_says_what_it_left_out() -> None:
    explanation = Explanation()
    for number in range(1000):
        explanation.chosen(f"worker-{number}:50061", {"why": "é" * 20})
    told = json.loads(explanation.text())
    assert len(explanation.text()) <= MAX_BYTES
    assert explanation.text().isascii()
    assert len(told) - 1 + told[-1]["left_out"] == 1000


def test_who_does_not_ask_is_told_nothing() -> None:
    assert if_asked("1") is not None
    assert [if_asked(value) for value in (None, "", "0", "true")] == [None] * 4
    assert never("1") is None  # type: ignore[func-returns-value]
