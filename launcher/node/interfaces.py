"""The addresses of this machine's network interfaces."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

IPV6_TABLE = Path("/proc/net/if_inet6")
_SIOCGIFADDR = 0x8915  # man 7 netdevice
_LINK = 0x20  # the scope of addresses that are good on their own link only


def addresses(interface: str) -> list[str]:
    """The addresses of an interface, those first that others reach best: IPv4, IPv6, IPv6 of this link.

    One of the link has the interface behind it (`fe80::1%eth0`), which is called the same on the nodes of a cluster.
    """
    return [*_ipv4(interface), *_ipv6(interface)]


def _ipv4(interface: str) -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:  # no such interface, or none with an IPv4 address
            return []
    return [socket.inet_ntoa(answer[20:24])]


def _ipv6(interface: str) -> list[str]:
    """From man 7 netdevice's table: address, number, prefix, scope, flags, name."""
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
