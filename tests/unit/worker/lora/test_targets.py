"""Which layers of a model adapters may change."""

import torch
from torch import nn

from worker.lora.targets import linear_targets
from worker.lora.weights import LinearShape


class Transposed(nn.Module):
    """Like the layers of GPT-2, which hold their weight the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 6))


class OddLinear(nn.Linear):
    """What computes something else than its weight says."""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"q_proj": nn.Linear(4, 6), "odd": OddLinear(4, 4), "c_attn": Transposed()})
        self.experts = nn.ModuleList([nn.Linear(4, 4)])
        self.norm = nn.LayerNorm(4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.project_in = nn.Linear(4, 4)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.lm_head = nn.Linear(4, 7)


def test_targets_are_the_linear_layers_of_decoder_layers_and_nothing_else() -> None:
    assert linear_targets(Model()) == {
        "layers.0.attention.q_proj": LinearShape(4, 6),
        "layers.1.attention.q_proj": LinearShape(4, 6),
    }
