"""What the user's runs have seen on a cluster so far, from a file that may be damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.runs import history
from launcher.runs.history import FAILURES, PRIOR, Experience, add_failures, experience, failures_file


@pytest.mark.parametrize(
    ("seen", "nodes", "seconds"),
    [
        (Experience(), 1, PRIOR),
        (Experience(), 100, PRIOR),
        (Experience(0, 9 * 3600), 1, 10 * 3600),
        (Experience(1, 19 * 3600), 1, 10 * 3600),
        (Experience(1, 19 * 3600), 19, 3600),
        (Experience(9, 0.0), 1, 360),
    ],
)
def test_failures_are_expected_as_often_as_they_were_seen(seen: Experience, nodes: int, seconds: float) -> None:
    assert seen.between(nodes) == pytest.approx(seconds)


def test_attempts_on_a_cluster_are_added_up_and_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert experience(run, "hpc") == Experience()
    add_failures(run, "hpc", 1, 100.4)
    add_failures(run, "other", 7, 100)
    negative = b'{"cluster": "hpc", "failures": -1, "node_seconds": 1}'
    for line in (b"{", b"[]", b'{"cluster": "hpc"}', negative, b"\xff\0"):
        with (tmp_path / FAILURES).open("ab") as stream:
            stream.write(line + b"\n")
    add_failures(run, "hpc", 2, 50)
    assert experience(run, "hpc") == Experience(3, 150)


def test_what_copies_in_memory_made_good_counts_only_where_there_are_none(tmp_path: Path) -> None:
    run = tmp_path / "run"
    add_failures(run, "hpc", 1, 100)
    add_failures(run, "hpc", 1, 50, absorbed=1)
    (tmp_path / FAILURES).open("a").write('{"cluster": "hpc", "failures": 1, "node_seconds": 50}\n')  # of old
    assert experience(run, "hpc") == Experience(3, 200)
    assert experience(run, "hpc", memory=True) == Experience(2, 200)
    add_failures(run, "hpc", 0, 0, absorbed=9)  # the failures are out of sight already
    assert experience(run, "hpc", memory=True) == Experience(0, 200)


def test_points_of_a_sweep_write_beside_all_runs(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/sweep.json").write_text("{}")
    assert failures_file(tmp_path / "sweep/3") == failures_file(tmp_path / "run") == tmp_path / FAILURES


def test_a_folder_that_cannot_be_written_to_does_no_harm(tmp_path: Path) -> None:
    add_failures(tmp_path / "missing/run", "hpc", 1, 1)
    assert history.experience(tmp_path / "missing/run", "hpc") == Experience()
