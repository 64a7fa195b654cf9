"""A model that is not there, as a worker serves it: no files, no weights, a pool of a few bytes for each token."""

from collections.abc import Callable
from typing import Final

import structlog
import torch

from hicache.tiers.device import DevicePool, LayerShape
from worker.config import CacheConfig, EngineConfig, SimulationConfig
from worker.lora.model_adapters import LoadObserver, MeasuredBank, ModelAdapters, RefusedAdapters
from worker.model.info import ModelInfo
from worker.model.memory import slots_in
from worker.model.revision import combine
from worker.model.text import TokenizerTextStreams
from worker.simulate.adapters import AdapterOrigins, SimulatedAdapters
from worker.simulate.executor import PassTimes, SimulatedExecutor
from worker.simulate.law import TokenLaw
from worker.simulate.tokenizer import (
    CHAT_TEMPLATE,
    END_ID,
    NUM_TOKENS,
    READABLE,
    SPECIAL_TOKENS,
    byte_tokenizer,
    letters,
)

_log = structlog.get_logger(__name__)

DEVICE: Final = "simulated"
"""What metrics say that it computes on."""

DEFAULT_SLOTS: Final = 1 << 20

# Raise it when the same tokens give other digests or other answers than before.
_VERSION: Final = "radixgate simulation 1"
_BYTES_PER_TOKEN: Final = 8  # a digest of 64 bits, half of it as K and half as V


class SimulatedModel:
    """Fits `worker.app.ServedModel`."""

    def __init__(self, config: SimulationConfig) -> None:
        tokenizer = byte_tokenizer()
        self._config = config
        self._origins = AdapterOrigins()
        self._law = TokenLaw(letters(tokenizer), END_ID, config.end_probability, READABLE)
        self.text: Final = TokenizerTextStreams(tokenizer)
        self.info: Final = ModelInfo(
            name=config.model_name,
            context_length=config.context_length,
            vocab_size=config.vocab_size,
            eos_token_ids=(END_ID,),
            tokenizer_json=tokenizer.to_str().encode(),
            chat_template=CHAT_TEMPLATE,
            special_tokens=SPECIAL_TOKENS,
            revision=combine([_VERSION, config.model_name, str(config.end_probability)]),
            sampled_vocab_size=NUM_TOKENS,
        )
        _log.warning(
            "this worker simulates: times are modelled, tokens and texts mean nothing",
            model=config.model_name, speed=config.speed, step_s=config.step_s, token_s=config.token_s,
            pair_s=config.pair_s,
        )  # fmt: skip

    def num_slots(self, cache: CacheConfig) -> int:
        """Return how many slots the pool is to have: as configured, else about a million."""
        if cache.num_slots is not None:
            return cache.num_slots
        pool_bytes = cache.memory_bytes or DEFAULT_SLOTS * _BYTES_PER_TOKEN
        return slots_in(pool_bytes, _BYTES_PER_TOKEN, cache.page_size)

    def pool(self, num_slots: int) -> DevicePool:
        """Allocate a pool of `num_slots` slots."""
        return DevicePool([LayerShape(1, 1, 1)], num_slots, torch.int32, "cpu")

    def executor(self, pool: DevicePool) -> SimulatedExecutor:
        """Return what makes passes over a pool."""
        return SimulatedExecutor(pool, self._law, PassTimes.of(self._config), self._origins)

    def adapters(self, config: EngineConfig, on_done: Callable[[], None], observer: LoadObserver) -> ModelAdapters:
        """Return what reads adapters and gives them places."""
        if config.max_resident_adapters == 0:
            return RefusedAdapters("there is no place for any: worker.engine.max_resident_adapters is 0")
        return SimulatedAdapters(
            MeasuredBank(self._origins, observer),
            max_rank=config.max_adapter_rank, num_places=config.max_resident_adapters, on_done=on_done,
        )  # fmt: skip
