"""Results of benchmarks: written whole, read back, and compared with those of an earlier run."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.benchmark_results import Results, against, as_csv, compare, label, read


def row(op: str = "all_reduce", busbw: float | None = 1e9, size: int = 1024, **changes: Any) -> dict[str, Any]:
    seconds = {"min": 1.0, "median": 2.0, "p99": 4.0, "mean": 2.5}
    return {
        "op": op, "group": "world", "ranks": "4", "n": 4, "size": size, "count": size // 4, "dtype": "float32",
        "redop": "sum", "root": None, "place": "in", "async": False, "iterations": 5, "seconds": seconds,
        "algbw": busbw, "busbw": busbw, "wrong": 0, "checked": 10, "missing": "", **changes,
    }  # fmt: skip


def results_of(folder: Path | None, *rows: dict[str, Any]) -> Results:
    return Results("collective", {"world_size": 4}, {"socket": 2e9, "memory": None, "how": "so"}, folder, list(rows))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = results_of(tmp_path)
    written.add(row(), row(place="out"))
    assert read(tmp_path).complete is False
    written.add(row(size=2048))
    written.complete = True
    written.write()
    for path in (tmp_path, tmp_path / "results.json"):
        assert read(path).as_dict() == written.as_dict()
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "results.json": 0o600, "results.csv": 0o600,
    }  # fmt: skip


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    written = results_of(tmp_path, row())
    written.write()
    before = (tmp_path / "results.json").read_text()
    with pytest.raises(TypeError):
        written.add(row(size=object()))  # type: ignore[arg-type]
    assert (tmp_path / "results.json").read_text() == before


def test_csv_has_a_column_for_each_statistic() -> None:
    (told,) = csv.DictReader(as_csv([row(missing="no, none")]).splitlines())
    assert (told["seconds_min"], told["seconds_p99"], told["op"]) == ("1.0", "4.0", "all_reduce")
    assert (told["missing"], told["root"], told["busbw"]) == ("no, none", "", "1000000000.0")
    assert as_csv([]) == "\n"
    both = as_csv([row(seconds=None), row()]).splitlines()
    assert both[0].endswith("seconds_mean") and both[1].count(",") == both[2].count(",")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no .*results.json: only runs of workload=collective and workload=p2p"),
        ("{", "is damaged"),
        ('{"format": 1}', "is damaged"),
        ('{"format": 2}', "is not of format 1, which this version reads"),
        ("[]", "is not of format 1"),
        ("\xff", "is damaged"),
    ],
)
def test_what_is_no_results_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=words):
        read(tmp_path)


@pytest.mark.parametrize("name", ["results.json", "matrix.npy"])
def test_a_file_that_is_refused_is_not_called_damaged(tmp_path: Path, name: str) -> None:
    results = results_of(tmp_path, row())
    results.matrix = {"block": 2}
    results.write()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / name))} cannot be read: Is a directory"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_a_damaged_matrix_is_named(tmp_path: Path, content: bytes) -> None:
    results = results_of(tmp_path, row())
    results.matrix = {"block": 2}
    results.write()
    with pytest.raises(ValueError, match=r"there is no .*matrix\.npy"):
        read(tmp_path)
    (tmp_path / "matrix.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"matrix\.npy.* measure again"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("now", "then", "slower", "compared"),
    [
        ([row()], [row()], [], 1),
        ([row(busbw=0.81e9)], [row()], [], 1),
        ([row(busbw=0.79e9)], [row()], [("busbw", 0.79)], 1),
        ([row(busbw=5e9)], [row()], [], 1),
        ([row()], [], [], 0),
        ([row(size=4096)], [row()], [], 0),
        ([row(ranks="2 x 2", n=2)], [row()], [], 0),
        ([row(redop="max")], [row()], [], 0),
        ([row(iterations=99, checked=1, count=7)], [row()], [], 1),  # nothing that says what was done
        (
            [row(busbw=0.5e9), row("broadcast", busbw=0.1e9), row("reduce")],
            [row("reduce"), row(), row("broadcast"), row("scatter")],
            [("busbw", 0.1), ("busbw", 0.5)],
            3,
        ),
        (
            [row("barrier", None, seconds={"median": 3.0}), row("gather", None, seconds=None, missing="lost")],
            [row("barrier", None), row("gather")],
            [("busbw", 0.0), ("time", 2 / 3)],
            2,
        ),
        ([row("gather")], [row("gather", None, seconds=None, missing="was not there")], [], 0),
    ],
)
def test_rows_are_compared_that_did_the_same(
    now: list[dict[str, Any]], then: list[dict[str, Any]], slower: list[tuple[str, float]], compared: int
) -> None:
    differences, count = compare(now, then, 0.2)
    assert count == compared
    found = [(each.measure, each.ratio) for each in differences]
    assert [measure for measure, _ in found] == [measure for measure, _ in slower]
    assert [ratio for _, ratio in found] == pytest.approx([ratio for _, ratio in slower])


@pytest.mark.parametrize(("measure", "value"), [("bandwidth", 1e9), ("latency", 1e-3)])
def test_rows_of_p2p_are_compared_in_the_same_way(measure: str, value: float) -> None:
    then = {"pattern": "pingpong", "size": 8, "bandwidth": None, "latency": None, "seconds": None, measure: value}
    for factor, slow in ((1.0, 0), (0.5, 1)):
        now = {**then, measure: value * factor if measure == "bandwidth" else value / factor}
        assert len(compare([now], [then], 0.2)[0]) == slow


@given(st.lists(st.floats(1, 1e12), min_size=1, max_size=8), st.floats(0.01, 0.9))
def test_a_run_is_never_slower_than_itself(speeds: list[float], tolerance: float) -> None:
    rows = [row(size=number + 1, busbw=speed) for number, speed in enumerate(speeds)]
    assert compare(rows, json.loads(json.dumps(rows)), tolerance) == ([], len(rows))


def test_the_comparison_is_told() -> None:
    said: list[str] = []
    base = results_of(None, row(), row("broadcast"))
    assert against([row(), row("broadcast"), row("scatter")], base, 0.2, said.append, "RUN") is None
    assert said == ["2 rows compared with the baseline, none slower by more than 20 %; 1 have no counterpart there"]
    said.clear()
    error = against([row(busbw=0.5e9), row("broadcast", busbw=0.4e9)], base, 0.2, said.append, "RUN")
    assert error == (
        "2 of 2 rows are slower than baseline=RUN allows (tolerance=0.2); the worst: broadcast world 4 1024 float32 "
        "sum in, busbw 0.4 GB/s, was 1 GB/s"
    )
    assert said[0] == "slower than the baseline by more than 20 %: 2 of 2 rows"
    assert said[1].split() == ["40", "%", "of", "the", "speed:", "busbw", "0.4", "GB/s,", "was", "1", "GB/s"]
    assert "nothing can be compared with baseline=RUN" in str(against([row(size=1)], base, 0.2, said.append, "RUN"))


def test_a_row_in_words_has_what_was_done_alone() -> None:
    assert label(row(root=0, **{"async": True})) == "all_reduce world 4 1024 float32 sum in async"
