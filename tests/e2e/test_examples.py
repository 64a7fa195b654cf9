"""The examples, run as their readers run them, against a real stack."""

import re
import subprocess
import sys

import pytest

from tests.e2e.stack import Stack
from tests.tools import REPOSITORY, require_path, require_tool

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

EXAMPLES = REPOSITORY / "examples"
SUMMARY = re.compile(r"^\[(\d+) prompt tokens, (\d+) of them cached", re.MULTILINE)


def python(name: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / "python" / name), "--max-new-tokens", "8"]


def node() -> list[str]:
    program = require_tool("node", "apt-get install nodejs npm, then make install")
    require_path(EXAMPLES / "node" / "node_modules" / "@grpc" / "grpc-js", "npm ci in examples/node, or make install")
    return [program, str(EXAMPLES / "node" / "chat.mjs"), "--max-new-tokens", "8"]


def shell() -> list[str]:
    require_tool("curl", "apt-get install curl")
    require_tool("jq", "apt-get install jq")
    return [require_tool("bash", "apt-get install bash"), str(EXAMPLES / "curl" / "chat.sh")]


def command_of(example: str) -> list[str]:
    if example == "node":
        return node()
    return shell() if example == "curl" else python(example)


NAMES = ["chat.py", "chat_async.py", "openai_chat.py", "node", "curl"]


def run(example: str, stack: Stack, key: str, message: str) -> subprocess.CompletedProcess[str]:
    environ = {
        "RADIXGATE_TARGET": stack.grpc,
        "RADIXGATE_URL": f"http://{stack.http}/v1",
        "RADIXGATE_API_KEY": key,
        "MAX_NEW_TOKENS": "8",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    return subprocess.run(
        [*command_of(example), message], capture_output=True, text=True, timeout=120, check=False, env=environ
    )


@pytest.mark.parametrize("example", NAMES)
def test_an_example_prints_an_answer_and_what_of_its_prompt_was_cached(stack: Stack, example: str) -> None:
    question = f"Say in one word what {example} is."
    outputs = []
    for _ in range(2):
        done = run(example, stack, stack.keys["demo-a"], question)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    first, second = (SUMMARY.search(output) for output in outputs)
    assert first is not None, outputs
    assert second is not None, outputs
    assert first[1] == second[1]
    assert int(second[2]) == int(second[1]) - 1 > int(first[2])
    texts = [output[: match.start()].strip() for output, match in zip(outputs, (first, second), strict=True)]
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize("example", NAMES)
def test_an_example_says_what_went_wrong(stack: Stack, example: str) -> None:
    done = run(example, stack, "rg_0123456789abcdef_wrong", "Hello!")
    assert done.returncode not in {0, 2}
    assert "Traceback" not in done.stderr
    assert re.search("UNAUTHENTICATED|401|API key|credential", done.stderr), done.stderr


def test_all_say_the_same(stack: Stack) -> None:
    question = "What is a lighthouse for?"
    answers = set()
    for example in ("chat.py", "openai_chat.py", "node", "curl"):
        output = run(example, stack, stack.keys["demo-b"], question).stdout
        match = SUMMARY.search(output)
        assert match is not None, output
        answers.add(output[: match.start()].strip())
    assert len(answers) == 1


def test_isolation_holds_on_the_stack(stack: Stack) -> None:
    command = [
        sys.executable, "-m", "cli", "isolation-check", "--target", stack.grpc, "--http", f"http://{stack.http}",
        "--key", stack.keys["demo-a"], "--other-key", stack.keys["demo-b"],
        "--rounds", "1", "--pairs", "20", "--prompt-tokens", "192",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    findings = [line.split("\t")[:3] for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr
    for over in ("gRPC", "HTTP"):
        for check in ("tenant", "scope", "adapter", "claims"):
            assert ["passed", check, over] in findings
    assert ["passed", "timing", "gRPC"] in findings
