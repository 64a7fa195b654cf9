import tomllib
from pathlib import Path

import pytest

from cli.config import Config, config_from, read_tree, with_free_ports, with_redis
from cli.show_config import as_toml
from cli.validation import ConfigError
from worker.config import AdapterConfig

TOKEN = "a-token-of-some-length"


def faults_of(*assignments: str, file: Path | None = None) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        config_from(read_tree(file, assignments, {}))
    return {fault.path: fault.message for fault in caught.value.faults}


def test_nothing_set_is_the_defaults() -> None:
    assert config_from(read_tree(None, [], {})) == Config()


def test_a_file_a_variable_and_an_assignment_win_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "radixgate.toml"
    file.write_text(
        '[redis]\nurl = "redis://file:1"\nport = 7\n[gateway]\nadmin_token = "from-the-file-0123"\n', encoding="utf-8"
    )
    environ = {"RADIXGATE_REDIS_URL": "redis://variable:1", "RADIXGATE_ADMIN_TOKEN": TOKEN}
    config = config_from(read_tree(file, ["redis.url=redis://assigned:1"], environ))
    assert config.redis.url == "redis://assigned:1"
    assert config.gateway.admin_token == TOKEN
    assert config.redis.port == 7


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="utf-8")
    config = config_from(read_tree(None, [], {"RADIXGATE_ADMIN_TOKEN_FILE": str(file)}))
    assert config.gateway.admin_token == TOKEN


def test_the_url_of_a_store_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis://:a-password@pages:6379/0\n", encoding="utf-8")
    config = config_from(read_tree(None, [], {"RADIXGATE_STORAGE_URL_FILE": str(file)}))
    assert config.worker.cache.storage.url == "redis://:a-password@pages:6379/0"


def test_the_url_of_the_registry_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis://worker:a-password@redis:6379/0\n", encoding="utf-8")
    config = config_from(read_tree(None, [], {"RADIXGATE_REGISTRY_URL_FILE": str(file)}))
    assert config.worker.registry.url == "redis://worker:a-password@redis:6379/0"


def test_the_redis_of_gateways_is_no_registry_by_itself() -> None:
    assert config_from(read_tree(None, ["redis.url=redis://here:1"], {})).worker.registry.url is None


def test_a_secret_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"RADIXGATE_ADMIN_TOKEN_FILE: .*missing cannot be read: No such file"):
        read_tree(None, [], {"RADIXGATE_ADMIN_TOKEN_FILE": str(tmp_path / "missing")})


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("worker.engine.max_running=8", 8),
        ("worker.engine.check=true", True),
        ("gateway.server.drain_s=2", 2.0),
        ("worker.model.model=/models/some folder", "/models/some folder"),
        ('worker.model.model="123"', "123"),
        ('gateway.workers=["a:1", "b:2"]', ("a:1", "b:2")),
        ("gateway.listen=[::1]:0", "[::1]:0"),
    ],
)
def test_assignments_are_typed_as_in_toml_and_plain_words_are_strings(assignment: str, value: object) -> None:
    config: object = config_from(read_tree(None, [assignment], {}))
    for name in assignment.partition("=")[0].split("."):
        config = getattr(config, name)
    assert config == value
    assert type(config) is type(value)


@pytest.mark.parametrize("assignment", ["worker.engine.max_running", "=3", "worker..x=3"])
def test_an_assignment_that_is_none_is_named(assignment: str) -> None:
    with pytest.raises(ConfigError, match=r"does not read a\.b=value"):
        read_tree(None, [assignment], {})


def test_an_unknown_setting_is_named_with_its_path_and_the_nearest_one() -> None:
    assert faults_of("worker.engine.max_runing=8") == {
        "worker.engine.max_runing": "there is no such setting; did you mean worker.engine.max_running?"
    }


