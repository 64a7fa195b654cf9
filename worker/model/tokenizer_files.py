"""What a model folder says about text: tokenizer, chat template, named special tokens."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    tokenizer_json: bytes
    chat_template: str  # "" if there is none
    special_tokens: Mapping[str, str]  # bos_token, eos_token, ... as far as they are named


_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path) -> TokenizerFiles:
    config = _read_json(folder / "tokenizer_config.json")
    named = _read_json(folder / "special_tokens_map.json") | config
    found = {name: _text(named.get(name)) for name in _NAMED}
    return TokenizerFiles(
        (folder / "tokenizer.json").read_bytes(),
        _chat_template(folder, config),
        {name: token for name, token in found.items() if token is not None},
    )


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several under names
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else ""


def _text(token: Any) -> str | None:
    """A token is stored as its text or as an object that holds it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
