"""`radixgate tenant` and `radixgate key` against a real gateway: policies, states, expiry, rotation."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.cli.conftest import Command

NewTenant = Callable[[], str]


@pytest.fixture
def tenant(command: Command, new_tenant: NewTenant) -> str:
    name = new_tenant()
    command.json("tenant", "create", name)
    return name


def test_a_tenant_is_created_with_a_policy(command: Command, new_tenant: NewTenant) -> None:
    made = command.json(
        "tenant", "create", new_tenant(), "--weight", "2.5", "--priority", "3", "--max-deadline", "1m30s",
        "--tokens-per-minute", "1000", "--max-queued-requests", "0", "--model", "one", "--model", "two",
    )  # fmt: skip
    policy = made["policy"]
    assert (policy["weight"], policy["priority"], policy["max_deadline_s"]) == (2.5, 3, 90.0)
    assert (policy["tokens_per_minute"], policy["max_queued_requests"]) == (1000, 0)
    assert (policy["models"], policy["adapters"], policy["requests_per_minute"]) == (["one", "two"], [], None)
    assert made["effective_policy"]["tokens_per_minute"] == 1000
    assert made["state"] == "active"


def test_an_update_changes_what_is_given_and_nothing_else(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    before = command.json("tenant", "create", name, "--name", "Acme", "--weight", "2", "--requests-per-minute", "60")
    after = command.json("tenant", "update", name, "--weight", "3", "--adapter", "poet")
    assert after["display_name"] == "Acme"
    assert after["policy"] == before["policy"] | {"weight": 3.0, "adapters": ["poet"]}
    renamed = command.json("tenant", "update", name, "--name", "")
    assert (renamed["display_name"], renamed["policy"]) == ("", after["policy"])


def test_what_is_unset_is_again_as_the_configuration_has_it(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    command.json("tenant", "create", name, "--weight", "2", "--max-deadline", "5s", "--model", "one")
    after = command.json("tenant", "update", name, "--unset", "weight", "--unset", "max-deadline", "--unset", "models")
    assert (after["policy"]["weight"], after["policy"]["max_deadline_s"], after["policy"]["models"]) == (None, None, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to change"),
        (("--weight", "2", "--unset", "weight"), "set and unset at once: weight"),
        (("--max-deadline", "soon"), "'soon' is no duration; write 30s, 15m, 12h or 7d"),
        (("--unset", "colour"), "'colour' is not one of"),
    ],
)
def test_an_update_that_makes_no_sense_is_not_sent(
    command: Command, tenant: str, arguments: tuple[str, ...], message: str
) -> None:
    result = command.run("tenant", "update", tenant, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_bad_policy_is_told_with_field_and_limit(command: Command, new_tenant: NewTenant) -> None:
    result = command.run("tenant", "create", new_tenant(), "--weight", "0", "--tokens-per-minute", "0")
    assert result.exit_code == 1
    assert "policy.weight: " in result.output
    assert "policy.tokens_per_minute: " in result.output


def test_a_suspended_tenant_is_refused_until_it_is_resumed(command: Command, tenant: str) -> None:
    key = command.json("key", "create", tenant)["secret"]
    chat = ("chat", "--key", key, "--max-new-tokens", "1", "Hello!")
    assert command.json("tenant", "suspend", tenant)["state"] == "suspended"
    refused = command.run(*chat)
    assert refused.exit_code == 1
    assert "PERMISSION_DENIED" in refused.output
    assert command.json("tenant", "resume", tenant)["state"] == "active"
    assert command.run(*chat).exit_code == 0


def test_a_deleted_tenant_is_gone_with_its_keys(command: Command, tenant: str) -> None:
    command.json("key", "create", tenant)
    deleted = command.json("tenant", "delete", tenant)
    assert (deleted["tenant_id"], deleted["deleted_api_keys"]) == (tenant, 1)
    assert set(deleted["purged"]) == {"device_tokens", "host_tokens", "namespaces", "unreachable_workers"}
    result = command.run("tenant", "get", tenant)
    assert result.exit_code == 1
    assert "NOT_FOUND" in result.output


def test_people_see_what_is_set_and_what_holds(command: Command, new_tenant: NewTenant) -> None:
    output = command.run("tenant", "create", new_tenant(), "--weight", "2").output
    set_, _, holds = output.partition("\neffective policy:\n")
    assert set_.endswith("\npolicy:\n  weight:         2.0")
    assert "  weight:              2.0\n  priority:            0\n" in holds
    nothing = command.run("tenant", "create", new_tenant()).output
    assert "\npolicy:         nothing set\n" in nothing


def test_a_repeated_creation_prints_the_first_answer(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    create = ("tenant", "create", name, "--request-id", f"make-{name}")
    assert command.json(*create) == command.json(*create)
    rotated = ("key", "create", name, "--request-id", f"key-of-{name}")
    assert command.json(*rotated)["secret"] == command.json(*rotated)["secret"]
    assert len(command.json("key", "list", name)) == 1


def test_a_key_may_expire_and_be_narrow(command: Command, tenant: str) -> None:
    made = command.json(
        "key", "create", tenant, "--expires", "30d", "--model", "tiny", "--adapter", "poet", "--adapter", "tagger"
    )
    expires = datetime.fromisoformat(made["expire_time"])
    assert abs(expires - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=1)
    assert (made["models"], made["adapters"]) == (["tiny"], ["poet", "tagger"])


@pytest.mark.parametrize("moment", ["2031-02-03T04:05:06Z", "2031-02-03T05:05:06+01:00"])
def test_a_time_of_expiry_is_rfc_3339(command: Command, tenant: str, moment: str) -> None:
    made = command.json("key", "create", tenant, "--expires", moment)
    assert made["expire_time"] == "2031-02-03T04:05:06Z"


@pytest.mark.parametrize("moment", ["2031-02-03T04:05:06", "tomorrow", "2031-13-01T00:00:00Z"])
def test_a_time_without_an_offset_is_none(command: Command, tenant: str, moment: str) -> None:
    result = command.run("key", "create", tenant, "--expires", moment)
    assert result.exit_code == 2
    assert "is no time; write 2026-12-31T23:59:59Z" in " ".join(result.output.split())


def test_a_rotated_key_goes_on_for_the_overlap(command: Command, tenant: str) -> None:
    old = command.json("key", "create", tenant, "--adapter", "poet")
    result = command.run("key", "rotate", old["key_id"], "--overlap", "2h", "--json")
    assert result.exit_code == 0, result.output
    new: dict[str, Any] = json.loads(result.stdout)
    assert (new["replaces"], new["adapters"], new["expire_time"]) == (old["key_id"], ["poet"], None)
    until = datetime.fromisoformat(new["replaced"]["expire_time"])
    assert abs(until - datetime.now(UTC) - timedelta(hours=2)) < timedelta(minutes=1)
    for secret in (old["secret"], new["secret"]):
        assert command.run("chat", "--key", secret, "--max-new-tokens", "1", "Hello!").exit_code == 0


def test_people_are_told_until_when_the_old_key_is_valid(command: Command, tenant: str) -> None:
    key_id = command.json("key", "create", tenant)["key_id"]
    result = command.run("key", "rotate", key_id, "--overlap", "0s")
    assert "The API key is shown only this once: keep it.\n" in result.stderr
    assert f"Key {key_id} is valid until 20" in result.stderr
