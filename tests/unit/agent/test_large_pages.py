"""Which memory of a process goes into large pages."""

from __future__ import annotations

from launcher import processes

MAPS = """\
55d5c0000000-55d5c0200000 r--p 00000000 fe:00 123 /usr/bin/python3.11
55d5c2f31000-55d5c8553000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
7f0000300000-7f0000700000 rw-p 00000000 00:00 0
7f0001000000-7f0001100000 rw-p 00000000 00:00 0
7f0002000000-7f0003000000 r-xp 00000000 fe:00 124 /usr/lib/libtorch_cpu.so
7f0003000000-7f0004000000 rw-p 01000000 fe:00 124 /usr/lib/libtorch cpu.so
7f0005000000-7f0006000000 rw-s 00000000 00:01 9 /memfd:pulse (deleted)
7ffc00000000-7ffc00800000 rw-p 00000000 00:00 0 [stack]
"""


def test_the_heap_and_other_private_memory_as_far_as_whole_large_pages_fit() -> None:
    assert [(hex(begin), hex(end)) for begin, end in processes.large_ranges(MAPS.splitlines())] == [
        ("0x55d5c3000000", "0x55d5c8400000"),
        ("0x7f0000000000", "0x7f0000200000"),
        ("0x7f0000400000", "0x7f0000600000"),
    ]


def test_what_a_process_has_in_memory_stays() -> None:
    data = bytearray(b"abc" * (processes.LARGE * 2))
    processes.use_large_pages()
    assert data == b"abc" * (processes.LARGE * 2)