def test_an_unknown_section_lists_what_there_is() -> None:
    message = faults_of("zzz.a=1")["zzz"]
    assert message == "there is no such setting; the top level has gateway, worker, redis, log, tracing"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("worker.engine.max_running=0", "0 is not allowed: must be greater than or equal to 1"),
        ("worker.engine.max_running=true", "true is not allowed: must be a valid integer"),
        ('worker.engine.max_running="8"', '"8" is not allowed: must be a valid integer'),
        (
            "worker.cache.policy=lru2",
            "\"lru2\" is not allowed: must be 'lru', 'lfu', 'fifo', 'mru', 'filo', 'slru', 'priority' or 'lhd'",
        ),
        ("gateway.listen=nowhere", '"nowhere" is not allowed: must read HOST:PORT, with a port from 0 to 65535'),
        ("gateway.extra_key_secret=short", '"***" is not allowed: must be 16 to 64 bytes long'),
        ("redis.url=a", '"a" is not allowed: must read redis://HOST:PORT, rediss://HOST:PORT or unix://PATH'),
        (
            "redis.url=redis://h:x",
            '"redis://h:x" is not allowed: must read redis://HOST:PORT, rediss://HOST:PORT or unix://PATH',
        ),
        ("gateway.redis.url=http://h", "must read redis://HOST:PORT, rediss://HOST:PORT or unix://PATH"),
        ("gateway.admin_token=schlüssel-des-betreibers", "must be one line of printable ASCII"),
        ("gateway.operators.nacht=schlüssel-der-nachtschicht", "must be one line of printable ASCII"),
        ("gateway.operators.night=short", '"***" is not allowed: must have at least 16 characters'),
        ("gateway.server=3", "3 is not allowed: must be a section with settings inside"),
        ("worker.report_interval_s=5", "5 is not allowed: must be less than or equal to 2"),
        ("redis.port=65536", "65536 is not allowed: must be less than or equal to 65535"),
    ],
)
def test_a_wrong_value_is_named_with_path_value_and_limit(assignment: str, message: str) -> None:
    assert faults_of(assignment) == {assignment.partition("=")[0]: message}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("host_slots=-1", "-1 is not allowed: must be greater than or equal to 0"),
        ("host_slots=1.5", "1.5 is not allowed: must be a valid integer"),
        ('host_bytes="8 GiB"', '"8 GiB" is not allowed: must be a valid integer'),
        ("host_ratio=-0.5", "-0.5 is not allowed: must be greater than or equal to 0"),
        ("host_ratio=inf", "Infinity is not allowed: must be a finite number"),
        ("host_ratio=nan", "NaN is not allowed: must be greater than or equal to 0"),
        ("pin=true", "true is not allowed: must be 'auto', 'require' or 'never'"),
        (
            "write_policy=write",
            "\"write\" is not allowed: must be 'write_back', 'write_through' or 'write_through_selective'",
        ),
        ("hit_threshold=0", "0 is not allowed: must be greater than or equal to 1"),
        ("low_watermark=1.5", "1.5 is not allowed: must be less than or equal to 1"),
        ("load_back_threshold=0", "0 is not allowed: must be greater than or equal to 1"),
        ("copy_timeout_s=0", "0 is not allowed: must be greater than 0"),
        ("shares=3", "3 is not allowed: must be a section with settings inside"),
        ("shares.acme=0.5", "0.5 is not allowed: must be a section with settings inside"),
        ("shares.acme.floor=1", "1 is not allowed: must be less than 1"),
        ("shares.acme.floor=-0.1", "-0.1 is not allowed: must be greater than or equal to 0"),
        ("shares.acme.weight=0", "0 is not allowed: must be greater than 0"),
        ("shares.acme.weight=inf", "Infinity is not allowed: must be a finite number"),
        ("storage=3", "3 is not allowed: must be a section with settings inside"),
        ("storage.max_bytes=0", "0 is not allowed: must be greater than or equal to 1"),
        ("storage.ttl_s=-1", "-1 is not allowed: must be greater than 0"),
        ("storage.timeout_s=0", "0 is not allowed: must be greater than 0"),
        ("storage.page_size=0", "0 is not allowed: must be greater than or equal to 1"),
        ("storage.prefetch_timeout_s=0", "0 is not allowed: must be greater than 0"),
        ("storage.max_prefetch_bytes=0", "0 is not allowed: must be greater than or equal to 1"),
    ],
)
def test_a_wrong_value_of_the_tiers_is_named_with_path_value_and_limit(setting: str, message: str) -> None:
    path = f"worker.cache.{setting.partition('=')[0]}"
    assert faults_of(f"worker.cache.{setting}") == {path: message}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["low_watermark=0.5"], "low_watermark (0.5) must be at most high_watermark (0.2)"),
        (["host_slots=24", "page_size=16"], "host_slots (24) must be a multiple of page_size (16)"),
        (
            ["storage.url=memory://", "storage.page_size=24", "page_size=16"],
            "storage.page_size (24) must be a multiple of page_size (16)",
        ),
        (
            ["shares.a.floor=0.6", "shares.b.floor=0.5"],
            "the floors of all shares must be less than 1 together, got 1.1",
        ),
        (['shares={""={weight=2}}'], "shares: a share needs the name of a tenant"),
    ],
)
def test_settings_of_the_tiers_that_do_not_go_together_are_named(settings: list[str], message: str) -> None:
    assert faults_of(*(f"worker.cache.{setting}" for setting in settings)) == {"worker.cache": message}


