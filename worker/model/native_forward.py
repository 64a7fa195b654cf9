"""Forward passes in native code: one call for all layers of a step."""

import ctypes

import numpy as np
import torch
from torch import Tensor

from hicache.tiers.device import DevicePool
from worker.attention.native_backend import native_plan
from worker.batch import Batch
from worker.lora.weights import AdapterBank
from worker.model.layer_gate import AllGates
from worker.model.native_bank import NativeBank
from worker.model.plain_decoder import PlainDecoder
from worker.native import structures
from worker.native.library import int32


class NativeModel:
    """A plain decoder that computes in native code. One forward pass at a time, over whichever pool."""

    def __init__(self, decoder: PlainDecoder) -> None:
        self.decoder = decoder
        self._adapters = NativeBank(decoder)

    def over(self, pool: DevicePool) -> "NativeForward":
        return NativeForward(self.decoder, self._adapters, pool)

    def bank(self) -> AdapterBank:
        return self._adapters


class NativeForward:
    def __init__(self, decoder: PlainDecoder, adapters: NativeBank, pool: DevicePool) -> None:
        self._decoder = decoder
        self._adapters = adapters
        self._pool = pool  # its memory is what the pointers mean
        layers = range(len(pool.layers))
        pointers = ctypes.c_void_p * len(pool.layers)
        self._keys = pointers(*(pool.key(layer).data_ptr() for layer in layers))
        self._values = pointers(*(pool.value(layer).data_ptr() for layer in layers))

    def logits(self, batch: Batch) -> Tensor:
        native = self._decoder.native
        gate = AllGates(batch.gates)
        for layer in range(len(self._pool.layers)):  # one call computes them all
            gate.wait(layer)
        token_ids, out_slots = int32(batch.token_ids), int32(batch.out_slots)
        adapters = self._adapters.of_step(batch)
        samples = np.array([row.row for row in batch.samples], dtype=np.int32)
        logits = torch.empty(len(samples), self._decoder.vocab_size, dtype=torch.float32)
        step = structures.DecoderStep(
            token_ids.ctypes.data,
            out_slots.ctypes.data,
            ctypes.addressof(self._keys),
            ctypes.addressof(self._values),
            len(samples),
            samples.ctypes.data,
            logits.data_ptr(),
            None if adapters is None else adapters.rows.ctypes.data,
            None if adapters is None else adapters.addresses.ctypes.data,
        )
        native.run_decoder(self._decoder.decoder, native_plan(native, batch), step, torch.get_num_threads())
        return logits
