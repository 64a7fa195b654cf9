"""`radixgate adapter`, `prefix`, `cache`, `usage` and `audit` against a real gateway over a worker without a model."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_until
from tests.unit.cli.conftest import ADMIN_TOKEN, Command

NewTenant = Callable[[], str]
# Revisions, which a worker without a model takes from the ends of paths.
R1, R2 = "aaaaaaaa1", "bbbbbbbb2"


@pytest.fixture
def tenant(command: Command, new_tenant: NewTenant) -> str:
    name = new_tenant()
    command.json("tenant", "create", name)
    return name


@pytest.fixture
def key(command: Command, tenant: str) -> str:
    secret: str = command.json("key", "create", tenant)["secret"]
    return secret


def chat(command: Command, key: str, *arguments: str) -> dict[str, Any]:
    result = command.run("chat", "--key", key, "--max-new-tokens", "2", "--json", *arguments)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


# ------------------------------------------------------------------------------------------------------------ adapters


@pytest.fixture
def adapter(command: Command, tenant: str) -> Iterator[str]:
    """An adapter of the tenant alone, in its first revision."""
    name = f"poet-of-{tenant}"
    command.json("adapter", "register", name, "/adapters/aaaaaaaa1", "--tenant", tenant)
    wait_until(lambda: placed(command, name, tenant) == {R1}, timeout_s=20, what="adapter loaded")
    yield name
    command.run("adapter", "unregister", name, "--tenant", tenant, "--grace", "1s")


def placed(command: Command, name: str, tenant: str) -> set[str]:
    found = command.json("adapter", "get", name, "--tenant", tenant)
    return {place["revision"] for place in found["placements"] if place["loaded"]}


def test_a_registered_adapter_is_used_shown_and_taken_away(
    command: Command, tenant: str, key: str, adapter: str
) -> None:
    assert chat(command, key, "--adapter", adapter, "Hello!")["text"]
    shown = command.json("adapter", "get", adapter, "--tenant", tenant)
    assert (shown["name"], shown["model"], shown["tenants"]) == (adapter, "tiny", [tenant])
    assert [(each["revision"], each["path"], each["traffic_percent"]) for each in shown["revisions"]] == [
        (R1, "/adapters/aaaaaaaa1", 100)
    ]
    assert shown in command.json("adapter", "list")
    (line,) = [line for line in command.run("adapter", "list").output.splitlines() if line.startswith(adapter)]
    assert line.split("\t") == [adapter, "tiny", tenant, R1, "100 %", "1 of 1", "/adapters/aaaaaaaa1", ""]
    gone = command.json("adapter", "unregister", adapter, "--tenant", tenant, "--grace", "1s")
    assert gone == {"name": adapter, "failed_sequences": 0}
    assert command.run("adapter", "get", adapter, "--tenant", tenant).exit_code == 1


def test_new_weights_get_a_share_then_all_and_are_rolled_back(command: Command, tenant: str, adapter: str) -> None:
    which = ("--tenant", tenant)

    def shares(document: Any) -> dict[str, int]:
        return {each["revision"]: each["traffic_percent"] for each in document["revisions"]}

    command.json("adapter", "register", adapter, "/adapters/bbbbbbbb2", "--traffic", "10", *which)
    assert shares(command.json("adapter", "get", adapter, *which)) == {R1: 90, R2: 10}
    assert shares(command.json("adapter", "traffic", adapter, R2[:8], "100", *which))[R2] == 100
    assert shares(command.json("adapter", "rollback", adapter, *which))[R1] == 100


def test_with_a_worker_named_the_list_is_that_workers(command: Command, fake_worker: Any, adapter: str) -> None:
    listed = command.json("adapter", "list", "--worker", fake_worker.address)
    assert adapter in {each["name"] for each in listed}
    assert {"rank", "resident", "users"} <= set(listed[0])


def test_a_percentage_has_bounds(command: Command) -> None:
    result = command.run("adapter", "traffic", "poet", "abcdef01", "101")
    assert result.exit_code == 2
    assert "101 is not in the range 0<=x<=100" in result.output


# ------------------------------------------------------------------------------------------------------------ prefixes


@pytest.fixture
def prefix_id(command: Command, tenant: str) -> Iterator[str]:
    name = f"prefix-of-{tenant}"
    yield name
    command.run("prefix", "delete", name)


@pytest.mark.parametrize("source", ["--system", "--chat-file", "--chat-file of an object", "--text", "--file"])
def test_a_prefix_may_be_given_in_several_ways(command: Command, prefix_id: str, tmp_path: Path, source: str) -> None:
    text = f"You are {prefix_id}, and you answer in one sentence."
    messages = [{"role": "system", "content": text}]
    content = {
        "--chat-file": json.dumps(messages),
        "--chat-file of an object": json.dumps({"messages": messages}),
        "--file": text,
    }.get(source)
    value = text
    if content is not None:
        file = tmp_path / "prefix"
        file.write_text(content, encoding="utf-8")
        value = str(file)
    made = command.json("prefix", "create", prefix_id, source.split(" ", maxsplit=1)[0], value, "--name", "Manners")
    assert (made["prefix_id"], made["display_name"], made["model"], made["adapter"]) == (
        prefix_id, "Manners", "tiny", "",
    )  # fmt: skip
    assert made["num_tokens"] > 5
    assert made in command.json("prefix", "list")


def test_a_deleted_prefix_is_listed_no_more(command: Command, prefix_id: str) -> None:
    command.json("prefix", "create", prefix_id, "--text", f"The manual of {prefix_id} begins here.")
    assert set(command.json("prefix", "delete", prefix_id)) == {
        "device_tokens", "host_tokens", "namespaces", "unreachable_workers",
    }  # fmt: skip
    assert prefix_id not in {each["prefix_id"] for each in command.json("prefix", "list")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give exactly one of --text, --file, --system and --chat-file"),
        (("--text", "a", "--system", "b"), "give exactly one of --text, --file, --system and --chat-file"),
        (("--chat-file", "-"), "holds no chat"),
    ],
)
def test_what_is_no_prefix_is_not_sent(command: Command, arguments: tuple[str, ...], message: str) -> None:
    result = command.run("prefix", "create", "manners", *arguments, input='[{"rolle": "system"}]')
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


# --------------------------------------------------------------------------------------------------------------- cache


def test_an_invalidated_cache_is_found_no_more(command: Command, tenant: str, key: str) -> None:
    question = "What is the capital of France?"
    chat(command, key, question)
    assert chat(command, key, question)["usage"]["cached"]["device"] > 0
    answer = command.json("cache", "invalidate", tenant)
    assert (answer["tenant_id"], answer["adapter"], answer["purged"]) == (tenant, "", None)
    assert answer["cache_version"] > 0
    assert chat(command, key, question)["usage"]["cached"]["device"] == 0


def test_a_purge_says_what_it_freed(command: Command, tenant: str, key: str) -> None:
    chat(command, key, "What is the capital of France?")
    purged = command.json("cache", "invalidate", tenant, "--purge")["purged"]
    assert set(purged) == {"device_tokens", "host_tokens", "namespaces", "unreachable_workers"}
    assert purged["unreachable_workers"] == []


def test_statistics_name_each_worker_with_its_tenants(command: Command, fake_worker: Any, tenant: str) -> None:
    told = fake_worker.cache
    told.device_slots, told.device_free_slots = 4096, 96
    told.ClearField("tenants")
    told.tenants.add(tenant=tenant, device_tokens=40, namespaces=2)
    told.tenants.add(tenant="", device_tokens=7, namespaces=1)
    (worker,) = command.json("cache", "stats")
    assert (worker["reachable"], worker["device_slots"], worker["device_free_slots"]) == (True, 4096, 96)
    assert {each["tenant_id"]: each["device_tokens"] for each in worker["tenants"]} == {tenant: 40, "": 7}
    (only,) = command.json("cache", "stats", tenant)
    assert [each["tenant_id"] for each in only["tenants"]] == [tenant]
    lines = [line.split("\t") for line in command.run("cache", "stats").output.splitlines()]
    assert [line[2:] for line in lines] == [
        ["(slots in use)", "4000 of 4096", "", ""],
        [tenant, "40", "0", "2"],
        ["(public prefixes)", "7", "0", "1"],
    ]


# ------------------------------------------------------------------------------------------------------ usage and audit


def test_usage_is_told_by_day_and_in_total(command: Command, tenant: str, key: str) -> None:
    assert command.run("usage", tenant).output == "none\n"
    answers = [chat(command, key, "Hello there!") for _ in range(2)]
    prompts = sum(answer["usage"]["prompt_tokens"] for answer in answers)

    def total() -> dict[str, int]:
        counts: dict[str, int] = command.json("usage", tenant)["total"]
        return counts

    wait_until(lambda: total()["requests"] == 2, timeout_s=20, what="usage settled")
    assert (total()["prompt_tokens"], total()["completion_tokens"]) == (prompts, 4)
    *rows, last = [line.split("\t") for line in command.run("usage", tenant).output.splitlines()]
    assert [(row[1], row[3], row[4]) for row in rows] == [("tiny", "2", str(prompts))]
    assert last[:5] == ["total", "", "", "2", str(prompts)]


def test_a_day_is_a_day(command: Command, tenant: str) -> None:
    result = command.run("usage", tenant, "--from", "30.11.2026")
    assert result.exit_code == 2
    assert "is no day; write YYYY-MM-DD" in result.output
    assert command.run("usage", tenant, "--from", "2020-01-01", "--to", "2020-01-31").output == "none\n"


def test_the_audit_log_tells_who_did_what_newest_first(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    command.json("tenant", "create", name)
    command.run("tenant", "create", name)
    second, first = command.json("audit", "list", "--limit", "2")
    assert (first["method"], first["target"], first["operator"], first["code"]) == (
        "CreateTenant", f"tenant {name}", "admin", "OK",
    )  # fmt: skip
    assert (second["method"], second["code"]) == ("CreateTenant", "ALREADY_EXISTS")
    assert first["time"].endswith("Z")


# ---------------------------------------------------------------------------------------------------------- questions


def on_a_terminal(command: Command, answer: str, *arguments: str) -> tuple[int, str]:
    """Run a command on a terminal where somebody types `answer`."""
    leader, follower = pty.openpty()
    environ = {**os.environ, "RADIXGATE_TARGET": command.address, "RADIXGATE_ADMIN_TOKEN": ADMIN_TOKEN}
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", *arguments], stdin=follower, stdout=follower, stderr=follower, env=environ
    )
    os.close(follower)
    os.write(leader, answer.encode())
    output = b""
    while True:
        try:
            output += os.read(leader, 4096)
        except OSError:  # nobody holds the other end any more
            break
    os.close(leader)
    return process.wait(30), output.decode()


def test_deleting_asks_on_a_terminal(command: Command, tenant: str) -> None:
    status, output = on_a_terminal(command, "n\n", "tenant", "delete", tenant)
    assert f"Delete tenant {tenant} with its keys" in output
    assert status == 1
    assert command.run("tenant", "get", tenant).exit_code == 0
    status, output = on_a_terminal(command, "", "tenant", "delete", tenant, "--yes")
    assert status == 0, output
    assert command.run("tenant", "get", tenant).exit_code == 1


def test_a_list_on_a_terminal_is_a_table(command: Command, tenant: str) -> None:
    status, output = on_a_terminal(command, "", "tenant", "list")
    assert status == 0
    assert "tenant id" in output.splitlines()[0]
    assert tenant in output
