import pytest
import torch

from hicache.copies.calibration import calibrate
from hicache.copies.copier import ThreadTransfer
from hicache.copies.cost import LoadCostModel
from hicache.copies.fake_transfer import InstantTransfer, ManualTransfer, ignore_done
from hicache.copies.transfer import Copy
from hicache.tiers.device import DevicePool, LayerShape
from hicache.tiers.host import HostPool

torch.set_num_threads(1)
LAYERS = [LayerShape(1, 8, 8)]


def test_the_model_knows_the_speed_of_loads_before_the_first_request() -> None:
    device_pool = DevicePool(LAYERS, 100, torch.float32, "cpu")
    host_pool = HostPool(LAYERS, 2_000, torch.float32, pin="never")
    transfer, model = ThreadTransfer(device_pool, host_pool, on_done=ignore_done), LoadCostModel()
    assert calibrate(model, transfer, num_slots=100, timeout_s=10)
    assert model.load_tokens_per_s is not None
    assert model.load_tokens_per_s > 0
    assert transfer.close(timeout_s=10)


def test_a_transfer_that_hangs_is_an_error_for_it_may_still_write_its_slots() -> None:
    with pytest.raises(TimeoutError, match=r"loading 50 tokens from the host took longer than 0\.01 s"):
        calibrate(LoadCostModel(), ManualTransfer(), num_slots=50, timeout_s=0.01)


def test_a_transfer_that_fails_teaches_nothing() -> None:
    def refuse(copy: Copy) -> None:
        raise OSError(f"no {copy.direction.value} today")

    model = LoadCostModel()
    assert not calibrate(model, InstantTransfer(refuse), num_slots=100, timeout_s=1)
    assert model.load_tokens_per_s is None
