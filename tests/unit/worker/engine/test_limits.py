"""What the engine refuses by itself, whoever asks: one request must not be able to fail a step for its neighbours."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.worker.engine.harness import EOS, VOCAB, make_request
from worker.batch import SamplingParams
from worker.engine.limits import ModelLimits, refusal
from worker.errors import FailureCode

LIMITS = ModelLimits(VOCAB, context_length=100, eos_token_ids=(EOS,))
NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", NAN),
        ("temperature", INFINITE),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", NAN),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", INFINITE),
        ("presence_penalty", NAN),
        ("frequency_penalty", INFINITE),
        ("min_new_tokens", -1),
        ("logprobs", -3),
        ("seed", -1),
        ("seed", 1 << 64),
        ("max_new_tokens", 0),
    ],
)
def test_parameters_for_which_sampling_is_not_defined_are_refused_by_name(name: str, value: Any) -> None:
    params = replace(SamplingParams(max_new_tokens=4), **{name: value})
    failure = refusal(make_request(1, params=params), LIMITS, max_sequence_tokens=100)

    assert failure is not None
    assert (failure.code, failure.field) == (FailureCode.INVALID_ARGUMENT, f"sampling.{name}")


def test_an_empty_stop_string_is_refused() -> None:
    failure = refusal(make_request(1, params=SamplingParams(max_new_tokens=4, stop=("x", ""))), LIMITS, 100)

    assert failure is not None
    assert failure.field == "sampling.stop"


def test_extremes_that_are_defined_are_not_refused() -> None:
    params = SamplingParams(
        max_new_tokens=4, temperature=1e-45, top_k=1 << 30, top_p=1e-9, min_p=1.0, repetition_penalty=1e-38,
        presence_penalty=-1e30, frequency_penalty=1e30, seed=(1 << 64) - 1, logprobs=0, min_new_tokens=9,
    )  # fmt: skip
    assert refusal(make_request(1, params=params), LIMITS, max_sequence_tokens=100) is None
