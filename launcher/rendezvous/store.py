"""The store of a round's ranks: torch's TCPStore behind a proxy that keeps other users and other hosts out.

A TCPStore serves every connection, and ranks trust its content: a client can impersonate a rank and send pickles to the
others. So the store listens on the loopback interface, where the kernel drops packets without the TCP MD5 signature of
our proxy (RFC 2385; unlike a socket filter this needs no privilege). The proxy listens on the port that ranks connect
to, checks which user and host each connection comes from, and forwards its bytes. On a kernel without these signatures
other users of the leader's host can reach the store; a warning in the run's output says so.

| a connection comes from | the proxy accepts it |
|---|---|
| this host, a process of this user | yes |
| this host, a process of another user | no |
| an address of another host of the job | yes: the user is not known here |
| any other address | no |

The leader makes the proxy after it has forked its own ranks: the store has threads, and a fork could inherit a lock
that one of them holds. Ranks that connect earlier wait in the backlog of the listening socket. The proxy makes the
store when the first rank connects; if the ranks make no process group, it is never made.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from ipaddress import IPv6Address, ip_address

from torch.distributed import Store

from launcher.log_line import log_line
from launcher.torch_compat import store_on

TIMEOUT = timedelta(seconds=60)
TRIES = 5  # tries to make a store to which no other user connected before its signatures were enabled
PAUSE = 0.1  # seconds until the next try when this process has no thread or file descriptor left
REFUSALS = 10  # most refused hosts that are logged
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")  # man 5 proc
FILES_PER_RANK = 3  # open files of this process for each rank: its connection, and both ends of the store's
_TCP_MD5SIG_EXT, _WITH_PREFIX = 32, 1  # linux/tcp.h
_KEY_SIZE = 40  # bytes, of 80 at most

Address = tuple[str, int]  # an IP address and a port


class RanksStore:
    """The ranks' store and its proxy. Both serve connections until `close`."""

    def __init__(self, listener: socket.socket, hosts: Collection[str]) -> None:
        """
        Args:
            listener: the listening socket that ranks connect to; this object closes it.
            hosts: IP addresses of the job's hosts.

        Raises:
            OSError, RuntimeError: no thread or file descriptor is left.
        """
        self._listener, self._hosts = listener, {_plain(host) for host in hosts if not _is_here(host)}
        self._refused: set[str] = set()
        self._ends: set[_End] = set()
        listener.setblocking(False)
        self._inner: _InnerStore | None = None
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="store-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes the store and all connections."""
        with contextlib.suppress(RuntimeError):  # its thread has ended
            self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()
        self._listener.close()
        if self._inner is not None:
            self._inner.listener.close()
            self._inner = None

    def _run(self) -> None:
        with contextlib.closing(self._loop), contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._accepting)

    async def _accept(self) -> None:
        try:
            while True:
                try:
                    connection, _ = await self._loop.sock_accept(self._listener)
                except OSError:  # out of file descriptors, or the client has closed the connection already
                    await asyncio.sleep(PAUSE)
                    continue
                try:
                    await self._serve(connection)
                except OSError:
                    connection.close()
        finally:
            for end in list(self._ends):
                end.transport.abort()
            await asyncio.sleep(0)  # for the transports to close their sockets

    async def _serve(self, connection: socket.socket) -> None:
        peer, own = _address(connection.getpeername()), _address(connection.getsockname())
        if peer[0] not in self._hosts and sockets_connected_to(own).get(peer) != os.geteuid():
            connection.close()
            self._log_refusal(peer[0])
            return
        store = self._inner = self._inner or await _made()
        inner = socket.socket()
        try:
            inner.setblocking(False)
            if store.key is not None:
                sign(inner, store.key)
            await self._loop.sock_connect(inner, store.listener.getsockname())
        except OSError:
            inner.close()
            raise
        ends = _End(self._ends), _End(self._ends)
        ends[0].other, ends[1].other = ends[1], ends[0]
        for end, sock in zip(ends, (inner, connection), strict=True):  # the rank speaks first, so its end comes last
            # Without it a request in two parts takes 40 ms. asyncio sets it only on sockets made with a protocol.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(partial(_same, end), sock)

    def _log_refusal(self, host: str) -> None:
        if host not in self._refused and len(self._refused) < REFUSALS:
            self._refused.add(host)
            log_line(f"refused a connection to the ranks' store from {host}: not a process of this job")


