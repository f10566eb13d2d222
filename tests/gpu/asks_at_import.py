"""A user's module that asks for GPUs while it is imported, as many do: ranks that are started after that must work."""

from __future__ import annotations

from typing import Any

import torch

FOUND = torch.cuda.is_available()


def main() -> dict[str, Any]:
    from launcher import init

    return {"found": FOUND, "sum": torch.ones(1000, device=init().device).sum().item()}
