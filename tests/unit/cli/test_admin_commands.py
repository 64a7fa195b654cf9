import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.serve import make_demo_tenants
from cli.supervisor import Deployment
from tests.unit.cli.conftest import ADMIN_TOKEN, Command

NewTenant = Callable[[], str]


def test_a_tenant_that_was_created_is_shown_and_listed(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    created = command.json("tenant", "create", name, "--name", "Köche & Söhne")
    assert (created["tenant_id"], created["display_name"]) == (name, "Köche & Söhne")
    assert created["create_time"].endswith("Z")
    assert command.json("tenant", "get", name) == created
    assert created in command.json("tenant", "list")


def test_a_key_is_printed_once_and_listed_without_its_secret(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    command.json("tenant", "create", name)
    created = command.json("key", "create", name, "--name", "laptop")
    secret = created.pop("secret")
    assert secret
    assert command.json("key", "list", name) == [created]
    assert secret not in command.run("key", "list", name).output


def test_people_are_told_that_a_key_is_shown_only_once(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    command.json("tenant", "create", name)
    result = command.run("key", "create", name)
    assert re.search(r"^API key: +rg_\S+$", result.stdout, re.MULTILINE)
    assert result.stderr == "The API key is shown only this once: keep it.\n"


def test_a_revoked_key_says_since_when(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    command.json("tenant", "create", name)
    key_id = command.json("key", "create", name)["key_id"]
    assert command.json("key", "revoke", key_id)["revoke_time"] is not None
    (listed,) = command.json("key", "list", name)
    assert listed["revoke_time"] is not None


def test_people_get_one_line_per_field(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    output = command.run("tenant", "create", name).output
    assert f"tenant id:      {name}\n" in output


def test_a_pipe_gets_tab_separated_lines(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    command.json("tenant", "create", name)
    lines = command.run("tenant", "list").output.splitlines()
    assert any(line.split("\t")[0] == name for line in lines)


def test_a_tenant_without_keys_has_none(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    command.json("tenant", "create", name)
    assert command.run("key", "list", name).output == "none\n"
    assert command.json("key", "list", name) == []


def test_a_second_demo_takes_the_tenants_of_the_first_and_gets_new_keys(command: Command) -> None:
    deployment = Deployment(command.address, (), ADMIN_TOKEN, workers=())
    first, second = make_demo_tenants(deployment), make_demo_tenants(deployment)
    assert set(first) == set(second) == {"demo-a", "demo-b"}
    assert len({*first.values(), *second.values()}) == 4
    for key in (first["demo-a"], second["demo-a"]):
        assert command.run("chat", "--key", key, "--max-new-tokens", "1", "Hello!").exit_code == 0


def test_a_second_tenant_of_the_same_name_is_refused(command: Command, new_tenant: NewTenant) -> None:
    name = new_tenant()
    command.json("tenant", "create", name)
    result = command.run("tenant", "create", name)
    assert result.exit_code == 1
    assert "ALREADY_EXISTS" in result.output


def test_a_bad_tenant_name_is_told_with_field_and_limit(command: Command) -> None:
    result = command.run("tenant", "create", "No Spaces Please")
    assert result.exit_code == 1
    assert "INVALID_ARGUMENT" in result.output
    assert result.output.count("tenant_id: ") == 1


def test_a_wrong_admin_token_is_refused(command: Command) -> None:
    result = command.run("tenant", "list", env={"RADIXGATE_ADMIN_TOKEN": "not-the-right-token"})
    assert result.exit_code == 1
    assert "UNAUTHENTICATED" in result.output
    assert "the admin token comes from" in result.output
    assert "key create" not in result.output


@pytest.mark.parametrize("content", ["", "schlüssel", "two\nlines"])
def test_a_token_file_without_a_token_is_named(command: Command, tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content, encoding="utf-8")
    result = command.run("tenant", "list", "--admin-token-file", str(file))
    assert result.exit_code == 2
    assert "is no admin token: one line of printable ASCII is" in " ".join(result.output.split())


def test_the_admin_token_may_come_from_a_file(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{ADMIN_TOKEN}\n", encoding="utf-8")
    nowhere = {"RADIXGATE_ADMIN_TOKEN": ""}
    assert command.run("tenant", "list", "--admin-token-file", str(file), env=nowhere).exit_code == 0


def test_the_admin_token_may_come_from_the_configuration(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "radixgate.toml"
    file.write_text(f'[gateway]\nadmin_token = "{ADMIN_TOKEN}"\n', encoding="utf-8")
    nowhere = {"RADIXGATE_ADMIN_TOKEN": ""}
    assert command.run("tenant", "list", "--config", str(file), env=nowhere).exit_code == 0


def test_the_admin_token_that_serve_left_is_found(command: Command) -> None:
    left = command.home / "radixgate" / "admin-token"
    left.parent.mkdir()
    left.write_text(f"{ADMIN_TOKEN}\n", encoding="utf-8")
    assert command.run("tenant", "list", env={"RADIXGATE_ADMIN_TOKEN": ""}).exit_code == 0


def test_a_token_file_that_is_not_there_is_named(command: Command, tmp_path: Path) -> None:
    result = command.run("tenant", "list", "--admin-token-file", str(tmp_path / "missing"))
    assert result.exit_code == 2
    assert "missing cannot be read: No such file" in result.output
