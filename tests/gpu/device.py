"""What the tests on a GPU share: the marks that skip them where there is none, and the device."""

import pytest
import torch

CUDA = torch.device("cuda", 0)
ON_CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]