class _End(asyncio.Protocol):
    """One side of a proxied connection: forwards what it receives to the other side."""

    other: _End

    def __init__(self, ends: set[_End]) -> None:
        self._ends = ends
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._ends.add(self)
        if self.other._closed:
            transport.close()

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._closed = True
        self._ends.discard(self)
        if self.other in self._ends:
            self.other.transport.close()

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()


def _same(end: _End) -> _End:
    return end


async def _made() -> _InnerStore:
    """Makes a store, and retries without limit while no thread or file descriptor is left.

    Meanwhile the ranks wait, as long as they wait for each other.
    """
    reported = False
    while True:
        try:
            return _inner_store()
        except (OSError, RuntimeError) as error:
            if not reported:
                log_line(f"the ranks' store cannot be made now: {error}")
            reported = True
        await asyncio.sleep(PAUSE)


@dataclass(frozen=True)
class _InnerStore:
    """A TCPStore on the loopback interface.

    Attributes:
        store: the store.
        listener: its listening socket.
        key: the key of TCP MD5 signatures that connections need; None: the kernel has no such signatures.
    """

    store: Store
    listener: socket.socket
    key: bytes | None


def _inner_store() -> _InnerStore:
    """Makes the ranks' TCPStore on the loopback interface, with TCP MD5 signatures if the kernel has them.

    Raises:
        OSError, RuntimeError: no thread or file descriptor is left.
        RuntimeError: at each of TRIES tries another user of this host connected first.
    """
    key = secrets.token_bytes(_KEY_SIZE)
    for _ in range(TRIES):
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        handle = listener.dup()  # the store takes ownership of `listener`
        store = store_on(listener, "127.0.0.1", TIMEOUT)  # it connects to itself, without a key
        try:
            sign(handle, key)
        except OSError:  # a kernel without them, or one in FIPS mode, which has no MD5
            log_line(
                "this kernel has no TCP MD5 signatures (RFC 2385): other users of this host can connect to the ranks' "
                "TCPStore"
            )
            return _InnerStore(store, handle, None)
        # Another user may have connected before the signatures were enabled.
        if set(sockets_connected_to(handle.getsockname()).values()) <= {os.geteuid()}:
            return _InnerStore(store, handle, key)
        handle.close()
    raise RuntimeError("another user of this host connected to the ranks' store each time it was made")


def sign(sock: socket.socket, key: bytes) -> None:
    """Enables TCP MD5 signatures (RFC 2385; Linux 4.13) with this key for all IPv4 peers of a socket.

    New connections without the key get no answer. Connections that exist already keep working.

    Raises:
        OSError: this kernel does not support it.
    """
    anybody = struct.pack("=HHI120x", socket.AF_INET, 0, 0)  # struct sockaddr_storage, with a prefix of no bits
    option = struct.pack("=128sBBHi80s", anybody, _WITH_PREFIX, 0, len(key), 0, key)  # struct tcp_md5sig
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG_EXT, option)


def sockets_connected_to(address: Address) -> dict[Address, int]:
    """Returns this host's sockets that are connected to an address, from /proc/net/tcp: their addresses and owners.

    Sockets of another network namespace are not listed. A socket that its process has closed belongs to root.

    Args:
        address: IP address and port of the other end.

    Returns:
        The user id of each socket's owner, by the socket's own IP address and port.
    """
    found = {}
    suffix = f":{address[1]:04X}"
    for table in TABLES:
        with contextlib.suppress(FileNotFoundError), open(table) as lines:  # without IPv6 there is no tcp6
            for row in map(str.split, lines):
                if row[2].endswith(suffix) and _of_hex(row[2]) == address:
                    found[_of_hex(row[1])] = int(row[7])
    return found


def _of_hex(text: str) -> Address:
    """Parses an address in the format of /proc/net/tcp, `HEX:PORT`: 4-byte words in the machine's byte order. Pure."""
    digits, _, port = text.partition(":")
    data = bytes.fromhex(digits)
    words = struct.unpack(f"={len(data) // 4}I", data)
    return _plain(str(ip_address(struct.pack(f">{len(words)}I", *words)))), int(port, 16)


def _is_here(host: str) -> bool:
    """Returns whether an IP address belongs to this host: then the route to it has this address as its source."""
    family, kind, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
    try:
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # for a datagram socket this sends nothing
            return _address(probe.getsockname())[0] == _plain(host)
    except OSError:
        return False


def _address(name: tuple[object, ...]) -> Address:
    return _plain(str(name[0])), int(str(name[1]))


def _plain(host: str) -> str:
    """Returns the canonical form of an IP address: IPv4-mapped IPv6 as IPv4, without a zone index such as `%eth0`."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
