import subprocess
import sys

import pytest
import torch

from hicache.tiers.device import DevicePool, LayerShape, bytes_per_token

SHAPES = [LayerShape(kv_heads=2, key_dim=8, value_dim=8), LayerShape(kv_heads=1, key_dim=4, value_dim=16)]


def test_each_layer_has_keys_and_values_of_its_own_shape() -> None:
    pool = DevicePool(SHAPES, 5, torch.float32, "cpu")
    assert [tuple(pool.key(layer).shape) for layer in range(2)] == [(5, 2, 8), (5, 1, 4)]
    assert [tuple(pool.value(layer).shape) for layer in range(2)] == [(5, 2, 8), (5, 1, 16)]


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_per_token_is_what_the_tensors_take(dtype: torch.dtype, width: int) -> None:
    pool = DevicePool(SHAPES, 5, dtype, "cpu")
    tensors = [pool.key(0), pool.key(1), pool.value(0), pool.value(1)]
    assert sum(tensor.numel() for tensor in tensors) * width == 5 * pool.bytes_per_token
    assert bytes_per_token(SHAPES, dtype) == pool.bytes_per_token


def test_a_pool_made_under_inference_mode_can_be_written_outside_it() -> None:
    with torch.inference_mode():
        pool = DevicePool(SHAPES, 3, torch.float32, "cpu")
    pool.key(0)[1] = 7.0
    assert not pool.key(0).is_inference()
    assert pool.key(0)[1].eq(7.0).all()


def test_slots_that_were_never_written_hold_zeros() -> None:
    pool = DevicePool(SHAPES, 64, torch.bfloat16, "cpu")
    assert all(not tensor.any() for layer in range(2) for tensor in (pool.key(layer), pool.value(layer)))


def test_the_library_imports_torch_only_in_its_tiers() -> None:
    program = "import sys, hicache.cache, hicache.keys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
