"""The addresses of this machine's network interfaces, and listening on one of them."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from pathlib import Path

IPV6_TABLE = Path("/proc/net/if_inet6")
_SIOCGIFADDR = 0x8915  # man 7 netdevice
_LINK = 0x20  # the scope of link-local addresses


def addresses(interface: str) -> list[str]:
    """Returns the addresses of an interface, in order of preference: IPv4, IPv6, link-local IPv6; empty: it has none.

    A link-local address ends with the interface (`fe80::1%eth0`), which has the same name on all nodes of a cluster.
    """
    return [*_ipv4(interface), *_ipv6(interface)]


def interface_with(address: str) -> str | None:
    """Returns the name of the interface with this address (IPv4, IPv6, IPv4-mapped IPv6); None: there is none."""
    address = address.removeprefix("::ffff:").partition("%")[0]
    if address.startswith("127.") or address == "::1":
        return "lo"
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if address in (each.partition("%")[0] for each in addresses(name))), None)


def listen(interface: str | None, backlog: int = 128) -> tuple[socket.socket, tuple[str, int]]:
    """Returns a listening socket on a free port of an interface, and its (address, port).

    interface: name of the interface, or a comma-separated list, of which the first is used; None: the address that this
        host's name resolves to, as gloo does.
    Raises OSError: there is no such interface, or it has no address that can be used.
    """
    name = interface.split(",")[0] if interface else None
    problem = OSError(errno.EADDRNOTAVAIL, f"{name or socket.gethostname()} has no address")
    for address in addresses(name) if name else _of_this_host():
        server: socket.socket | None = None
        try:
            family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
            server = socket.socket(family, socket.SOCK_STREAM)
            server.bind(place)
            server.listen(backlog)
            return server, (address, server.getsockname()[1])
        except OSError as error:  # an IPv6 address that is still tentative, for instance
            problem = error
            if server is not None:
                server.close()
    raise problem


def address_of(name: str) -> str:
    """Returns the address of this machine that a host name resolves to.

    Empty: the name resolves to several addresses, to a loopback address, to one of another machine, or not at all.
    Debian's /etc/hosts resolves the host's name to 127.0.1.1, which other hosts cannot use.
    """
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return ""
    usable = [each for each in found if not each.startswith("127.") and each != "::1" and _is_mine(each)]
    return usable[0] if len(found) == len(usable) == 1 else ""


def _is_mine(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _of_this_host() -> list[str]:
    found = dict.fromkeys(str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None))
    return sorted(found, key=lambda address: address.startswith("127.") or address == "::1")


def _ipv4(interface: str) -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:  # no such interface, or none with an IPv4 address
            return []
    return [socket.inet_ntoa(answer[20:24])]


def _ipv6(interface: str) -> list[str]:
    # The columns of /proc/net/if_inet6 are address, interface number, prefix length, scope, flags and name
    try:
        rows = [line.split() for line in IPV6_TABLE.read_text().splitlines()]
    except OSError:  # a kernel without IPv6
        return []
    mine = [(int(row[3], 16) == _LINK, row[0]) for row in rows if row[5] == interface]
    found = []
    for of_link, digits in sorted(mine):
        address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
        found.append(f"{address}%{interface}" if of_link else address)
    return found