def test_an_unknown_setting_of_a_tenants_share_is_named_with_the_nearest_one() -> None:
    assert faults_of("worker.cache.shares.acme.flor=0.1") == {
        "worker.cache.shares.acme.flor": "there is no such setting; did you mean worker.cache.shares.acme.floor?"
    }


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hunter2@bucket",
        "redis:/me:hunter2@host",
        "redis://me:hunter/2@host:port",
        "redis://:hunt@er2@host:port",
        "redis://hunter2@host:port",
        "me:hunter2@host",
        "redis://host:port/0?password=hunter2",
    ],
)
def test_a_storage_url_that_is_none_is_named_without_its_credentials(url: str) -> None:
    (message,) = faults_of(f"worker.cache.storage.url={url}").values()
    assert "must read file:///FOLDER, redis://HOST:PORT/NUMBER, rediss://HOST:PORT/NUMBER or memory://" in message
    assert "hunt" not in message
    assert "er2" not in message


def test_a_secret_is_not_repeated_in_an_error() -> None:
    message = faults_of("gateway.admin_token=hunter2")["gateway.admin_token"]
    assert "hunter2" not in message


def test_all_faults_are_told_at_once() -> None:
    assert set(faults_of("worker.engine.max_running=0", "gateway.bogus=1", "redis.port=-1")) == {
        "worker.engine.max_running",
        "gateway.bogus",
        "redis.port",
    }


def test_two_settings_that_do_not_go_together_are_both_named() -> None:
    message = faults_of("worker.engine.max_running=1000")["worker.engine"]
    assert message == "max_step_tokens (512) must be at least max_running (1000)"


def test_native_passes_with_the_attention_of_torch_are_refused_before_a_model_is_read() -> None:
    message = faults_of("worker.model.forward=native", "worker.model.attention=torch")["worker.model"]
    assert message == "forward 'native' attends in native code, not by attention 'torch'"


def test_more_threads_than_any_machine_has_are_refused() -> None:
    assert "1024" in faults_of("worker.model.threads=100000")["worker.model.threads"]


def test_a_value_where_a_section_is_needed_is_named() -> None:
    assert faults_of("worker=3", "worker.engine.max_running=8") == {
        "worker.engine.max_running": "worker is a value and has no settings inside"
    }


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file"):
        read_tree(tmp_path / "missing.toml", [], {})


def test_a_file_that_is_not_toml_is_named_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[worker\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.toml: is not valid TOML: .*line 1"):
        read_tree(file, [], {})


def test_redis_may_be_named_once_for_everybody() -> None:
    assert config_from({"redis": {"url": "redis://h:1"}}).gateway.redis.url == "redis://h:1"
    assert config_from({"gateway": {"redis": {"url": "redis://h:1"}}}).redis.url == "redis://h:1"


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://:pw@h:1/2", "rediss://u:pw@[::1]:6380", "unix:///run/r.sock?db=1"]
)
def test_every_kind_of_redis_url_is_taken(url: str) -> None:
    assert config_from({"redis": {"url": url}}).redis.url == url


