"""Which layers of a model adapters may change. Knows modules of torch, no model in particular."""

from torch import nn

from worker.lora.weights import LinearShape, Targets


def linear_targets(model: nn.Module) -> Targets:
    """Return the linear layers inside the model's decoder layers, in the model's order.

    A decoder layer is an element of a list of modules. What lies in a list within that is an expert: it sees some rows
    of a step, in an order of its own. Neither embeddings nor head are targets.
    """
    return {
        path: LinearShape(module.in_features, module.out_features)
        for path, module in model.named_modules()
        if type(module) is nn.Linear and sum(part.isdigit() for part in path.split(".")) == 1
    }
