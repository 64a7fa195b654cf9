"""Reads a LoRA adapter from the folder that PEFT saved it to.

What is checked, digested and used are the same bytes, and settings that change while weights are read are noticed:
a folder that is replaced meanwhile is never half the one and half the other. Pickled weights are never opened.
"""

import os
import stat
import struct
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import torch

from worker.lora.errors import AdapterError
from worker.lora.settings import CONFIG_FILE, parse_settings
from worker.lora.tensors import WEIGHTS_FILE, in_format, pair_up, parse_tensors
from worker.lora.weights import AdapterWeights, LowRank, Targets

_MAX_CONFIG_BYTES = 1 << 20
_MAX_HEADER_BYTES = 16 << 20
_LARGEST_NUMBER_BYTES = 4  # float32's


def read_adapter(folder: Path, targets: Targets, dtype: torch.dtype, max_rank: int) -> AdapterWeights:
    """Read a LoRA adapter for a model with these targets, and return it in the number format `dtype`.

    The revision depends on what the adapter computes alone, not on where it lies or how it was saved. Raises
    AdapterError, which names what is missing, damaged, too large or not supported.
    """
    written = _content(folder, CONFIG_FILE, _MAX_CONFIG_BYTES)
    settings = parse_settings(written)
    content = _content(folder, WEIGHTS_FILE, _most_bytes(targets, max_rank))
    if _content(folder, CONFIG_FILE, _MAX_CONFIG_BYTES) != written:
        raise AdapterError(CONFIG_FILE, f"changes in {folder} while the adapter is read")
    modules = pair_up(parse_tensors(content), settings, targets, max_rank)
    in_dtype = {path: in_format(module, path, dtype) for path, module in modules.items()}
    return AdapterWeights(_revision(modules), in_dtype)


def _most_bytes(targets: Targets, max_rank: int) -> int:
    """How long the weights of any adapter that is allowed can be, twice over."""
    features = sum(shape.in_features + shape.out_features for shape in targets.values())
    return 2 * _LARGEST_NUMBER_BYTES * max_rank * features + _MAX_HEADER_BYTES


def _content(folder: Path, name: str, most_bytes: int) -> bytes:
    """Read a file of at most `most_bytes`. A link is followed: caches of models consist of links."""
    try:
        opened = open(folder / name, "rb", opener=_open_without_waiting)  # noqa: SIM115 -- closed below
    except (OSError, ValueError) as error:
        raise AdapterError(name, _why_missing(folder, error)) from error
    with opened as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise AdapterError(name, f"is no regular file in {folder}")
        if status.st_size > most_bytes:
            raise AdapterError(name, f"has {status.st_size} bytes: more than {most_bytes} no allowed one can have")
        try:
            content = file.read(most_bytes + 1)
        except OSError as error:
            raise AdapterError(name, f"can't be read in {folder}: {error.strerror}") from error
    if len(content) > most_bytes:
        raise AdapterError(name, f"grows beyond {most_bytes} bytes while it is read")
    return content


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe that nobody writes to would keep us."""
    return os.open(path, flags | os.O_NONBLOCK)


def _why_missing(folder: Path, error: OSError | ValueError) -> str:
    if not isinstance(error, FileNotFoundError):
        return f"can't be opened in {folder}: {error}"
    if not folder.is_dir():
        return f"can't be read: there is no folder {folder}"
    pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if pickled:
        return f"missing in {folder}; {', '.join(pickled)} is pickled, which can run code: save it as safetensors"
    return f"missing in {folder}: it is no folder that PEFT saved an adapter to"


def _revision(modules: Mapping[str, LowRank]) -> str:
    """Digest of weights and scales, 32 hexadecimal digits. `modules` are in order of their paths."""
    digest = blake2b(digest_size=16, person=b"lora")
    for path, module in modules.items():
        _add(digest, path.encode())
        digest.update(struct.pack("<d", module.scale))
        for part in (module.down, module.up):
            _add(digest, f"{part.dtype} {list(part.shape)}".encode())
            digest.update(part.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _add(digest: blake2b, text: bytes) -> None:
    # Length first: what follows must not be taken for more of it.
    digest.update(struct.pack("<Q", len(text)))
    digest.update(text)
