"""What a step must cost at least, by hand for models small enough for that; and the speeds that floors are made of."""

import numpy as np
import pytest
import torch

from benchmarks.attention import Case, batch_of
from benchmarks.breakdown_steps import sampled
from benchmarks.floors import ModelSizes, Speed, StepShape, floor
from benchmarks.machine_speed import product_flop_per_s, stream_bytes_per_s

SMOL = ModelSizes(
    layers=30, hidden=576, intermediate=1536, query_heads=9, kv_heads=3, head_dim=64, vocabulary=49152
)  # fmt: skip
TINY = ModelSizes(layers=2, hidden=4, intermediate=8, query_heads=2, kv_heads=1, head_dim=2, vocabulary=10)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def step_of(case: Case) -> StepShape:
    return StepShape.of(sampled(batch_of(case, np.arange(case.num_slots, dtype=np.int32))))


def test_sizes_are_read_from_a_model_folder() -> None:
    config = {
        "num_hidden_layers": 30, "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152,
    }  # fmt: skip

    assert ModelSizes.of(config) == SMOL
    assert SMOL.linear_weights == 134_479_872  # 106,168,320 in the layers, 28,311,552 in the head
    assert SMOL.numbers_per_slot * 2 == 23_040  # bytes in bf16


def test_a_decode_step_reads_what_is_shared_once() -> None:
    own = step_of(Case("", 0, 0, 4, 100, 1))
    shared = step_of(Case("", 1, 90, 4, 10, 1))

    assert own == StepShape(rows=4, samples=4, slots=400, pairs=400)
    assert shared == StepShape(rows=4, samples=4, slots=90 + 4 * 10, pairs=400)


def test_a_chunk_attends_to_what_lies_before_each_of_its_rows() -> None:
    assert step_of(Case("", 0, 0, 1, 5, 2)) == StepShape(rows=2, samples=1, slots=5, pairs=4 + 5)


def test_the_floor_of_a_tiny_step_by_hand() -> None:
    reads = Speed(bytes_per_s=1000.0, flop_per_s=1e30)
    multiplies = Speed(bytes_per_s=1e30, flop_per_s=1000.0)
    step = StepShape(rows=3, samples=1, slots=7, pairs=5)
    input_weights, other_weights, head = 4 * 8, 4 * 4 + 3 * 4 * 8, 4 * 10
    # Of the last layer, what follows attention is computed for the one row that samples.
    products = 3 * (2 * input_weights + other_weights) + other_weights + head

    read, multiplied = floor(TINY, step, reads, 2), floor(TINY, step, multiplies, 2)

    assert read.linear_ms == pytest.approx(2 * (2 * (input_weights + other_weights) + head))
    assert read.attention_ms == pytest.approx(2 * 7 * 2 * 2 * 2)
    assert multiplied.linear_ms == pytest.approx(2 * products)
    assert multiplied.attention_ms == pytest.approx(4 * 5 * 2 * 2 * 2)
    assert read.whole_ms == read.linear_ms + read.attention_ms


def test_a_step_takes_the_slower_of_reading_and_multiplying() -> None:
    speed = Speed(bytes_per_s=100.0, flop_per_s=10.0)

    assert speed.seconds(num_bytes=100, flop=5) == 1.0
    assert speed.seconds(num_bytes=100, flop=50) == 5.0


def test_speeds_are_measured_and_threads_are_left_as_they_were() -> None:
    assert stream_bytes_per_s(2, num_bytes=1 << 20, repeat=2) > 1e6
    assert product_flop_per_s(torch.float32, repeat=1) > 1e6
    assert torch.get_num_threads() == 1
