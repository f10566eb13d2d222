"""Marks for tests of what not every supported torch can do."""

from __future__ import annotations

import pytest
import torch

from launcher.torch_compat import fsdp_computes_on

needs_fsdp_on_cpus = pytest.mark.skipif(
    not fsdp_computes_on(torch.device("cpu")), reason="FSDP of this torch computes on GPUs alone"
)
