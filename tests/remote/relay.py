"""ssh's ProxyCommand for the tests: a relay that cuts the connection after so many bytes in either direction.

python -m tests.remote.relay HOST PORT UP DOWN       UP, DOWN: bytes; negative: no limit
"""

from __future__ import annotations

import os
import selectors
import socket
import sys


def main(host: str, port: int, up: int, down: int) -> None:
    with socket.create_connection((host, port)) as far, selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(far, selectors.EVENT_READ)
        left = {0: up, far.fileno(): down}
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                part = data if left[key.fd] < 0 else data[: left[key.fd]]
                if key.fd == 0:
                    far.sendall(part)
                else:
                    os.write(1, part)
                if left[key.fd] >= 0:
                    left[key.fd] -= len(part)
                if not data or left[key.fd] == 0:
                    return


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
