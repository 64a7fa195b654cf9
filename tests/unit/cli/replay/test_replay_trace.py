"""What a line of a trace means, and what is said of one that means nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.replay.trace import TraceError, TraceRequest, open_trace


def written(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def requests_of(folder: Path, *lines: dict[str, Any]) -> list[TraceRequest]:
    return list(open_trace(written(folder, *lines)))


def test_equal_ids_are_equal_tokens_and_others_are_not(tmp_path: Path) -> None:
    one, other = requests_of(
        tmp_path,
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [70, 3, 9]},
        {"timestamp": 1500, "input_length": 1024, "output_length": 5, "hash_ids": [70, 9]},
    )
    assert (len(one.prompt), len(other.prompt)) == (1100, 1024)
    assert one.prompt[:512].tolist() == other.prompt[:512].tolist()
    assert one.prompt[1024:].tolist() == other.prompt[512 : 512 + 76].tolist()
    assert len(set(one.prompt.tolist())) == 1100
    assert (one.timestamp_s, other.timestamp_s) == (0.0, 1.5)
    assert len(one.output) == 0


def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    (request,) = requests_of(
        tmp_path, {"token_ids": [5, 6], "output_token_ids": [7], "timestamp": 250, "tenant": "acme"}
    )
    assert request.prompt.tolist() == [5, 6]
    assert request.output.tolist() == [7]
    assert (request.timestamp_s, request.tenant) == (0.25, "acme")


def test_both_formats_may_stand_in_one_file_and_requests_without_a_time_are_a_second_apart(tmp_path: Path) -> None:
    first, second, third = requests_of(
        tmp_path, {"token_ids": [1]}, {"timestamp": 4000, "input_length": 3, "hash_ids": [1]}, {"token_ids": [1]}
    )
    assert [first.timestamp_s, second.timestamp_s, third.timestamp_s] == [0.0, 4.0, 5.0]
    assert first.tenant == ""


def test_a_trace_knows_how_much_there_is_and_can_be_read_again(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, {"token_ids": [1, 2], "output_token_ids": [3]}, "", {"token_ids": [4]}))
    assert (trace.num_requests, trace.num_tokens) == (2, 4)
    assert [len(request.prompt) for request in trace] == [len(request.prompt) for request in trace] == [2, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ({"prompt": "hello"}, "neither hash_ids nor token_ids is there"),
        ({"hash_ids": [1]}, "input_length: must be an integer from 1, got null"),
        ({"hash_ids": [1], "input_length": 0}, "input_length: must be an integer from 1, got 0"),
        ({"hash_ids": ["a"], "input_length": 4}, 'hash_ids: must be a list of integers, got ["a"]'),
        ({"hash_ids": [1], "input_length": 513}, "hash_ids: 513 tokens are 2 blocks of 512, got 1"),
        ({"token_ids": []}, "token_ids: must not be empty"),
        ({"token_ids": "abc"}, 'token_ids: must be a list of integers, got "abc"'),
        ({"token_ids": [1.5]}, "token_ids: must be integers, got float64"),
        ({"token_ids": [-1]}, "token_ids: must be in 0..2147483647"),
        ({"token_ids": [2**70]}, "token_ids: must be"),
        ({"token_ids": [[1], [2, 3]]}, "token_ids: "),
        ({"token_ids": [1], "output_token_ids": [True]}, "output_token_ids: must be integers, got bool"),
        ({"token_ids": [1], "timestamp": -1}, "timestamp: must be milliseconds from 0, got -1"),
        ({"token_ids": [1], "timestamp": "noon"}, 'timestamp: must be milliseconds from 0, got "noon"'),
        ({"token_ids": [1], "timestamp": 999}, "timestamp: 999 is before the line above"),
        ({"token_ids": [1], "tenant": 7}, "tenant: must be a text, got 7"),
        ({"token_ids": [1], "tenant": "\ud800"}, 'tenant: must be a text, got "\\ud800"'),
        ({"token_ids": [1], "timestamp": 10**400}, "timestamp: must be milliseconds from 0, got 1000"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path: Path, line: dict[str, Any] | str, message: str) -> None:
    path = written(tmp_path, {"token_ids": [1], "timestamp": 1000}, line)
    with pytest.raises(TraceError) as caught:
        open_trace(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert message in str(caught.value)


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no request in it"):
        open_trace(written(tmp_path, ""))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"token_ids": [1]}\n\xff\xfe\n')
    with pytest.raises(TraceError, match="not UTF-8 text"):
        open_trace(path)
