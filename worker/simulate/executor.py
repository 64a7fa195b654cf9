"""Makes simulated passes: writes the digests of histories to slots, chooses tokens, and takes its time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hicache.tiers.device import DevicePool
from worker.batch import BASE_MODEL, Batch, Int32Array, SampledToken
from worker.config import SimulationConfig
from worker.simulate.adapters import AdapterOrigins
from worker.simulate.history import Digests, steps
from worker.simulate.law import TokenLaw
from worker.simulate.pacing import Pacer


@dataclass(frozen=True, slots=True)
class PassTimes:
    """What passes take, in seconds."""

    step_s: float
    token_s: float
    pair_s: float  # for each query and key that it attends to

    @classmethod
    def of(cls, config: SimulationConfig) -> "PassTimes":
        speed = config.speed
        return cls(config.step_s / speed, config.token_s / speed, config.pair_s / speed)

    def duration_s(self, batch: Batch) -> float:
        return self.step_s + batch.num_tokens * self.token_s + _num_pairs(batch) * self.pair_s


class SimulatedExecutor:
    """Implements the engine's Executor port over a pool whose slots hold digests: K the lower half, V the upper."""

    def __init__(
        self, pool: DevicePool, law: TokenLaw, times: PassTimes, origins: AdapterOrigins, pacer: Pacer | None = None
    ) -> None:
        self._lower = _numbers(pool.key(0).numpy())
        self._upper = _numbers(pool.value(0).numpy())
        self._law = law
        self._times = times
        self._origins = origins
        self._pacer = pacer or Pacer()

    def run(self, batch: Batch) -> list[SampledToken]:
        began_at = self._pacer.clock()
        for gate in batch.gates:
            gate.wait(0)
        histories = self._write(batch)
        choose = self._law.choose
        tokens = [choose(row, int(histories[row.row])) for row in batch.samples]
        self._pacer.fill(began_at, self._times.duration_s(batch))
        return tokens

    def _write(self, batch: Batch) -> Digests:
        """Write what every token's slot holds from now on, and return it: uint64[tokens]."""
        firsts, lengths = batch.qo_indptr[:-1], np.diff(batch.qo_indptr)
        sums = np.cumsum(steps(batch.token_ids, batch.positions), dtype=np.uint64)
        earlier = np.where(firsts > 0, sums[firsts - 1], np.uint64(0))  # sums over the sequences before
        histories: Digests = sums + np.repeat(self._before(batch, lengths) - earlier, lengths)
        self._lower[batch.out_slots] = histories.astype(np.uint32)
        self._upper[batch.out_slots] = (histories >> np.uint64(32)).astype(np.uint32)
        return histories

    def _before(self, batch: Batch, lengths: Int32Array) -> Digests:
        """Return the digests of what comes before the chunks: uint64[sequences]."""
        num_cached = np.diff(batch.kv_indptr) - lengths
        # Where nothing comes before, any slot will do: it is not looked at.
        slots = batch.kv_indices[np.maximum(batch.kv_indptr[:-1] + num_cached - 1, 0)]
        held: Digests = self._upper[slots].astype(np.uint64) << np.uint64(32) | self._lower[slots]
        return np.where(num_cached > 0, held, self._beginnings(batch))

    def _beginnings(self, batch: Batch) -> Digests:
        """Return where histories begin: uint64[sequences]. Weights change KV from its first token on."""
        if batch.adapters is None:
            return np.zeros(batch.num_sequences, dtype=np.uint64)
        places = batch.adapters.tolist()
        return np.array([0 if place == BASE_MODEL else self._origins.at(place) for place in places], dtype=np.uint64)


def _numbers(plane: NDArray[np.int32]) -> NDArray[np.uint32]:
    return plane.reshape(-1).view(np.uint32)


def _num_pairs(batch: Batch) -> int:
    """Return how many keys all queries see together: each sees those before it, and itself."""
    return int(batch.positions.sum(dtype=np.int64)) + batch.num_tokens
