"""The store of a round's ranks: torch's TCPStore behind a proxy that keeps other users and other hosts out.

A TCPStore serves every connection, and ranks trust its content: a client can impersonate a rank and send pickles to the
others. So the store listens on the loopback interface, where the kernel drops packets without the TCP MD5 signature of
our proxy (RFC 2385; this needs no privilege). The proxy listens on the port that ranks connect to, checks which user
and host each connection comes from, and forwards its bytes. On a kernel without these signatures other users of the
leader's host can reach the store, and the run's output warns of that.

| a connection comes from | the proxy accepts it |
|---|---|
| this host, a process of this user | yes |
| this host, a process of another user | no |
| an address of another host of the job | yes: the user is not known here |
| any other address | no |

Both are in a process of their own, forked by the leader before its own ranks, so that neither their threads nor their
open files are the leader's. The proxy makes the store at once if several ranks will meet there, else when one connects.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import secrets
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv6Address, ip_address
from typing import NoReturn

from torch.distributed import Store

from launcher import processes
from launcher.errors import explain
from launcher.failures.messages import end_of_process
from launcher.formatting import log_line
from launcher.torch_compat import store_on

TIMEOUT = timedelta(seconds=60)
TRIES = 5  # tries to make a store to which no other user connected before its signatures were enabled
PAUSE = 0.1  # seconds until the next try when this process has no thread or file descriptor left
READ = 1 << 18  # bytes that are forwarded at once
SPARE = 32  # open files that are kept for other things than ranks' connections
REFUSALS = 10  # most refused hosts that are logged
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")  # man 5 proc
FILES_PER_RANK = 3  # open files of the store's process for each rank: its connection, and both ends of the store's
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1  # linux/netlink.h, linux/sock_diag.h
_UID_AT = 80  # offset of the user id in the answer: struct nlmsghdr, struct inet_diag_msg
_TCP_MD5SIG_EXT, _WITH_PREFIX = 32, 1  # linux/tcp.h
_KEY_SIZE = 40  # bytes, of 80 at most

Address = tuple[str, int]  # an IP address and a port


class RanksStore:
    """The process (pid) of the ranks' store and its proxy. It serves until `close`, or until this process ends."""

    def __init__(self, listener: socket.socket, hosts: Collection[str], *, at_once: bool = False) -> None:
        # listener: that ranks connect to; this object closes it. Raises OSError: no process or memory is left
        agent, mask = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = processes.fork()  # it runs this file alone, which waits for no lock of other threads
            if self.pid == 0:
                _run(listener, hosts, agent, at_once)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        listener.close()
        self._end = ""

    def end(self) -> str:
        """Returns how the process ended, for people; empty: it still runs."""
        if not self._end:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            how = end_of_process(os.waitstatus_to_exitcode(status))
            self._end = f"the process of the ranks' store {how}" if ended else ""
        return self._end

    def close(self) -> None:
        if end := self.end():
            log_line(end)
            return
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _run(listener: socket.socket, hosts: Collection[str], agent: int, at_once: bool) -> NoReturn:
    # All signals stay blocked: ranks that save after a stop request need the store
    try:
        gc.disable()  # the agent's objects are not to be destroyed here
        processes.die_with_parent(agent)
        with os.scandir("/proc/self/fd") as entries:  # not each up to the limit, which may be a billion
            inherited = {int(entry.name) for entry in entries}
        for descriptor in inherited - {0, 1, 2, listener.fileno()}:
            with contextlib.suppress(OSError):  # that of the listing is closed already
                os.close(descriptor)
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        _Proxy(listener, hosts, at_once=at_once).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
    raise AssertionError("it has ended")


class _End:
    # One side of a proxied connection, and the bytes that it has yet to send

    other: _End

    def __init__(self, sock: socket.socket) -> None:
        self.socket, self.unsent = sock, b""