def test_two_different_redis_urls_are_refused() -> None:
    assert faults_of("redis.url=redis://a:1", "gateway.redis.url=redis://b:1") == {
        "redis.url": "differs from gateway.redis.url; set one of them"
    }


def test_free_ports_spare_the_addresses_that_are_set() -> None:
    tree = read_tree(None, ["gateway.listen=127.0.0.1:7000"], {})
    with_free_ports(tree)
    config = config_from(tree)
    assert config.gateway.listen == "127.0.0.1:7000"
    assert config.worker.listen == config.worker.metrics_listen == config.gateway.metrics_listen == "127.0.0.1:0"


def test_a_shown_configuration_reads_back_as_itself() -> None:
    config = config_from(read_tree(None, ['worker.model.model=a "quoted" näme', "worker.cache.num_slots=64"], {}))
    assert config_from(tomllib.loads(as_toml(config))) == config


def test_secrets_do_not_show() -> None:
    config = with_redis(config_from({"gateway": {"admin_token": TOKEN, "extra_key_secret": TOKEN}}), "redis://:pw@h:1")
    shown = as_toml(config)
    assert TOKEN not in shown
    assert "pw@" not in shown
    assert 'admin_token = "***"' in shown


def test_tokens_of_operators_do_not_show_whatever_their_names() -> None:
    shown = as_toml(config_from({"gateway": {"operators": {"night": TOKEN, "b c": TOKEN + "2"}}}))
    assert TOKEN not in shown
    assert '[gateway.operators]\nnight = "***"\n"b c" = "***"' in shown
    assert TOKEN not in str(faults_of(f"gateway.operators={TOKEN}"))


def test_a_shown_configuration_has_the_shares_of_tenants_as_sections() -> None:
    shares = {"acme": {"floor": 0.25, "weight": 2}, "b c": {"weight": 3}, 'd."e': {}}
    config = config_from({"worker": {"cache": {"shares": shares}}})
    shown = as_toml(config)
    assert '[worker.cache.shares."b c"]\nfloor = 0.0\nweight = 3.0' in shown
    assert config_from(tomllib.loads(shown)) == config


@pytest.mark.parametrize("url", ["redis://me:hunter2@h:1/0", "redis://h:1/0?password=hunter2", "redis://hunter2@h:1/0"])
def test_credentials_of_a_storage_url_do_not_show(url: str) -> None:
    shown = as_toml(config_from({"worker": {"cache": {"storage": {"url": url}}}}))
    assert "hunter2" not in shown
    assert "h:1/0" in shown


def test_an_adapter_is_a_folder_or_a_section(tmp_path: Path) -> None:
    file = tmp_path / "radixgate.toml"
    file.write_text(
        '[worker.lora.adapters]\npoet = "/poet"\n[worker.lora.adapters.bard]\npath = "/bard"\ntenants = ["acme"]\n'
    )
    config = config_from(read_tree(file, ["worker.lora.adapters.scribe=/scribe"], {}))
    assert config.worker.lora.adapters == {
        "poet": AdapterConfig(path="/poet"),
        "bard": AdapterConfig(path="/bard", tenants=("acme",)),
        "scribe": AdapterConfig(path="/scribe"),
    }
    assert config_from(tomllib.loads(as_toml(config))) == config


def test_a_misspelt_restriction_of_an_adapter_is_not_taken_for_none() -> None:
    faults = faults_of("worker.lora.adapters.poet.path=/poet", 'worker.lora.adapters.poet.tenant=["acme"]')
    assert list(faults) == ["worker.lora.adapters.poet.tenant"]


@pytest.mark.parametrize("value", ["3", "true", "[]"])
def test_an_adapter_that_is_neither_folder_nor_section_is_named(value: str) -> None:
    assert list(faults_of(f"worker.lora.adapters.poet={value}")) == ["worker.lora.adapters.poet"]
