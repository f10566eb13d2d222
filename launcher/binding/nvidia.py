"""Queries NVIDIA's management library. It creates no CUDA context and starts no thread."""

from __future__ import annotations

import contextlib


def parent_of_slice(uuid: str) -> str | None:
    """Returns the PCI address of the GPU that has the MIG slice `uuid`.

    None: nvidia-ml-py is not installed, or a query fails.
    """
    try:
        # Lazily: it may not be installed, and only MIG slices need it
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        slice_ = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        whole = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_)
        about = pynvml.nvmlDeviceGetPciInfo(whole)
        return f"{about.domain:04x}:{about.bus:02x}:{about.device:02x}.0"
    except pynvml.NVMLError:
        return None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
