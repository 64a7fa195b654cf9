"""Chooses how a model's forward passes run: in native code where that computes the same, else as transformers does."""

import structlog
import torch
from transformers import PreTrainedModel

from hicache.tiers.device import DevicePool, LayerShape
from worker.attention.backend import AttentionBackend
from worker.attention.native_backend import why_unsuited
from worker.attention.registry import AUTO, available_backends, backend_by_name
from worker.config import ModelConfig
from worker.errors import UnsupportedModelError
from worker.lora.targets import linear_targets
from worker.lora.torch_bank import TorchAdapterBank
from worker.model import families
from worker.model.executor import ForwardModel, ModelExecutor
from worker.model.linears import pack_linears, steady_rows
from worker.model.native_forward import NativeModel
from worker.model.plain_decoder import NotPlainError, plain_decoder
from worker.model.probe import ProbedLayer
from worker.model.self_check import num_check_tokens, self_check
from worker.model.transformers_forward import TransformersModel
from worker.native.library import NativeError, kernels, why_no_kernels

_log = structlog.get_logger(__name__)


def layer_shapes(probed: tuple[ProbedLayer, ...]) -> tuple[LayerShape, ...]:
    """What a pool must know of the layers."""
    return tuple(LayerShape(p.shape.kv_heads, p.shape.key_dim, p.shape.value_dim) for p in probed)


def forward_model(model: PreTrainedModel, probed: tuple[ProbedLayer, ...], config: ModelConfig) -> ForwardModel:
    """Return what computes `model`, which may be changed by that and is to be used for nothing else.

    Raises UnsupportedModelError if it cannot be computed as `config` demands, or not correctly.
    """
    if config.forward != "transformers" and config.attention in {AUTO, "native"}:
        try:
            return _native(model, probed)
        except (NotPlainError, UnsupportedModelError, NativeError) as error:
            if config.forward == "native":
                raise UnsupportedModelError(f"worker.model.forward: native code cannot run it: {error}") from error
            _log.info("forward passes don't run in native code", reason=str(error))
    return _transformers(model, probed, config)


def _native(model: PreTrainedModel, probed: tuple[ProbedLayer, ...]) -> NativeModel:
    native = kernels()
    if model.device.type != "cpu" or native is None:
        raise NotPlainError(why_no_kernels() or f"native code runs on the CPU, not on {model.device.type}")
    definition = NativeModel(plain_decoder(model, probed, native, torch.get_num_threads()))
    _check(model, probed, definition)
    _log.info("forward passes run in native code", kernels=native.variant.name)
    return definition


def _transformers(model: PreTrainedModel, probed: tuple[ProbedLayer, ...], config: ModelConfig) -> TransformersModel:
    tested = model.config.model_type in families.TESTED
    targets = linear_targets(model)
    if tested:
        pack_linears(model)
    backend = _backend(model, probed, config)
    adapters = TorchAdapterBank(model, targets, model.dtype, model.device)
    definition = TransformersModel(model, probed, backend, steady_rows(model), adapters)
    if not tested:
        _check(model, probed, definition)
    return definition


def _backend(model: PreTrainedModel, probed: tuple[ProbedLayer, ...], config: ModelConfig) -> AttentionBackend:
    """The one that is configured; for `auto` the best of those that can compute these layers."""
    available = available_backends(model.device)
    name = available[0] if config.attention == AUTO else config.attention
    native = kernels()
    if name == "native" and native is not None:
        reason = why_unsuited(native, model.dtype, [layer.shape for layer in probed])
        if reason is not None and config.attention != AUTO:
            raise UnsupportedModelError(f"worker.model.attention: {reason}")
        if reason is not None:
            name = available[1]
            _log.info("attention runs in torch", backend=name, reason=reason)
    _log.info("forward passes run as transformers defines them", attention=name)
    return backend_by_name(name, model.device)


def _check(model: PreTrainedModel, probed: tuple[ProbedLayer, ...], computed: ForwardModel) -> None:
    num_tokens = num_check_tokens([layer.shape.window for layer in probed if layer.shape.window is not None])
    pool = DevicePool(layer_shapes(probed), 2 * num_tokens, model.dtype, model.device)
    self_check(model, ModelExecutor(computed, pool), num_tokens)
