"""Digests that say which model this is, the same on every machine that has the same files."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

_BLOCK_BYTES = 1 << 24
# Whatever can change a token id or a logit.
_PATTERNS = ("*.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def file_digest(path: Path, report: Callable[[float], None]) -> str:
    """SHA-256 of a file's content, in hexadecimal; `report` is told the fraction read."""
    digest = hashlib.sha256()
    size, done = max(1, path.stat().st_size), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            report(min(1.0, done / size))
    report(1.0)
    return digest.hexdigest()


def folder_digest(folder: Path, report: Callable[[float], None]) -> str:
    """Digest of the files of a model folder that decide what the model computes."""
    paths = sorted({path for pattern in _PATTERNS for path in folder.glob(pattern)})
    digest = hashlib.sha256()
    for index, path in enumerate(paths):
        digest.update(f"{path.name}:{file_digest(path, _within(report, index, len(paths)))}\n".encode())
    return digest.hexdigest()


def combine(parts: Iterable[str]) -> str:
    """One digest of several facts, in order; 32 hexadecimal digits."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _within(report: Callable[[float], None], index: int, count: int) -> Callable[[float], None]:
    return lambda done: report((index + done) / count)
