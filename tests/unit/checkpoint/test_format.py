"""The format of checkpoints: names, manifests, checksums, what is kept."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import io_bounds
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.folder import CheckpointFolder, Retention
from launcher.checkpoint.format import Block, CheckpointError, Damaged, File, Manifest, Misfit
from launcher.paths import PACKAGE
from tests.fakes.checkpoint_files import changed, file_of
from tests.unit.operations import operations


def manifest(step: int, **changes: Any) -> Manifest:
    given: dict[str, Any] = {
        "kind": "single", "world_size": 2, "attempt": 0, "identity": {}, "extra": {}, "metrics": {}, "files": {},
        **changes,
    }  # fmt: skip
    return Manifest(step=step, **given)


def write(folder: Path, step: int, data: bytes = b"data", **changes: Any) -> Path:
    """A checkpoint with one file."""
    path = folder / checkpoints.name_of(step)
    path.mkdir(mode=0o700, parents=True)
    (path / "state.pt").write_bytes(data)
    files = {"state.pt": file_of(path / "state.pt")}
    (path / "manifest.json").write_text(manifest(step, files=files, **changes).text())
    return path


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-000000000", 0),
        ("step-000001200", 1200),
        ("step-1234567890", 1234567890),
        ("step-1200", None),
        ("step-00000120x", None),
        (".saving-step-000001200-attempt-0-00ff", None),
        ("manifest.json", None),
    ],
)
def test_a_name_tells_the_step(name: str, step: int | None) -> None:
    assert checkpoints.step_of(name) == step
    if step is not None:
        assert checkpoints.name_of(step) == name


def test_temporary_names_are_fresh_and_tell_the_attempt(tmp_path: Path) -> None:
    names = [checkpoints.temporary(3, attempt, what) for attempt in (0, 4) for what in ("saving", "old", "gone")]
    assert len({checkpoints.temporary(3, 0) for _ in range(20)}) == 20
    for name in names:
        (tmp_path / name).mkdir()
        assert checkpoints.step_of(name) is None
    assert {path.name for path in checkpoints.leftovers(tmp_path, 3)} == set(names[:3])
    found = {path.name: step for path, step in checkpoints.leftovers(tmp_path, 4).items()}
    assert [found[name] for name in names] == [None, 3, None] * 2


def test_a_damaged_one_is_quarantined_whatever_its_metrics_are_and_its_replacement_is_not(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, 0, Retention(), 0)

    def judged_by_all() -> Manifest:
        found = checkpoints.read(write(tmp_path, 1, metrics={"loss": float("nan")}))
        return pickle.loads(pickle.dumps(found))  # as rank 0 broadcasts it

    judged = judged_by_all()
    shutil.rmtree(tmp_path / checkpoints.name_of(1))
    path = write(tmp_path, 1, metrics={"loss": 0.5})
    assert folder.quarantine(path, ["torn"], judged) == "another one has replaced it"
    shutil.rmtree(path)
    judged = judged_by_all()
    assert folder.quarantine(path, ["torn"], judged).startswith("quarantined as .aside-step-000000001-")


def test_candidates_are_newest_first_and_no_links(tmp_path: Path) -> None:
    for step in (5, 1_000_000_000, 40):
        write(tmp_path, step)
    (tmp_path / "step-000000099").symlink_to(tmp_path / "step-000000005")
    (tmp_path / "step-000000098").touch()
    assert [checkpoints.step_of(path.name) for path in checkpoints.candidates(tmp_path)] == [1_000_000_000, 40, 5]
    assert checkpoints.candidates(tmp_path / "none") == []


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    given = {"identity": {"a": {"b": [1, None]}}, "extra": {"cursor": 2**60}, "metrics": {"loss": 0.1}, "torch": "2.13"}
    path = write(tmp_path, 3, **given)
    read = checkpoints.read(path)
    assert {name: getattr(read, name) for name in given} == given
    assert read.files["state.pt"].size == 4 and read.size == 4


@pytest.mark.parametrize("changed", ["step", "cursor", "identity", "state.pt", "1"])
def test_a_change_in_a_manifest_is_found(tmp_path: Path, changed: str) -> None:
    path = write(tmp_path, 3, extra={"cursor": 1234}, identity={"width": 8})
    text = (path / "manifest.json").read_text()
    other = text.replace(changed, changed[:-1] + chr(ord(changed[-1]) ^ 1), 1)
    assert other != text
    (path / "manifest.json").write_text(other)
    with pytest.raises(Damaged, match=r"manifest\.json"):
        checkpoints.read(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("[1]", "is not the manifest of a checkpoint"),
        ('{"format": "x"}', "is not the manifest of a checkpoint"),
        ('{"format": 1}', "its checksum is wrong"),
    ],
)
def test_what_is_no_manifest_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, 3)
    (path / "manifest.json").write_text(text)
    with pytest.raises(Damaged, match=words):
        checkpoints.read(path)


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    (path / "manifest.json").write_text(manifest(3, files={"../secret": File(1, (0,))}).text())
    with pytest.raises(Damaged, match="outside of the checkpoint"):
        checkpoints.read(path)


def test_a_checkpoint_under_another_name_is_damaged(tmp_path: Path) -> None:
    path = write(tmp_path, 3).rename(tmp_path / "step-000000004")
    with pytest.raises(Damaged, match="is of step 3, not of step-000000004"):
        checkpoints.read(path)


def test_a_newer_format_is_told_before_anything_else(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    (path / "manifest.json").write_text(json.dumps({"format": 7, "launcher": "3.0", "unknown": True}))
    with pytest.raises(Misfit, match=r"has format 7.*use the launcher that wrote it \(3.0\)"):
        checkpoints.read(path)


def test_differences_name_every_key_with_both_values() -> None:
    old = {"a": 1, "b": {"c": 2, "d": [1]}, "gone": None, "same": {"x": 1}}
    new = {"a": 2, "b": {"c": 2, "d": [2]}, "same": {"x": 1}, "new": "long" * 50}
    assert checkpoints.differences(old, new) == [
        "a: 1 in the checkpoint, 2 now",
        "b.d: [1] in the checkpoint, [2] now",
        "gone: null in the checkpoint, not there now",
        f'new: not in the checkpoint, "{"long" * 19}... now',
    ]
    assert checkpoints.differences(old, old) == []


def test_every_byte_is_in_a_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "BLOCK", 10)
    path = write(tmp_path, 1, b"0123456789abcdefghijXYZ")
    found = checkpoints.blocks(checkpoints.read(path))
    assert [(block.offset, block.size) for block in found] == [(0, 10), (10, 10), (20, 3)]
    assert changed(path) == []
    for byte in range(23):
        data = bytearray(b"0123456789abcdefghijXYZ")
        data[byte] ^= 4
        (path / "state.pt").write_bytes(data)
        (problem,) = changed(path)
        assert problem.startswith("state.pt has changed since it was written")
        assert ("(bytes 20 to 22)" in problem) == (byte >= 20)


def test_an_empty_file_is_sound(tmp_path: Path) -> None:
    assert changed(write(tmp_path, 1, b"")) == []


def test_missing_checksums_are_not_right_ones(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    (path / "manifest.json").write_text(manifest(1, files={"state.pt": File(4, ())}).text())
    assert changed(path) == ["state.pt has 0 checksums for 4 bytes"]


def test_ranks_share_all_blocks_evenly() -> None:
    found = [Block("a", 64 * n, 64, n) for n in range(7)] + [Block("b", 0, 3, 9)]
    parts = checkpoints.shares(found, 3)
    assert sorted((block for each in parts for block in each), key=str) == sorted(found, key=str)
    loads = [sum(block.size for block in each) for each in parts]
    assert max(loads) - min(loads) <= 64


def test_the_manifest_of_10_tb_from_32768_ranks_is_within_its_bound() -> None:
    size = (10 << 40) // 32_768  # bytes of each rank
    ranks = range(32_768 - 512, 32_768)  # one of 64
    parts = {f"__{rank}_0.distcp": File(size, (1 << 31,) * (size // checkpoints.BLOCK + 1)) for rank in ranks}
    own = {f"rank-{rank}.pt": File(10_000, (1 << 31,)) for rank in ranks}
    assert 64 * len(manifest(10**9, files={**parts, **own}).text()) < io_bounds.MANIFEST_BYTES // 4


@given(st.lists(st.integers(0, 9)), st.integers(1, 8))
def test_each_size_goes_to_the_first_of_the_parts_with_the_lowest_sum(sizes: list[int], count: int) -> None:
    sums = [0] * count
    for size, part in zip(sizes, checkpoints.spread(sizes, count), strict=True):
        assert part == sums.index(min(sums))
        sums[part] += size


class Counted(int):
    """A size that counts how often a sum of sizes is compared."""

    compared = 0

    def __radd__(self, other: int) -> Counted:
        return Counted(int(self) + int(other))

    def _compare(self, other: Any) -> bool:
        Counted.compared += 1
        return int.__lt__(self, other)

    __add__, __lt__ = __radd__, _compare


def test_ten_times_the_ranks_and_blocks_are_ten_times_the_work() -> None:
    """Up to a logarithm: 160,000 blocks of 10 TB are shared by 32,768 ranks."""

    def work(scale: int) -> int:
        Counted.compared = 0
        assert len(set(checkpoints.spread([Counted(64)] * 500 * scale, 100 * scale))) == 100 * scale
        return Counted.compared

    assert 0 < work(10) <= 15 * work(1)


@pytest.mark.parametrize(
    ("keep", "best", "best_is", "stay"),
    [
        (1, None, "max", {5}),
        (2, None, "max", {5, 4}),
        (9, None, "max", {1, 2, 3, 4, 5}),
        (1, "accuracy", "max", {5, 2}),
        (1, "accuracy", "min", {5, 1}),
        (1, "unknown", "max", {5}),
        (1, "ties", "max", {5, 3}),
    ],
)
def test_what_is_kept(keep: int, best: str | None, best_is: str, stay: set[int]) -> None:
    accuracies = [0.1, 0.9, 0.5, float("nan"), "high"]
    ties = [1, 2, 2, 1, None]
    known = [
        manifest(step, metrics={"accuracy": accuracy, "ties": tie})
        for step, (accuracy, tie) in enumerate(zip(accuracies, ties, strict=True), 1)
    ]
    paths = {Path(str(each.step)): each for each in known}
    gone = Retention(keep, best, best_is).surplus(paths, known[-1])
    assert {int(str(path)) for path in paths.keys() - gone} == stay


def test_the_newest_step_is_that_of_the_newest_sound_one(tmp_path: Path) -> None:
    assert checkpoints.newest_step(tmp_path / "none") is None
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    (tmp_path / "step-000000004" / "state.pt").unlink()
    (tmp_path / "step-000000003" / "manifest.json").unlink()
    assert checkpoints.newest_step(tmp_path) == 2
    assert [manifest.step for manifest in checkpoints.sound(tmp_path).values()] == [2, 1]


def test_errors_are_of_one_family() -> None:
    assert all(issubclass(kind, CheckpointError) for kind in (Damaged, Misfit, checkpoints.SaveFailed))


def test_the_format_needs_no_torch() -> None:
    code = "import sys, launcher.checkpoint.format; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_layout_of_a_manifest_does_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    expected, file = checkpoints.read(path), path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    assert checkpoints.read(path) == expected


@pytest.mark.parametrize("before", ("require_private", "read"))
def test_a_checkpoint_that_a_training_removes_while_it_is_listed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    tmp_path.chmod(0o700)
    newest, old = write(tmp_path, 2), write(tmp_path, 1)
    owner = CheckpointFolder if before == "require_private" else checkpoints
    real = getattr(owner, before)

    def removed_first(*arguments: Any) -> Any:
        if old in arguments and old.exists():
            shutil.rmtree(old)
        return real(*arguments)

    monkeypatch.setattr(owner, before, removed_first)
    known, wrong = CheckpointFolder(tmp_path, 0, Retention(), 0).known()
    assert ([path for path, _ in known], wrong, old.exists()) == ([newest], {}, False)


def test_ten_times_the_checkpoints_are_ten_times_the_work_to_list_and_to_remove(tmp_path: Path) -> None:
    def work(count: int) -> tuple[int, int]:
        path, keep = tmp_path / str(count), Retention(keep=count // 10, best="loss", best_is="min")
        path.mkdir(mode=0o700)
        for step in range(count):
            write(path, step, lineage="ours", sequence=step, metrics={"loss": float(step)})
        folder, newest = CheckpointFolder(path, 0, keep, 0), checkpoints.read(path / checkpoints.name_of(count - 1))
        listed = operations(folder.known)
        removed = operations(lambda: folder._remove_surplus(newest, None, lambda: None))
        assert len(folder.known()[0]) == count // 10 + 1  # and the best
        return listed, removed

    few, many = work(20), work(200)
    assert all(0 < more < 15 * less for less, more in zip(few, many, strict=True))
