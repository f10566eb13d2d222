"""Ranks that do not use the GPUs that their run asked for are reported, and no others."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.agent import rank_watch
from launcher.agent.rank_watch import GPU_SECONDS, GPU_SECONDS_AT_LEAST, GpuWatch, gpu_is_open
from launcher.runs import event_files
from launcher.runs.events import Event, GpusUnused
from launcher.runs.history import remarks, unused_gpus


class Watched:
    """A watch of ranks 2 and 3 on node1, whose processes have a GPU open or not."""

    def __init__(self) -> None:
        self.open: bool | None = False
        self.events: list[GpusUnused] = []
        self._watch = GpuWatch("node1", 4, self._write, lambda: self.open)  # type: ignore[arg-type]

    def _write(self, event: Event) -> None:
        assert isinstance(event, GpusUnused)
        self.events.append(event)

    def run(self, begin: float, end: float, over: bool = False) -> Sequence[GpusUnused]:
        """Looks every second, and once more when the ranks have ended; returns what is known at the end."""
        now = begin
        while now <= end:
            self._watch.look([2, 3], now)
            now += 1
        if over:
            self._watch.look([2, 3], end, over=True)
        return unused_gpus([event_files.entry(each) for each in self.events])


def test_of_many_nodes_there_is_one_line() -> None:
    found = [
        event_files.entry(GpusUnused(host=f"n{node}", ranks=(2 * node, 2 * node + 1), gpus=2, seconds=300.0 + node))
        for node in range(4096)
    ]
    (line,) = remarks(found)
    assert line.startswith(
        "ranks 0-8191 on n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 4086 more: no GPU was used in 300 s"
    )


@pytest.mark.parametrize(
    ("seconds", "over", "told"),
    [
        (GPU_SECONDS - 1, False, False),
        (GPU_SECONDS + 4, False, True),
        (GPU_SECONDS_AT_LEAST - 1, True, False),
        (GPU_SECONDS_AT_LEAST, True, True),
        (GPU_SECONDS + 100, True, True),
    ],
)
def test_ranks_that_open_no_gpu_are_reported_once(seconds: float, over: bool, told: bool) -> None:
    watched = Watched()
    found = watched.run(50, 50 + seconds, over)
    assert len(watched.events) == len(found) == told
    if found:
        assert (found[0].host, found[0].ranks, found[0].gpus) == ("node1", (2, 3), 4)
        assert GPU_SECONDS_AT_LEAST <= found[0].seconds <= 1.05 * GPU_SECONDS
        (line,) = remarks([event_files.entry(each) for each in watched.events])
        assert line.startswith("ranks 2-3 on node1: no GPU was used in ")
        assert "asked for 4 GPUs a node" in line


@pytest.mark.parametrize("used", [True, None])
def test_nothing_is_said_of_ranks_that_use_one_or_cannot_be_looked_at(used: bool | None) -> None:
    watched = Watched()
    watched.run(0, 5)
    watched.open = used
    watched.run(6, 7)
    watched.open = False
    assert watched.run(8, 1000, over=True) == []
    assert watched.events == []


def test_what_was_reported_is_withdrawn_when_a_gpu_is_opened_later() -> None:
    watched = Watched()
    assert watched.run(0, 200)
    watched.open = True
    assert watched.run(201, 210, over=True) == []
    assert [each.opened for each in watched.events] == [False, True]


def test_the_files_of_all_processes_below_this_one_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_watch, "DEVICES", (str(tmp_path / "renderD"),))
    assert gpu_is_open() is False
    with open(tmp_path / "renderD128", "w") as device:  # of this process itself it does not count
        assert gpu_is_open() is False
        with subprocess.Popen(["sh", "-c", "cat; :"], pass_fds=[device.fileno()], stdin=subprocess.PIPE):
            assert gpu_is_open() is True
