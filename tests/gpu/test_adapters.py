"""Rows of several adapters computed on a GPU are those that the CPU computes, in stacks and in runs of their own."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tests.gpu.device import CUDA, ON_CUDA
from worker.batch import BASE_MODEL, Batch
from worker.lora.torch_bank import TorchAdapterBank
from worker.lora.weights import AdapterWeights, LowRank

pytestmark = ON_CUDA

INPUTS, OUTPUTS = 64, 96
SEQUENCES = ((1, 0), (3, BASE_MODEL), (2, 1), (1, 2), (80, 3), (1, 1))  # rows, and the place of the adapter


def adapter(place: int) -> AdapterWeights:
    generator = torch.Generator().manual_seed(place)
    rank = 2 * place + 1
    down, up = torch.randn(rank, INPUTS, generator=generator), torch.randn(OUTPUTS, rank, generator=generator)
    return AdapterWeights(f"{place}", {"0": LowRank(0.1 * down, 0.1 * up, 0.5 + place)})


def batch_of(sequences: Sequence[tuple[int, int]]) -> Batch:
    borders = np.cumsum([0, *(rows for rows, _ in sequences)]).astype(np.int32)
    zeros = np.zeros(int(borders[-1]), np.int32)
    places = np.array([place for _, place in sequences], np.int32)
    return Batch(zeros, zeros, zeros, borders, borders, zeros, (), adapters=places)


def computed_on(device: torch.device) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS))
    step = batch_of(SEQUENCES)
    x = torch.randn(1, step.num_tokens, INPUTS).to(device)
    model.to(device)
    bank = TorchAdapterBank(model, ["0"], torch.float32, device)
    for place in range(4):
        bank.put(place, adapter(place))
    with torch.inference_mode(), bank.adding(step, step.num_tokens):
        out: Tensor = model(x)
    return out.cpu()


def test_rows_are_those_of_the_cpu() -> None:
    torch.testing.assert_close(computed_on(CUDA), computed_on(torch.device("cpu")), rtol=1e-4, atol=1e-4)


def test_a_place_is_filled_anew_while_passes_are_queued() -> None:
    """Copies follow the passes that were started before them: none of those sees half an adapter."""
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS)).to(CUDA)
    bank = TorchAdapterBank(model, ["0"], torch.float32, CUDA)
    x = torch.randn(1, 2, INPUTS, device=CUDA)
    step = batch_of([(2, 0)])
    outs = list[Tensor]()
    for place in range(4):
        bank.put(0, adapter(place))
        with torch.inference_mode(), bank.adding(step, 2):
            outs.append(model(x))
    for place, out in enumerate(outs):
        module = adapter(place).modules["0"]
        delta = module.scale * (x.cpu() @ module.down.T) @ module.up.T
        torch.testing.assert_close(out.cpu(), (model(x).cpu() + delta), rtol=1e-3, atol=1e-3)
