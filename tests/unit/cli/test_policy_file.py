"""Policies in a file of their own: a bad one ends the start, and says where and why."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.config import config_from, read_tree
from cli.main import main
from cli.show_config import as_toml
from cli.validation import ConfigError
from gateway.policy import TenantPolicy

GOOD = """
[default]
requests_per_minute = 60
models = ["tiny"]
[tenants.acme]
weight = 2.5
max_concurrent_requests = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policies.toml"


def faults_of(file: Path, content: str | None) -> dict[str, str]:
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        config_from(read_tree(None, [f"gateway.policy_file={file}"], {}))
    return {fault.path: fault.message for fault in caught.value.faults}


def test_a_policy_file_holds_for_the_default_and_for_tenants(file: Path) -> None:
    file.write_text(GOOD, encoding="utf-8")
    policies = config_from(read_tree(None, [f"gateway.policy_file={file}"], {})).gateway.policies
    assert policies.default == TenantPolicy(requests_per_minute=60, models=("tiny",))
    assert policies.tenants == {"acme": TenantPolicy(weight=2.5, max_concurrent_requests=4)}


def test_a_configuration_that_is_shown_has_the_policies_in_it_and_can_be_read_back(file: Path, tmp_path: Path) -> None:
    file.write_text(GOOD, encoding="utf-8")
    config = config_from(read_tree(None, [f"gateway.policy_file={file}"], {}))
    shown = tmp_path / "shown.toml"
    shown.write_text(as_toml(config), encoding="utf-8")
    file.unlink()
    assert config_from(read_tree(shown, [], {})) == config


@pytest.mark.parametrize(
    ("content", "field", "told"),
    [
        ("[default]\nrequests_per_minute = 0", "default.requests_per_minute", "greater than or equal to 1"),
        ("[default]\nweight = 1001", "default.weight", "1000"),
        ("[default]\nweight = nan", "default.weight", "NaN"),
        ('[default]\ntokens_per_minute = "many"', "default.tokens_per_minute", "integer"),
        ("[default]\nrequests_per_minute = 1.5", "default.requests_per_minute", "integer"),
        ("[default]\nrequests_per_minute = true", "default.requests_per_minute", "integer"),
        ("[tenants.acme]\npriority = -101", "tenants.acme.priority", "-100"),
        ("[tenants.acme]\nweigth = 1", "tenants.acme.weigth", "did you mean tenants.acme.weight?"),
        ("[tenants.acme]\nmodels = 3", "tenants.acme.models", "array"),
        ("[tenant.acme]\nweight = 1", "tenant", "did you mean tenants?"),
        ("tenants = 3", "tenants", "section"),
        ('[tenants."Acme Inc"]\nweight = 1', "tenants.Acme Inc.[key]", "1 to 64 characters"),
    ],
)
def test_a_fault_in_the_file_is_named_with_file_field_and_limit(
    file: Path, content: str, field: str, told: str
) -> None:
    faults = faults_of(file, content)
    assert list(faults) == [f"{file}: {field}"]
    assert told in faults[f"{file}: {field}"]


def test_all_faults_are_told_at_once_also_those_of_the_rest(file: Path) -> None:
    file.write_text("[default]\nweight = 0\n[tenants.acme]\npriority = 1000\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        config_from(read_tree(None, [f"gateway.policy_file={file}", "gateway.server.drain_s=-1"], {}))
    assert {fault.path for fault in caught.value.faults} == {
        f"{file}: default.weight",
        f"{file}: tenants.acme.priority",
        "gateway.server.drain_s",
    }


def test_a_file_that_is_no_toml_or_not_there_is_named(file: Path) -> None:
    assert "cannot be read" in faults_of(file, None)[str(file)]
    assert "not valid TOML" in faults_of(file, "[default\n")[str(file)]


def test_policies_here_and_there_are_refused(file: Path) -> None:
    file.write_text(GOOD, encoding="utf-8")
    with pytest.raises(ConfigError, match="keep one of them"):
        config_from(read_tree(None, [f"gateway.policy_file={file}", "gateway.policies.default.weight=2"], {}))


def test_a_bad_policy_file_ends_the_start_of_a_gateway(file: Path) -> None:
    file.write_text("[default]\nrequests_per_minute = 0", encoding="utf-8")
    arguments = ["gateway", "--set", f"gateway.policy_file={file}", "--set", "redis.url=redis://127.0.0.1:1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code != 0
    assert f"{file}: default.requests_per_minute" in result.output
    assert "greater than or equal to 1" in result.output
