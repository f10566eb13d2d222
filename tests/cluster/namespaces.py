"""Simulates nodes by network namespaces of this host, joined by a switch from which a test can unplug a node.

    python -m tests.cluster.namespaces PREFIX COMMAND...

starts a command on each node of the `Namespaces` with this prefix, as `launcher.schedulers.tasks` does on simulated
nodes. The nodes share everything but the network, such as files.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from types import TracebackType

from launcher.schedulers.tasks import collect_signals, environments, watch

NODES = 3
HOSTS = tuple(f"10.213.0.{node + 1}" for node in range(NODES))
OUTSIDER = "10.213.0.200"  # the address of a host on the same network that is no node


def _ip(*words: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def problem() -> str | None:
    """Returns why network namespaces cannot be created on this machine; None: they can."""
    if shutil.which("ip") is None:
        return "network namespaces need iproute2's ip"
    if os.geteuid():
        return "network namespaces need root"
    name = f"probe-{secrets.token_hex(4)}"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "probe", "type", "bridge")
        _ip("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "other")
    except OSError as error:
        return f"no network namespaces here: {error}"
    finally:
        _ip("netns", "del", name, check=False)
    return None


class Namespaces:
    """Network namespaces as NODES nodes with the addresses HOSTS. The context manager creates and removes them.

    The switch is a bridge in a namespace of its own, so the host's network is not affected.

    Attributes:
        prefix: the first part of the namespaces' names.
        outsider: the namespace of the host OUTSIDER.
    """

    def __init__(self) -> None:
        self.prefix = f"launcher-{secrets.token_hex(4)}"
        self._switch = self.outsider = f"{self.prefix}-switch"

    def name(self, node: int) -> str:
        return f"{self.prefix}-{node}"

    def __enter__(self) -> Namespaces:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "address", "add", f"{OUTSIDER}/24", "dev", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for node, host in enumerate(HOSTS):
            _ip("netns", "add", self.name(node))
            cable = ("link", "add", f"port{node}", "type", "veth", "peer", "name", "eth0", "netns", self.name(node))
            _ip("-n", self._switch, *cable)
            _ip("-n", self._switch, "link", "set", f"port{node}", "master", "bridge", "up")
            _ip("-n", self.name(node), "address", "add", f"{host}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", self.name(node), "link", "set", device, "up")

    def _remove(self) -> None:
        for node in range(NODES):
            self.kill(node)
            _ip("netns", "del", self.name(node), check=False)
        _ip("netns", "del", self._switch, check=False)

    def pull(self, node: int) -> None:
        """Unplugs a node: from now on its packets are lost without an error."""
        _ip("-n", self._switch, "link", "set", f"port{node}", "down")

    def plug(self, node: int) -> None:
        """Plugs a node in again."""
        _ip("-n", self._switch, "link", "set", f"port{node}", "up")

    def pids(self, node: int) -> list[int]:
        """Returns the pids of all processes in a node's namespace."""
        return [int(pid) for pid in _ip("netns", "pids", self.name(node), check=False).split()]

    def kill(self, node: int) -> None:
        """Kills all processes of a node with SIGKILL, and waits until they have ended, for at most ten seconds."""
        give_up = time.monotonic() + 10
        while (pids := self.pids(node)) and time.monotonic() < give_up:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)


def main(arguments: list[str]) -> int:
    prefix, *command = arguments
    received = collect_signals()
    os.environ["LAUNCHER_JOB"] = os.environ["LAUNCHER_JOB_ID"]
    tasks = [
        subprocess.Popen(["ip", "netns", "exec", f"{prefix}-{node}", *command], env={**os.environ, **place})
        for node, place in enumerate(environments(HOSTS, 1))
    ]
    return watch(tasks, received, 10, pause=0.1, keep_going=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
