"""The store of a round's ranks: torch's TCPStore, served by the leading agent on a port that all members know.

It is made when the leader has forked its own ranks: the thread that serves it looks up the names of whoever connects,
and a process forked at that moment would inherit glibc's resolver lock, held, and wait for ever in its own first
look-up. Ranks that connect before wait in the backlog of the listening socket.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import Store

from launcher.worker.torch_compat import store_on

TIMEOUT = timedelta(seconds=60)


def serve(listener: socket.socket) -> Store:
    """The store, served from now on until it is garbage.

    Args:
        listener: belongs to the store from now on.
    """
    address = listener.getsockname()[0]
    host = "localhost" if address in ("::", "0.0.0.0") else address  # noqa: S104  a comparison
    return store_on(listener, host, TIMEOUT)
