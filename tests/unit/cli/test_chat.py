import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.chat import Answer, summary
from radixgate.v1 import inference_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.unit.cli.conftest import Command


@pytest.fixture
def key(command: Command, new_tenant: Callable[[], str]) -> str:
    name = new_tenant()
    command.json("tenant", "create", name)
    secret: str = command.json("key", "create", name)["secret"]
    return secret


def test_one_answer_for_a_script(command: Command, key: str) -> None:
    result = command.run("chat", "--key", key, "--max-new-tokens", "4", "--json", "What", "is", "this?")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["text"]
    assert answer["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["cached"] == {"device": 0, "host": 0, "storage": 0}


def test_an_answer_may_be_held_to_a_choice_an_expression_or_a_schema(
    command: Command, key: str, fake_worker: FakeWorker, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["red", "blue"]}', encoding="utf-8")
    for option, sent in (
        (("--choice", "yes", "--choice", "no"), {"choice": {"texts": ["yes", "no"]}}),
        (("--regex", "[ab]"), {"regex": "[ab]"}),
        (("--json-schema", str(schema)), {"json_schema": '{"enum": ["red", "blue"]}'}),
    ):
        result = command.run("chat", "--key", key, "--max-new-tokens", "2", *option, "Well?")
        assert result.exit_code == 0, result.output
        (kind,) = sent
        sampling = fake_worker.submits[-1].sampling
        assert sampling.WhichOneof("constraint") == kind
        assert getattr(sampling, kind) == getattr(inference_pb2.SamplingParams(**sent), kind)


def test_an_answer_is_held_to_one_thing_at_a_time(command: Command, key: str) -> None:
    result = command.run("chat", "--key", key, "--regex", "a", "--choice", "b", "Well?")
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr


def test_text_goes_to_standard_output_and_what_it_cost_to_standard_error(command: Command, key: str) -> None:
    result = command.run("chat", "--key", key, "--max-new-tokens", "3", "Hello!")
    assert "prompt tokens" not in result.stdout
    assert result.stdout.strip()
    assert "0 cached (0%)" in result.stderr
    assert "3 new tokens" in result.stderr


def test_a_message_may_come_from_standard_input(command: Command, key: str) -> None:
    result = command.run("chat", "--key", key, "--max-new-tokens", "2", "--json", "-", input="What is this?")
    direct = command.run("chat", "--key", key, "--max-new-tokens", "2", "--json", "What is this?")
    assert json.loads(result.stdout)["text"] == json.loads(direct.stdout)["text"]
    assert json.loads(direct.stdout)["usage"]["cached"]["device"] > 0


def test_a_conversation_carries_its_messages_on_and_reuses_them(command: Command, key: str) -> None:
    result = command.run("chat", "--key", key, "--max-new-tokens", "2", "--json", input="one\ntwo\n/clear\none\n")
    assert result.exit_code == 0, result.output
    first, second, again = [json.loads(line)["usage"] for line in result.stdout.splitlines()]
    assert second["prompt_tokens"] > first["prompt_tokens"]
    assert second["cached"]["device"] > 0
    assert again["prompt_tokens"] == first["prompt_tokens"]
    assert again["computed_prompt_tokens"] == 1


def test_a_conversation_goes_on_after_an_error(command: Command, key: str) -> None:
    lines = f"{'word ' * 2000}\nshort\n/help\n/exit\nnot asked\n"
    result = command.run("chat", "--key", key, "--max-new-tokens", "2", "--json", input=lines)
    assert result.exit_code == 0
    assert "INVALID_ARGUMENT" in result.stderr
    assert "/clear starts over" in result.stderr
    assert len(result.stdout.splitlines()) == 1


def test_a_wrong_key_is_told_with_a_hint(command: Command) -> None:
    result = command.run("chat", "--key", "not-a-key", "Hello!")
    assert result.exit_code == 1
    assert "UNAUTHENTICATED" in result.output
    assert "radixgate key create" in result.output


def test_a_wrong_field_is_told_once_with_its_limit(command: Command, key: str) -> None:
    result = command.run("chat", "--key", key, "--temperature", "101", "Hello!")
    assert result.exit_code == 1
    assert result.output.startswith("Error: INVALID_ARGUMENT: sampling.temperature: ")
    assert result.output.count("sampling.temperature") == 1


def test_several_wrong_fields_are_told_one_a_line(command: Command, key: str) -> None:
    result = command.run("chat", "--key", key, "--temperature", "101", "--scope", "s" * 300, "Hello!")
    heading, *violations = result.output.splitlines()
    assert heading == "Error: INVALID_ARGUMENT:"
    assert {line.split(":")[0] for line in violations} == {"  sampling.temperature", "  scope"}


@pytest.mark.parametrize("bad", ["schlüssel", "two\nlines", " "])
def test_a_key_that_cannot_be_sent_is_told_as_such(command: Command, bad: str) -> None:
    result = command.run("chat", "--key", bad, "Hello!")
    assert result.exit_code == 2
    assert "'--key': an API key is one line of printable ASCII" in result.output


def test_space_around_a_key_is_forgiven(command: Command, key: str) -> None:
    assert command.run("chat", "--max-new-tokens", "1", "Hello!", env={"RADIXGATE_API_KEY": f"{key}\n"}).exit_code == 0


def test_an_answer_cut_by_length_says_so(command: Command, key: str) -> None:
    result = command.run("chat", "--key", key, "--max-new-tokens", "3", "Hello!")
    assert result.stderr.rstrip().endswith("; cut off by the length limit")


def test_leaving_a_terminal_leaves_a_new_line() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "cli", "chat", "--target", "127.0.0.1:1", "--key", "k"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as chat:
        os.write(ours, b"\x04")
        output, _ = chat.communicate(timeout=30)
    os.close(ours)
    os.close(theirs)
    assert chat.returncode == 0
    assert output.endswith(b"\n")


def test_without_a_key_the_option_is_named(command: Command) -> None:
    result = command.run("chat", "Hello!")
    assert result.exit_code == 2
    assert "--key" in result.output


def test_the_summary_says_what_was_cached_by_tier() -> None:
    usage = {
        "prompt_tokens": 40,
        "completion_tokens": 5,
        "cached": {"device": 20, "host": 10, "storage": 0},
        "computed_prompt_tokens": 10,
    }
    answer = Answer(text="x", finish_reason="stop", usage=usage, first_text_s=0.125, seconds=0.5)
    assert summary(answer) == (
        "40 prompt tokens, 30 cached (75%): 20 device, 10 host; 5 new tokens in 0.50 s; first after 0.12 s"
    )
