"""The configuration of a deployment: one tree of frozen values, read from TOML and `--set`, validated once.

Every section belongs to the part that uses it; this module only puts them together. Precedence, weakest first:
defaults, the file, environment variables, `--set`.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from cli.credentials import is_sendable
from cli.validation import PREDICATES, ConfigError, Fault, validated
from gateway.config import GatewayConfig
from metrics.logs import LogConfig
from tracing.config import TracingConfig
from worker.config import RedisUrl, WorkerConfig, is_redis_url

# What may also come from the environment, where secrets are often kept; with _FILE appended, from a file.
ENVIRONMENT = {
    "RADIXGATE_ADMIN_TOKEN": ("gateway", "admin_token"),
    "RADIXGATE_EXTRA_KEY_SECRET": ("gateway", "extra_key_secret"),
    "RADIXGATE_REDIS_URL": ("redis", "url"),
    "RADIXGATE_REGISTRY_URL": ("worker", "registry", "url"),
    "RADIXGATE_STORAGE_URL": ("worker", "cache", "storage", "url"),
}

# Addresses that a process listens on.
LISTENERS = (
    ("gateway", "listen"),
    ("gateway", "http", "listen"),
    ("gateway", "metrics_listen"),
    ("worker", "listen"),
    ("worker", "metrics_listen"),
)

_ADAPTERS = ("worker", "lora", "adapters")
_POLICY_FILE = ("gateway", "policy_file")
_POLICIES = ("gateway", "policies")

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSection:
    """Which Redis to use. Without a `url`, `radixgate serve` runs one of its own on this machine."""

    url: RedisUrl | None = None
    # Of the embedded server. None: the user's data folder.
    data_dir: str | None = None
    port: Annotated[int, Interval(ge=0, le=65535)] = 0  # of the embedded server; 0 takes a free one


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be set. A process reads the sections that concern it."""

    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    redis: RedisSection = field(default_factory=RedisSection)
    log: LogConfig = field(default_factory=LogConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)


def config_from(tree: Mapping[str, Any]) -> Config:
    """Return the validated configuration; raises ConfigError naming every fault at once."""
    config = _validated(_with_adapter_sections(tree))
    if config.gateway.redis.url is not None and not is_redis_url(config.gateway.redis.url):
        raise ConfigError([Fault("gateway.redis.url", PREDICATES["is_redis_url"])])
    _check_admin_tokens(config.gateway)
    urls = {url for url in (config.redis.url, config.gateway.redis.url) if url is not None}
    if len(urls) > 1:
        raise ConfigError([Fault("redis.url", "differs from gateway.redis.url; set one of them")])
    for url in urls:
        config = with_redis(config, url)
    return config


def _check_admin_tokens(config: GatewayConfig) -> None:
    tokens = {f"gateway.operators.{name}": token for name, token in config.operators.items()}
    if config.admin_token is not None:
        tokens["gateway.admin_token"] = config.admin_token
    unsendable = [path for path, token in tokens.items() if not is_sendable(token)]
    if unsendable:
        raise ConfigError([Fault(path, "must be one line of printable ASCII") for path in unsendable])


def _with_adapter_sections(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `tree` where an adapter of a worker that is no more than a folder is a section with its `path`."""
    if not is_set(tree, _ADAPTERS):
        return tree
    worker = tree["worker"]
    lora, adapters = worker["lora"], worker["lora"]["adapters"]
    if not isinstance(adapters, Mapping):
        return tree
    sections = {name: {"path": value} if isinstance(value, str) else value for name, value in adapters.items()}
    return {**tree, "worker": {**worker, "lora": {**lora, "adapters": sections}}}


def _validated(tree: Mapping[str, Any]) -> Config:
    """Return the configuration, with what the policy file says, if one is named, as its policies."""
    if not is_set(tree, _POLICY_FILE) or not isinstance(file := tree["gateway"]["policy_file"], str):
        return validated(Config, tree)
    if is_set(tree, _POLICIES):
        raise ConfigError([Fault("gateway.policies", "is set, and gateway.policy_file as well; keep one of them")])
    read = _read_file(Path(file).expanduser())
    # Without the file's name: whoever reads the result again finds its content in it.
    whole = {**tree, "gateway": {**tree["gateway"], "policies": read, "policy_file": None}}
    try:
        return validated(Config, whole)
    except ConfigError as error:
        raise ConfigError([_in_file(fault, file) for fault in error.faults]) from error


def _in_file(fault: Fault, file: str) -> Fault:
    """Return the fault as one of the policy file, if it is in there."""
    section = ".".join(_POLICIES)
    if not fault.path.startswith(section):
        return fault
    inside = fault.path.removeprefix(section).removeprefix(".")
    # Suggestions name the path that the setting has in the configuration.
    return Fault(f"{file}: {inside}" if inside else file, fault.message.replace(f"{section}.", ""))


def with_redis(config: Config, url: str) -> Config:
    """Return `config` with everything that needs Redis using `url`."""
    gateway = replace(config.gateway, redis=replace(config.gateway.redis, url=url))
    return replace(config, gateway=gateway, redis=replace(config.redis, url=url))


def read_tree(file: Path | None, assignments: Sequence[str], environ: Mapping[str, str] | None = None) -> Tree:
    """Return what was set, and only that, as a tree."""
    tree = _read_file(file) if file is not None else {}
    for path, value in _from_environment(os.environ if environ is None else environ):
        set_at(tree, path, value)
    for assignment in assignments:
        set_at(tree, *_parse_assignment(assignment))
    return tree


def set_at(tree: Tree, path: Sequence[str], value: object) -> None:
    """Set one value; sections on the way are made."""
    *sections, name = path
    for depth, section in enumerate(sections, start=1):
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            taken = ".".join(path[:depth])
            raise ConfigError([Fault(".".join(path), f"{taken} is a value and has no settings inside")])
        tree = inner
    tree[name] = value


def is_set(tree: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Whether a tree of settings says anything about `path`."""
    at: Any = tree
    for name in path:
        if not isinstance(at, Mapping) or name not in at:
            return False
        at = at[name]
    return True


def with_free_ports(tree: Tree) -> None:
    """Let every listener whose address is not set take a free port on the loopback address."""
    for path in LISTENERS:
        if not is_set(tree, path):
            set_at(tree, path, "127.0.0.1:0")


def _read_file(file: Path) -> Tree:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([Fault(str(file), f"cannot be read: {error.strerror}")]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([Fault(str(file), f"is not valid TOML: {error}")]) from error


def _from_environment(environ: Mapping[str, str]) -> list[tuple[tuple[str, ...], str]]:
    found: list[tuple[tuple[str, ...], str]] = []
    for name, path in ENVIRONMENT.items():
        if value := environ.get(name):
            found.append((path, value))
        elif file := environ.get(f"{name}_FILE"):
            try:
                found.append((path, Path(file).read_text(encoding="utf-8").strip()))
            except OSError as error:
                raise ConfigError([Fault(f"{name}_FILE", f"{file} cannot be read: {error.strerror}")]) from error
    return found


def _parse_assignment(assignment: str) -> tuple[list[str], object]:
    """Split `a.b=value`. The value is read as TOML; what isn't TOML is a string, so that quotes are rarely needed."""
    path, separator, text = assignment.partition("=")
    names = [name.strip() for name in path.split(".")]
    if not separator or not all(names):
        raise ConfigError([Fault(assignment, "does not read a.b=value")])
    try:
        return names, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return names, text
