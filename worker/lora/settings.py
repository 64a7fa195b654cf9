"""Reads adapter_config.json: how strongly an adapter acts on which module, and whether it is plain LoRA at all.

Settings are allowed by name. One that isn't known may stand there with an empty value only: future versions of PEFT
will have variants that leave no trace in the weights, and such an adapter would compute something else than it does
where it comes from. Knows neither weights nor models.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from worker.lora.errors import AdapterError

CONFIG_FILE = "adapter_config.json"

# Where the adapter comes from and how it was trained. Which modules it changes is read off its weights.
_WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "eva_config",  # how its first weights were found
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",
    }
)
_UNDERSTOOD = frozenset({"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"})
# By value: what else would change the base model's weights, or multiply something else.
_ALLOWED: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "task_type": (None, "CAUSAL_LM"),
    "bias": (None, "none"),
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
}
_UNSUPPORTED: Mapping[str, str] = {
    "alora_invocation_tokens": "activated LoRA, which begins to act within the prompt,",
    "arrow_config": "Arrow routing between adapters",
    "corda_config": "CorDA, which changes the base weights,",
    "ensure_weight_tying": "tying adapters of embedding and head",
    "fan_in_fan_out": "changing layers that aren't linear (transposed weights, Conv1D)",
    "kasa_config": "KaSA, which changes the base weights,",
    "layer_replication": "repeating layers of the base model",
    "loftq_config": "LoftQ, which changes the base weights,",
    "lora_bias": "a bias of the low-rank layers",
    "lora_ga_config": "LoRA-GA, which changes the base weights,",
    "megatron_config": "Megatron's parallel layers",
    "modules_to_save": "replacing whole modules",
    "monteclora_config": "MonteCLoRA",
    "target_parameters": "changing parameters that aren't linear layers (such as fused experts)",
    "trainable_token_indices": "embeddings of single tokens",
    "use_bdlora": "block-diagonal LoRA",
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "velora_config": "VeLoRA",
}
_MAX_SHOWN = 60

# Python's expressions can take for ever: those that repeat a group, repeat often, or choose often.
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]")
_REPETITION = re.compile(r"(?<!\\)[*+{]")
_OPTION = re.compile(r"(?<![\\(*+}])\?|(?<!\\)\|")
_MAX_REPETITIONS = 4
_MAX_OPTIONS = 8
_MAX_PATTERNS = 4096
_PATH_CHARS = 48
_MAX_WAYS = 20_000_000  # to match a path, of all expressions together: seconds for a whole model


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Ranks and strengths by module, as PEFT resolves them."""

    rank: int
    alpha: float
    ranks: Mapping[re.Pattern[str], int]  # by expressions for a module's path; the first that fits counts
    alphas: Mapping[re.Pattern[str], float]
    rank_stabilised: bool

    def rank_of(self, path: str) -> int:
        return _first_fit(self.ranks, path, self.rank)

    def scale_of(self, path: str) -> float:
        """Rank-stabilised LoRA divides by the root of the rank: https://arxiv.org/abs/2312.03732."""
        alpha = _first_fit(self.alphas, path, self.alpha)
        rank = self.rank_of(path)
        return alpha / math.sqrt(rank) if self.rank_stabilised else alpha / rank


def parse_settings(content: bytes) -> AdapterSettings:
    """Raises AdapterError, which names what isn't plain LoRA."""
    settings = _object(content)
    if "peft_type" not in settings:
        raise AdapterError("peft_type", f"missing in {CONFIG_FILE}")
    for name, value in settings.items():
        _refuse_what_is_not_plain(name, value)
    return AdapterSettings(
        rank=_rank("r", settings.get("r", 8)),
        alpha=_number("lora_alpha", settings.get("lora_alpha", 8)),
        ranks={key: _rank("rank_pattern", value) for key, value in _patterns("rank_pattern", settings)},
        alphas={key: _number("alpha_pattern", value) for key, value in _patterns("alpha_pattern", settings)},
        rank_stabilised=_truth("use_rslora", settings.get("use_rslora", False)),
    )


