"""Each rule for the fields of Generate: the value that breaks it, the field that is named, the limit that is told."""

from typing import Any

import pytest

from gateway.config import GatewayLimits
from gateway.serving.validation import check_generate
from radixgate.v1 import inference_pb2

LIMITS = GatewayLimits()
VOCAB = 100


def violations(**request: Any) -> dict[str, str]:
    found = check_generate(inference_pb2.GenerateRequest(**request), LIMITS, VOCAB)
    assert len({violation.field for violation in found}) == len(found)
    return {violation.field: violation.description for violation in found}


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("max_new_tokens", 0, "at least 1"),
        ("max_new_tokens", -5, "at least 1"),
        ("min_new_tokens", -1, "at least 0"),
        ("temperature", -1.0, "0 to 100"),
        ("temperature", 100.5, "0 to 100"),
        ("temperature", float("nan"), "0 to 100"),
        ("temperature", float("inf"), "0 to 100"),
        ("top_k", -1, "at least 0"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 2.0, "above 0 and at most 1"),
        ("top_p", float("nan"), "above 0 and at most 1"),
        ("min_p", -0.1, "0 to 1"),
        ("min_p", 1.1, "0 to 1"),
        ("min_p", float("nan"), "0 to 1"),
        ("repetition_penalty", 0.0, "0.01 to 100"),
        ("repetition_penalty", -1.0, "0.01 to 100"),
        ("repetition_penalty", 0.00999, "0.01 to 100"),
        ("repetition_penalty", 1e-38, "0.01 to 100"),
        ("repetition_penalty", 100.5, "0.01 to 100"),
        ("repetition_penalty", float("inf"), "0.01 to 100"),
        ("repetition_penalty", float("nan"), "0.01 to 100"),
        ("presence_penalty", 2.5, "-2 to 2"),
        ("presence_penalty", float("-inf"), "-2 to 2"),
        ("frequency_penalty", -2.5, "-2 to 2"),
        ("frequency_penalty", float("nan"), "-2 to 2"),
        ("logprobs", -1, "0 to 20"),
        ("logprobs", 21, "0 to 20"),
        ("prompt_logprobs", -1, "0 to 20"),
        ("prompt_logprobs", 21, "0 to 20"),
        ("n", 0, "1 to 64"),
        ("n", -1, "1 to 64"),
        ("n", 65, "1 to 64"),
        ("json_schema", "", "at least 1"),
        ("json_schema", "x" * 65_537, "65537 bytes; at most 65536"),
        ("regex", "", "at least 1"),
        ("regex", "ü" * 32_769, "65538 bytes; at most 65536"),
        ("choice", {"texts": ["x" * 65_000, "y" * 600]}, "at most 65536"),
        ("stop", ["x"] * 5000, "at most 16"),
        ("stop_token_ids", [1] * 65, "at most 64"),
    ],
)
def test_a_sampling_parameter_out_of_bounds_is_named_with_its_limit(name: str, value: Any, limit: str) -> None:
    found = violations(sampling={name: value})
    assert list(found) == [f"sampling.{name}"]
    assert limit in found[f"sampling.{name}"]


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "logprobs": 0, "min_new_tokens": 0},
        {"temperature": 100.0, "top_p": 1e-6, "min_p": 1.0, "logprobs": 20, "max_new_tokens": 1, "min_new_tokens": 1},
        {"repetition_penalty": 0.01, "presence_penalty": -2.0, "frequency_penalty": 2.0, "seed": 2**64 - 1},
        {"repetition_penalty": 100.0},
        {"stop": ["x" * 256] * 16, "stop_token_ids": [0, VOCAB - 1] * 32},
    ],
)
def test_values_at_their_bounds_are_fine(sampling: dict[str, Any]) -> None:
    assert violations(sampling=sampling, scope="s" * 256, request_id="r" * 128) == {}


def test_a_minimum_above_the_maximum_is_refused() -> None:
    assert list(violations(sampling={"max_new_tokens": 3, "min_new_tokens": 4})) == ["sampling.min_new_tokens"]


@pytest.mark.parametrize("stop", ["", "x" * 257])
def test_a_stop_string_has_1_to_256_characters(stop: str) -> None:
    assert list(violations(sampling={"stop": ["fine", stop]})) == ["sampling.stop[1]"]


@pytest.mark.parametrize("token_id", [-1, VOCAB])
def test_a_stop_token_is_in_the_vocabulary(token_id: int) -> None:
    found = violations(sampling={"stop_token_ids": [token_id]})
    assert list(found) == ["sampling.stop_token_ids[0]"]
    assert str(VOCAB - 1) in found["sampling.stop_token_ids[0]"]


def test_a_scope_is_counted_in_bytes() -> None:
    assert list(violations(scope="ü" * 129)) == ["scope"]


@pytest.mark.parametrize("request_id", ["r" * 129, "two\nlines", "nul\x00"])
def test_a_request_id_is_short_and_printable(request_id: str) -> None:
    assert list(violations(request_id=request_id)) == ["request_id"]


def test_claims_of_identity_are_named() -> None:
    assert list(violations(tenant="other", extra_key=b"k" * 16)) == ["tenant", "extra_key"]


def test_all_violations_are_told_at_once() -> None:
    found = violations(tenant="x", scope="s" * 300, sampling={"temperature": -1.0, "top_p": 2.0, "stop": ["x"] * 5000})
    assert set(found) == {"tenant", "scope", "sampling.temperature", "sampling.top_p", "sampling.stop"}


@pytest.mark.parametrize(
    ("texts", "field"),
    [([], "texts"), (["x"] * 257, "texts"), (["a", "", "b"], "texts[1]")],
)
def test_a_choice_has_a_bounded_number_of_texts_and_none_is_empty(texts: list[str], field: str) -> None:
    assert list(violations(sampling={"choice": {"texts": texts}})) == [f"sampling.choice.{field}"]


@pytest.mark.parametrize(
    "sampling",
    [
        {"n": 64, "prompt_logprobs": 20, "json_schema": "{}"},
        {"n": 1, "prompt_logprobs": 0, "regex": "a" * 65_536},
        {"choice": {"texts": [str(index) for index in range(256)]}},
    ],
)
def test_what_lies_on_the_bounds_is_taken(sampling: dict[str, Any]) -> None:
    assert violations(sampling=sampling) == {}
