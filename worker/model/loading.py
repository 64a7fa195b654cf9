"""Loads a model: finds its files, reads its weights, probes and checks it, and says what a worker can do with it."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from hicache.tiers.device import DevicePool, LayerShape, bytes_per_token
from worker.attention.registry import backend_by_name
from worker.config import CacheConfig, EngineConfig, ModelConfig
from worker.errors import UnsupportedModelError, WorkerStartError
from worker.lora.model_adapters import FolderAdapters, LoadObserver, MeasuredBank, ModelAdapters, RefusedAdapters
from worker.lora.targets import linear_targets
from worker.lora.weights import Targets
from worker.model import hardware
from worker.model.bars import reporting_bars
from worker.model.choosing import forward_model, layer_shapes
from worker.model.executor import ForwardModel, ModelExecutor
from worker.model.forward import IMPLEMENTATION, register
from worker.model.gguf import converted
from worker.model.info import ModelInfo
from worker.model.memory import device_slots
from worker.model.probe import probe, text_config
from worker.model.progress import ProgressReporter
from worker.model.refusal import read_config, refuse_unsuited
from worker.model.revision import combine, folder_digest
from worker.model.rotary import pin_rotary
from worker.model.sources import HuggingFaceFolder, cache_folder, find_model
from worker.model.text import TokenizerTextStreams
from worker.model.tokenizer_files import read_tokenizer

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_READ_ERRORS = (ValueError, KeyError, ImportError, NotImplementedError, TypeError)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, its weights in memory and no pool yet."""

    info: ModelInfo
    text: TokenizerTextStreams
    folder: HuggingFaceFolder  # where its weights were read from
    layers: tuple[LayerShape, ...]
    dtype: torch.dtype
    device: torch.device
    targets: Targets  # which layers adapters may change, if `model` has a bank for them
    model: ForwardModel

    @property
    def bytes_per_token(self) -> int:
        return bytes_per_token(self.layers, self.dtype)

    def num_slots(self, cache: CacheConfig) -> int:
        """Return how many slots the pool is to have: as configured, or as many as fit its memory.

        Raises PoolTooSmallError if not even a page fits.
        """
        return device_slots(cache, self.bytes_per_token, lambda: hardware.available_memory_bytes(self.device))

    def pool(self, num_slots: int) -> DevicePool:
        """Allocate a pool of `num_slots` slots."""
        return DevicePool(self.layers, num_slots, self.dtype, self.device)

    def executor(self, pool: DevicePool) -> ModelExecutor:
        """Return what computes on a pool."""
        return ModelExecutor(self.model, pool)

    def adapters(self, config: EngineConfig, on_done: Callable[[], None], observer: LoadObserver) -> ModelAdapters:
        """Return what reads adapters for this model and brings them to where its passes compute with them."""
        bank = self.model.bank()
        if bank is None:
            return RefusedAdapters(f"the forward passes of {self.info.name} can't compute with any")
        if config.max_resident_adapters == 0:
            return RefusedAdapters("there is no place for any: worker.engine.max_resident_adapters is 0")
        return FolderAdapters(
            MeasuredBank(bank, observer), self.targets, self.dtype,
            max_rank=config.max_adapter_rank, num_places=config.max_resident_adapters, on_done=on_done,
        )  # fmt: skip


def load_model(config: ModelConfig, progress: ProgressReporter) -> LoadedModel:
    """Load what `config` names, converting a GGUF file first if need be. Nothing is fetched from anywhere.

    Raises WorkerStartError: ModelSourceError if files are missing, UnsupportedModelError if the model cannot be served
    here, itself for a device or an attention backend that there is not.
    """
    torch.set_num_threads(config.threads or hardware.usable_cores())
    device = _device(config.device)
    dtype = _dtype(config.dtype, device)
    _demand_backend(config.attention, device)  # before anything is read
    source = find_model(config.model)
    folder = source if isinstance(source, HuggingFaceFolder) else converted(source, cache_folder(), progress)
    refuse_unsuited(read_config(folder.path))  # before weights are read
    model = _read(folder, dtype, device, progress)
    return prepare(model, folder, config, progress)


def prepare(
    model: PreTrainedModel, folder: HuggingFaceFolder, config: ModelConfig, progress: ProgressReporter
) -> LoadedModel:
    """Probe and check a model whose weights are in memory."""
    stage = f"Checking {folder.name}"
    progress.report(stage, 0.0)
    context_length = _context_length(model)
    pinned = pin_rotary(model, context_length)
    probed = probe(model)
    files = read_tokenizer(folder.path)
    content = folder.digest or folder_digest(folder.path, lambda done: progress.report(stage, done))
    info = ModelInfo(
        name=folder.name,
        context_length=context_length,
        vocab_size=int(text_config(model).vocab_size),
        eos_token_ids=_eos_token_ids(model),
        tokenizer_json=files.tokenizer_json,
        chat_template=files.chat_template,
        special_tokens=files.special_tokens,
        # KV depends on the number format as well, and on the length that rotary embeddings are fixed for.
        revision=combine([content, str(model.dtype), str(context_length) if pinned else ""]),
    )
    loaded = LoadedModel(
        info=info,
        text=TokenizerTextStreams(Tokenizer.from_str(files.tokenizer_json.decode())),
        folder=folder,
        layers=layer_shapes(probed),
        dtype=model.dtype,
        device=model.device,
        targets=linear_targets(model),  # before their weights are packed
        model=forward_model(model, probed, config),
    )
    progress.report(stage, 1.0)
    return loaded


def _read(
    folder: HuggingFaceFolder, dtype: torch.dtype, device: torch.device, progress: ProgressReporter
) -> PreTrainedModel:
    register()
    stage = f"Loading {folder.name}"
    progress.report(stage, 0.0)
    with reporting_bars(lambda done: progress.report(stage, done)):
        try:
            model = AutoModelForCausalLM.from_pretrained(
                str(folder.path),
                dtype=dtype,
                attn_implementation=IMPLEMENTATION,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
            )
        except _READ_ERRORS as error:
            raise UnsupportedModelError(
                f"{folder.name}: transformers cannot build it with attention over slots: {error!r}"
            ) from error
    progress.report(stage, 1.0)
    nn.Module.to(model, device)
    model.requires_grad_(False)
    return model


def _demand_backend(name: str, device: torch.device) -> None:
    """Raise WorkerStartError if this machine cannot have the attention backend called `name`."""
    try:
        backend_by_name(name, device)
    except ValueError as error:
        raise WorkerStartError(f"worker.model.attention: {error}") from error


def _device(name: str) -> torch.device:
    """Return the device called `name`. Raises WorkerStartError if this machine has none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise WorkerStartError(f"worker.model.device: {name!r} is none of auto, cpu, cuda and cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else "no CUDA device"
        raise WorkerStartError(f"worker.model.device: {name!r} is not there; torch finds {found}")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "bf16" if hardware.has_native_bf16(device) else "fp32"
    return _DTYPES[name]


def _context_length(model: PreTrainedModel) -> int:
    length = getattr(text_config(model), "max_position_embeddings", None)
    if not length:
        raise UnsupportedModelError(f"{model.config.model_type}: its configuration states no context length")
    return int(length)


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    configured = getattr(model.generation_config, "eos_token_id", None)
    if configured is None:
        configured = text_config(model).eos_token_id
    if configured is None:
        return ()
    return tuple(configured) if isinstance(configured, list) else (int(configured),)
