"""Linear layers with weights packed once for oneDNN: several times faster in float32 on some CPUs.

The operators are torch's own but private. So they are tried first, on a real layer and against the plain product;
where they are missing or give other results, layers stay as they are.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

# What decides over padding: small numbers one by one, then some of what larger steps have.
_TRIED_ROWS = (1, 2, 3, 4, 8, 33)
_MAX_PADDED_ROWS = 4
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


class PackedLinear(nn.Module):
    """Computes what the given layer computes, without keeping that layer's weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        # Some definitions ask for its dtype; whoever wanted the numbers fails at once.
        self.weight = linear.weight.detach().new_empty(0)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return out


def pack_linears(model: nn.Module) -> int:
    """Replace the model's linear layers, if that works here; return how many were replaced.

    What is left of the weights is copied: tensors mapped from a file would keep all of that file in memory.
    """
    linears = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.weight.dtype in _TOLERANCE and child.weight.device.type == "cpu"
    ]
    if not linears or not _works(min((linear for _, _, linear in linears), key=lambda linear: linear.weight.numel())):
        return 0
    for parent, name, linear in linears:
        setattr(parent, name, PackedLinear(linear))
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return len(linears)


def steady_rows(model: PreTrainedModel) -> int:
    """Return from how many rows on a row's product doesn't depend on how many rows there are, as far as was tried.

    For one row, libraries take kernels for vectors, which add up in another order. A sequence that decodes alone would
    then get other logits than in company; so the executor never lets the model compute fewer rows than this. Found out
    on the model's own layers, one of each shape. 1 where there is no such number worth the padding.
    """
    layers = {
        (child.in_features, child.out_features, type(child)): child
        for child in model.modules()
        # A subclass may compute more than a product.
        if isinstance(child, nn.Linear | PackedLinear) and type(child) in {nn.Linear, PackedLinear}
    }
    unsteady = set[int]()
    for layer in layers.values():
        unsteady |= _unsteady_rows(layer, model)
    fewest = min(rows for rows in _TRIED_ROWS if rows > max(unsteady, default=0))
    return fewest if fewest <= _MAX_PADDED_ROWS else 1


def _unsteady_rows(layer: "nn.Linear | PackedLinear", model: PreTrainedModel) -> set[int]:
    """Return the numbers of rows, of those tried, that get something else than they get among the most rows tried."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, _TRIED_ROWS[-1], layer.in_features, generator=generator)
    with torch.inference_mode():
        x = x.to(device=model.device, dtype=model.dtype)
        among_most = layer(x)
        return {rows for rows in _TRIED_ROWS[:-1] if not torch.equal(layer(x[:, :rows]), among_most[:, :rows])}


def _works(linear: nn.Linear) -> bool:
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        try:
            packed = PackedLinear(linear)
            return all(_agree(packed, linear, rows, generator) for rows in (1, 3, 64))
        except (AttributeError, RuntimeError, NotImplementedError):
            return False


def _agree(packed: PackedLinear, linear: nn.Linear, rows: int, generator: torch.Generator) -> bool:
    x = torch.randn(1, rows, linear.in_features, generator=generator).to(linear.weight.dtype)
    expected = functional.linear(x, linear.weight, linear.bias).float()
    worst = (packed(x).float() - expected).abs().amax()
    return bool(worst <= _TOLERANCE[linear.weight.dtype] * expected.abs().amax())