class _Proxy:
    # Accepts what the module's table admits

    def __init__(self, listener: socket.socket, hosts: Collection[str], *, at_once: bool = False) -> None:
        self._listener, self._hosts = listener, {_plain(host) for host in hosts if not _is_here(host)}
        self._looks_up = _diag_works()
        self._most = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE) // FILES_PER_RANK
        self._refused: set[str] = set()
        self._short = False
        self._ends: dict[int, _End] = {}
        self._buffer = memoryview(bytearray(READ))
        listener.setblocking(False)
        self._poll = select.epoll()
        self._store = _made() if at_once else None

    def serve(self) -> NoReturn:
        while True:
            self._poll.register(self._listener, select.EPOLLIN)
            pause: float | None = None
            while pause is None or time.monotonic() < pause:
                for descriptor, mask in self._poll.poll(None if pause is None else PAUSE):
                    if descriptor != self._listener.fileno():
                        self._forward(self._ends.get(descriptor), mask)
                    elif shortage := self.accept():
                        if not self._short:
                            log_line(f"the ranks' store accepts no connection now: {explain(shortage) or shortage}")
                        self._short = True
                        self._poll.unregister(self._listener)
                        pause = time.monotonic() + PAUSE

    def accept(self) -> OSError | None:
        """Accepts or refuses a connection. Returns the error if that has to wait, because something is used up."""
        if len(self._ends) >= 2 * self._most:  # the store itself would drop connections
            return OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with contextlib.ExitStack() as opened:
            try:
                inner = opened.enter_context(socket.socket())  # first: without it the rank waits in the backlog
                connection = opened.enter_context(self._listener.accept()[0])
            except (BlockingIOError, ConnectionError):  # the client is gone already
                return None
            except OSError as error:
                return error
            with contextlib.suppress(OSError):  # the client is gone already
                host = _address(connection.getpeername())[0]
                if host not in self._hosts and self._owner(connection) != os.geteuid():
                    if host not in self._refused and len(self._refused) < REFUSALS:
                        self._refused.add(host)
                        log_line(f"refused a connection to the ranks' store from {host}: not a process of this job")
                    return None
                store = self._store = self._store or _made()
                ends = _End(connection), _End(inner)
                if store.key is not None:
                    sign(inner, store.key)
                for end, other in zip(ends, reversed(ends), strict=True):
                    end.other = other
                    end.socket.setblocking(False)
                    # Without it a request in two parts takes 40 ms.
                    end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                inner.connect_ex(store.listener.getsockname())
                for end in ends:
                    self._ends[end.socket.fileno()] = end
                    self._poll.register(end.socket, select.EPOLLIN)
                opened.pop_all()
        return None

    def _owner(self, connection: socket.socket) -> int | None:
        if self._looks_up:
            return owner_of_peer(connection)
        own, peer = _address(connection.getsockname()), _address(connection.getpeername())
        return sockets_connected_to(own).get(peer)

    def _forward(self, end: _End | None, mask: int) -> None:
        if end is None:
            return
        try:
            if end.unsent and mask & select.EPOLLOUT:
                self._send(end, end.unsent)
            elif end.other.unsent:
                if mask & (select.EPOLLHUP | select.EPOLLERR):
                    self._close(end)
            elif size := end.socket.recv_into(self._buffer):
                self._send(end.other, self._buffer[:size])
            else:
                self._close(end)
        except BlockingIOError:
            pass
        except OSError:
            self._close(end)

    def _send(self, end: _End, data: bytes | memoryview) -> None:
        # While there is a rest, the other end is not read
        before, sent = bool(end.unsent), 0
        with contextlib.suppress(BlockingIOError):
            sent = end.socket.send(data)
        end.unsent = bytes(data[sent:]) if sent < len(data) else b""
        if before or end.unsent:
            for each in (end, end.other):
                wanted = (0 if each.other.unsent else select.EPOLLIN) | (select.EPOLLOUT if each.unsent else 0)
                self._poll.modify(each.socket, wanted)

    def _close(self, end: _End) -> None:
        for each in (end, end.other):
            del self._ends[each.socket.fileno()]
            each.socket.close()


def _made() -> _InnerStore:
    # Meanwhile the ranks wait, as long as they wait for each other
    reported = False
    while True:
        try:
            return _inner_store()
        except (OSError, RuntimeError) as error:
            if not reported:
                log_line(f"the ranks' store cannot be made now: {error}")
            reported = True
        time.sleep(PAUSE)


@dataclass(frozen=True)
class _InnerStore:
    # On the loopback interface

    store: Store
    listener: socket.socket
    key: bytes | None  # the key of TCP MD5 signatures that connections need; None: the kernel has no such signatures


def _inner_store() -> _InnerStore:
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
    """Enables TCP MD5 signatures (RFC 2385; Linux 4.13) for all IPv4 peers of a socket: others get no answer."""
    anybody = struct.pack("=HHI120x", socket.AF_INET, 0, 0)  # struct sockaddr_storage, with a prefix of no bits
    option = struct.pack("=128sBBHi80s", anybody, _WITH_PREFIX, 0, len(key), 0, key)  # struct tcp_md5sig
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG_EXT, option)


def owner_of_peer(connection: socket.socket) -> int | None:
    """Returns the user at the other end of a TCP connection (man 7 sock_diag; root: closed); None: another host's."""
    peer, own = connection.getpeername(), connection.getsockname()
    ends = [ip_address(_address(end)[0]) for end in (peer, own)]
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    request = struct.pack(
        "=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF
    ) + struct.pack(">HH16s16s", peer[1], own[1], *(end.packed for end in ends)) + struct.pack(
        "=III", peer[3] if len(peer) > 2 else 0, 0xFFFFFFFF, 0xFFFFFFFF  # the interface; any cookie
    )  # fmt: skip
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + request)
        answer = kernel.recv(4096)
    if struct.unpack_from("=H", answer, 4)[0] != _SOCK_DIAG_BY_FAMILY:  # an error: there is no such socket
        return None
    return int(struct.unpack_from("=I", answer, _UID_AT)[0])


def _diag_works() -> bool:
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        opened.enter_context(socket.create_connection(listener.getsockname()))
        return owner_of_peer(opened.enter_context(listener.accept()[0])) == os.geteuid()
    return False


def sockets_connected_to(address: Address) -> dict[Address, int]:
    """Returns the owners of this network namespace's sockets that are connected to an address (/proc/net/tcp)."""
    found = {}
    suffix = f":{address[1]:04X}"
    for table in TABLES:
        with contextlib.suppress(FileNotFoundError), open(table) as lines:  # without IPv6 there is no tcp6
            for row in map(str.split, lines):
                if row[2].endswith(suffix) and _of_hex(row[2]) == address:
                    found[_of_hex(row[1])] = int(row[7])
    return found


def _of_hex(text: str) -> Address:
    digits, _, port = text.partition(":")
    data = bytes.fromhex(digits)
    words = struct.unpack(f"={len(data) // 4}I", data)
    return _plain(str(ip_address(struct.pack(f">{len(words)}I", *words)))), int(port, 16)


def _is_here(host: str) -> bool:
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
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
