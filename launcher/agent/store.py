"""The store of a round's ranks: torch's TCPStore, served by the leading agent on a port that all members know.

It is made when the leader has forked its own ranks: the thread that serves it looks up the names of whoever connects,
and a process forked at that moment would inherit glibc's resolver lock, held, and wait for ever in its own first
look-up. Ranks that connect before wait in the backlog of the listening socket.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import Store, TCPStore

TIMEOUT = timedelta(seconds=60)


def serve(listener: socket.socket) -> Store:
    """The store, served from now on until it is garbage.

    torch's newer server, libuv, takes no listening socket before torch 2.8; the older one does in all versions.

    Args:
        listener: belongs to the store from now on.
    """
    address, port, *_ = listener.getsockname()
    host = "localhost" if address in ("::", "0.0.0.0") else address  # noqa: S104  a comparison
    served = TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.fileno(), timeout=TIMEOUT,
        use_libuv=False,
    )  # fmt: skip
    listener.detach()
    return served