def _object(content: bytes) -> dict[str, Any]:
    try:
        settings = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise AdapterError(CONFIG_FILE, f"is no JSON: {error}") from error
    if not isinstance(settings, dict):
        raise AdapterError(CONFIG_FILE, f"holds no object but {_shown(settings)}")
    return settings


def _refuse_what_is_not_plain(name: str, value: object) -> None:
    if name in _WITHOUT_EFFECT or name in _UNDERSTOOD:
        return
    if name in _ALLOWED:
        # Identity of types as well: 1 is equal to True.
        if not any(type(value) is type(allowed) and value == allowed for allowed in _ALLOWED[name]):
            choices = ", ".join(json.dumps(allowed) for allowed in _ALLOWED[name])
            raise AdapterError(name, f"{_shown(value)} is not supported; it may be {choices}")
        return
    if value is False or value in (None, "", [], {}):
        return
    if name in _UNSUPPORTED:
        raise AdapterError(name, f"{_UNSUPPORTED[name].removesuffix(',')} is not supported (it is {_shown(value)})")
    raise AdapterError(name, f"unknown setting with the value {_shown(value)}: it may change what the adapter computes")


def _patterns(name: str, settings: Mapping[str, Any]) -> list[tuple[re.Pattern[str], Any]]:
    """Each expression, compiled here once, with what it stands for."""
    patterns = settings.get(name) or {}
    if not isinstance(patterns, dict):
        raise AdapterError(name, f"{_shown(patterns)} is no object")
    if len(patterns) > _MAX_PATTERNS:
        raise AdapterError(name, f"has {len(patterns)} entries, more than {_MAX_PATTERNS}")
    compiled = [(_compiled(name, pattern), value) for pattern, value in patterns.items()]
    if sum(_num_ways(pattern) for pattern in patterns) > _MAX_WAYS:
        raise AdapterError(name, f"its {len(patterns)} expressions could take too long to match: they repeat too often")
    return compiled


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    if (
        _REPEATED_GROUP.search(pattern)
        or len(_REPETITION.findall(pattern)) > _MAX_REPETITIONS
        or (_num_groups(pattern) and len(_OPTION.findall(pattern)) > _MAX_OPTIONS)
        or pattern.count("?") > _MAX_OPTIONS
    ):
        raise AdapterError(
            name,
            f"{_shown(pattern)} could take too long to match: expressions may repeat no groups, "
            f"and have {_MAX_REPETITIONS} repetitions and {_MAX_OPTIONS} options",
        )
    try:
        return re.compile(rf"(.*\.)?({pattern})$")
    except (re.error, RecursionError, OverflowError) as error:
        raise AdapterError(name, f"{_shown(pattern)} is no regular expression: {error}") from error


def _num_ways(pattern: str) -> int:
    """In how many ways an expression may match a path, nearly. Options count twice: they are tried behind each dot."""
    options = len(_OPTION.findall(pattern))
    ways = _PATH_CHARS ** len(_REPETITION.findall(pattern))
    return int(ways * (4**options if _num_groups(pattern) or "?" in pattern else options + 1))


def _num_groups(pattern: str) -> int:
    return pattern.count("(")


_Value = TypeVar("_Value", int, float)


def _first_fit(patterns: Mapping[re.Pattern[str], _Value], path: str, otherwise: _Value) -> _Value:
    """As PEFT does."""
    return next((value for pattern, value in patterns.items() if pattern.match(path)), otherwise)


def _rank(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise AdapterError(name, f"{_shown(value)} is no rank: a whole number from 1 on")
    return value


def _number(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number beyond all floats
        number = math.inf
    if not math.isfinite(number):
        raise AdapterError(name, f"{_shown(value)} is no finite number")
    return number


def _truth(name: str, value: object) -> bool:
    if value is not None and not isinstance(value, bool):
        raise AdapterError(name, f"{_shown(value)} is neither true nor false")
    return bool(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
