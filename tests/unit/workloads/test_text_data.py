"""Texts are found, read, cut into windows; what is wrong with one, or with a key, is told with the key and the cure."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.schema import Backend, FSDPLm
from launcher.errors import ConfigError, UnavailableError
from launcher.files import retried_reads
from workloads import fsdp, text_data
from workloads.fsdp import Part
from workloads.text_data import Text, TextError

CONFIG = FSDPLm(name="fsdp_lm", entry="", seed=0)


def test_the_login_node_needs_no_torch() -> None:
    code = "import sys, workloads.text_data as t; t.find('shakespeare'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(text_data.__file__).parent.parent)


def test_the_text_that_ships_is_whole() -> None:
    found = text_data.find("shakespeare")
    assert found.length == 499_949
    assert text_data.read(found).startswith(b"First Citizen:\nBefore we proceed")
    text_data.check(CONFIG, found)


def test_a_damaged_shipped_text_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "shakespeare.txt.gz"
    other.write_bytes(gzip.compress(b"something else"))
    monkeypatch.setattr(text_data, "SHIPPED_FILE", other)
    with pytest.raises(TextError, match=r"is damaged: .* Install the launcher again"):
        text_data.read(text_data.find("shakespeare"))


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"first"))
    (tmp_path / "c.md").write_bytes(b"no text")
    (tmp_path / "d.txt").mkdir()
    found = text_data.find(str(tmp_path))
    assert (found.name, found.length) == (str(tmp_path), 11)
    assert text_data.read(found) == b"firstsecond"


def test_a_file_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").write_text("é")
    monkeypatch.chdir(tmp_path)
    found = text_data.find("notes")
    assert found == Text(str(tmp_path / "notes"), (tmp_path / "notes",), 2)


def test_what_is_wrong_with_a_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"workload.text=.*nowhere: .* is not there: name a text file"):
        text_data.find(str(tmp_path / "nowhere"))
    with pytest.raises(TextError, match=r"the folder has no \*\.txt"):
        text_data.find(str(tmp_path))
    torn = tmp_path / "torn.txt.gz"
    torn.write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(TextError, match=r"torn\.txt\.gz cannot be unpacked"):
        text_data.find(str(torn))
    torn.write_bytes(b"plain")
    with pytest.raises(TextError, match=r"torn\.txt\.gz cannot be unpacked"):
        text_data.find(str(torn))
    with pytest.raises(TextError, match="gone is not there any more"):
        text_data.read(Text("x", (tmp_path / "gone",), 1))


def test_a_file_server_that_does_not_answer_is_no_wrong_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retried_reads, "IN_A_COMMAND", 0.0)
    with pytest.raises(UnavailableError, match="/proc/self/mem cannot be read now: Input/output error"):
        text_data.read(Text("x", (Path("/proc/self/mem"),), 1))


def test_a_text_that_may_not_be_read_is_refused_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that would be tried again would be refused again, up to resume.max_attempts times."""
    (tmp_path / "a.txt").symlink_to("x" * 300)  # a name that no file can have
    with pytest.raises(TextError, match=r"workload\.text=.*a\.txt cannot be read: File name too long"):
        text_data.find(str(tmp_path))

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(TextError, match=r"workload\.text=x: .*Permission denied"):
        text_data.read(Text("x", (tmp_path / "b.txt",), 1))


def test_a_text_that_changed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"1234")
    found = text_data.find(str(path))
    path.write_bytes(b"12345")
    with pytest.raises(TextError, match="had 4 bytes, and now has 5"):
        text_data.read(found)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"width": 130}, "width=130 cannot be divided into workload.heads=4 equal parts: use workload.width=132"),
        ({"dropout": 1.0}, "workload.dropout=1.0: it must be from 0 to less than 1"),
        ({"warm_up": 2.0}, "workload.warm_up=2.0: it must be a part of all steps, 0 to 1"),
        ({"clip": math.inf}, "workload.clip=inf: it must be a finite number"),
        ({"backend": Backend.mpi}, "workload.backend=mpi"),
        ({"context": 600}, "has 1000 bytes, too few for workload.context=600, for training and for validation"),
        ({"context": 100}, "of which 8 windows of workload.context=100 are trained on, fewer than workload.batch_size"),
        ({"context": 100}, "batch_size=8"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(changes: dict[str, object], told: str) -> None:
    short = Text("here.txt", (), 1000)
    text_data.check(dataclasses.replace(CONFIG, context=20), short)
    with pytest.raises(ConfigError) as refused:
        text_data.check(dataclasses.replace(CONFIG, **{"context": 20, **changes}), short)  # type: ignore[arg-type]
    assert told in str(refused.value)


def test_invariant_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.invariant=true is not offered by fsdp_lm"):
        text_data.check(CONFIG, text_data.find("shakespeare"), invariant=True)


@given(length=st.integers(0, 5000), context=st.integers(1, 300))
def test_as_many_windows_as_fit(length: int, context: int) -> None:
    windows = text_data.windows(length, context)
    assert windows * context + 1 <= max(length, 1)
    assert (windows + 1) * context + 1 > length


@given(length=st.integers(2, 5000), context=st.integers(1, 300))
def test_a_tenth_is_for_validation_and_at_least_one_window(length: int, context: int) -> None:
    rest = length - text_data.split(length, context)
    assert text_data.windows(rest, context) >= 1
    assert rest == length // 10 or rest == context + 1 > length / 10


def test_a_window_is_followed_by_the_next_byte() -> None:
    part = Part(torch.arange(11, dtype=torch.uint8), context=3)
    assert len(part) == 3
    inputs, targets = part.batch(torch.tensor([2, 0]))
    assert inputs.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert targets.tolist() == [[7, 8, 9], [1, 2, 3]]
    assert inputs.dtype == targets.dtype == torch.int64
    assert [list(each.shape) for each in part.batch(torch.zeros(0, dtype=torch.int64))] == [[0, 3], [0, 3]]


def test_a_text_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(200)))
    corpus = fsdp.load_text(text_data.find(str(path)), context=4)
    assert torch.cat([corpus.train.tokens, corpus.validation.tokens]).tolist() == list(range(200))
    assert len(corpus.validation.tokens) == 20
    assert corpus.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_a_model_writes_cannot_reach_the_terminal() -> None:
    assert fsdp.printable(b"a\x1b[2J\tb\n\xc3\xa9\xff\r") == "a�[2J�b\né��"
