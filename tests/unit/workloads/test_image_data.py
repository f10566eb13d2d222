"""Data sets are found, verified and fetched; whatever is wrong with one is told with the file and the cure."""

from __future__ import annotations

import gzip
import hashlib
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launcher.errors import UnavailableError
from launcher.files import retried_reads
from workloads import image_data
from workloads.image_data import Dataset, DatasetError, IdxFile, find

CONTENT = {
    "train-images-idx3-ubyte": struct.pack(">4I", 0x803, 6, 2, 2) + bytes(range(24)),
    "train-labels-idx1-ubyte": struct.pack(">2I", 0x801, 6) + bytes([0, 1, 2, 0, 1, 2]),
    "t10k-images-idx3-ubyte": struct.pack(">4I", 0x803, 2, 2, 2) + bytes(range(8)),
    "t10k-labels-idx1-ubyte": struct.pack(">2I", 0x801, 2) + bytes([2, 1]),
}
SHAPES = ((6, 2, 2), (6,), (2, 2, 2), (2,))
PACKED = {name: gzip.compress(content, mtime=0) for name, content in CONTENT.items()}
CURE = "python -m launcher data fetch tiny"


def made_up(name: str) -> Dataset:
    """A data set of six images and two, packed a little differently for every name."""
    files = []
    for shape, (file, content) in zip(SHAPES, PACKED.items(), strict=True):
        packed = content + gzip.compress(b"", mtime=len(name))
        files.append(IdxFile(file, (hashlib.sha256(packed).hexdigest(),), len(packed), shape))
    return Dataset(name, name, tuple(files), (), 0.9, 1, classes=3, subfolders=(f"{name.upper()}/raw",))


def packed(name: str, file: str) -> bytes:
    return PACKED[file] + gzip.compress(b"", mtime=len(name))


def write(folder: Path, name: str, plain: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in CONTENT.items():
        if plain:
            (folder / file).write_bytes(content)
        else:
            (folder / f"{file}.gz").write_bytes(packed(name, file))
    return folder


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Dataset]:
    """Two made-up data sets come first, and nothing that this machine may have installed is looked at."""
    table = {"tiny": made_up("tiny"), "small": made_up("small"), "digits": image_data.DIGITS}
    monkeypatch.setattr(image_data, "KNOWN", table)
    monkeypatch.setattr(image_data, "PAUSE", 0)
    return table


def test_the_real_table_is_complete() -> None:
    for dataset in (image_data.MNIST, image_data.FASHION, image_data.DIGITS):
        assert [file.name for file in dataset.files] == list(CONTENT)
        assert 0.5 < dataset.accuracy < 1 and dataset.epochs > 0
        assert all(re.fullmatch("[0-9a-f]{64}", sha256) for file in dataset.files for sha256 in file.sha256)
        assert len({sha256 for file in dataset.files for sha256 in file.sha256}) >= 4
        assert dataset.mirrors or dataset is image_data.DIGITS


def test_the_digits_are_part_of_the_launcher(tmp_path: Path) -> None:
    found = find("digits", tmp_path)
    assert (found.name, found.how, len(found.files)) == ("digits", "part of the launcher", 4)
    assert found.dataset is image_data.DIGITS
    assert find("auto", tmp_path) == found == image_data.DIGITS.fetch(tmp_path)


def test_the_login_node_needs_no_torch() -> None:
    code = "import sys, workloads.image_data as d; d.find('digits'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(image_data.__file__).parent.parent)


@pytest.mark.parametrize("plain", [False, True], ids=["packed", "plain"])
@pytest.mark.parametrize("below", ["tiny", "TINY/raw"])
def test_a_data_set_is_found_below_the_data_folder(tmp_path: Path, below: str, plain: bool) -> None:
    folder = write(tmp_path / below, "tiny", plain)
    for name in ("tiny", "auto"):
        found = find(name, tmp_path)
        assert (found.name, found.dir, found.how) == ("tiny", folder, "in the data folder")
        assert all(path.is_file() for path in found.files)


def test_a_named_data_set_may_lie_in_the_data_folder_itself(tmp_path: Path) -> None:
    write(tmp_path, "tiny")
    assert find("tiny", tmp_path).dir == tmp_path
    assert find("auto", tmp_path).name == "digits"  # it could be any of them


def test_auto_takes_the_first_that_is_there(tmp_path: Path) -> None:
    assert find("auto", tmp_path).name == "digits"
    write(tmp_path / "small", "small")
    assert find("auto", tmp_path).name == "small"
    write(tmp_path / "tiny", "tiny")
    assert find("auto", tmp_path).name == "tiny"


def test_a_system_package_is_found(tmp_path: Path, known: dict[str, Dataset]) -> None:
    folder = write(tmp_path / "usr", "tiny")
    known["tiny"] = replace(known["tiny"], folders=((str(folder), "the package tiny"),))
    assert find("auto", tmp_path / "nothing").how == "the package tiny"


def test_what_is_not_there_is_told_with_the_command_that_gets_it(tmp_path: Path) -> None:
    assert image_data.KNOWN["tiny"].find(tmp_path) is None
    with pytest.raises(DatasetError, match="data set tiny is not on this machine") as told:
        find("tiny", tmp_path)
    assert f"{CURE} --data-dir {tmp_path}" in str(told.value)
    with pytest.raises(DatasetError, match=r"Did you mean tiny\?"):
        find("tinny")


def flip(content: bytes) -> bytes:
    return content[:30] + bytes([content[30] ^ 1]) + content[31:]


FAULTS: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "flipped bit": ("train-images-idx3-ubyte.gz", flip, "is damaged: its SHA-256 is"),
    "truncated": ("t10k-images-idx3-ubyte.gz", lambda content: content[:-5], "is damaged: its SHA-256 is"),
    "empty": ("t10k-labels-idx1-ubyte.gz", lambda content: b"", "is damaged"),
    "of another set": (
        "t10k-labels-idx1-ubyte.gz",
        lambda content: packed("small", "t10k-labels-idx1-ubyte"),
        "belongs to small, not to tiny",
    ),
    "truncated plain": ("train-images-idx3-ubyte", lambda content: content[:-1], "has 39 bytes instead of 40"),
    "longer plain": ("train-images-idx3-ubyte", lambda content: content + b"x", "has 41 bytes instead of 40"),
    "no IDX": ("train-images-idx3-ubyte", lambda content: b"<html>" * 9, "is not an IDX file of bytes"),
    "short header": ("train-images-idx3-ubyte", lambda content: content[:9], "ends within its header"),
    "wrong count": ("train-labels-idx1-ubyte", lambda content: content[:7] + b"\5" + content[8:], r"the shape \(5,\)"),
    "wrong label": ("train-labels-idx1-ubyte", lambda content: content[:-1] + b"\3", "has a label 3, .* from 0 to 2"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["tiny", "auto"])
def test_a_damaged_file_is_named(tmp_path: Path, fault: str, name: str) -> None:
    file, damage, text = FAULTS[fault]
    path = write(tmp_path / "tiny", "tiny", plain=not file.endswith(".gz")) / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DatasetError, match=text) as told:
        find(name, tmp_path)
    assert str(path) in str(told.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (write(tmp_path / "tiny", "tiny") / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DatasetError, match=f"t10k-labels-idx1-ubyte.gz is missing. Run: {CURE}"):
        find("auto", tmp_path)


class Mirror:
    """An HTTP server with the made-up data; `answers` maps a path to what it sends instead, one after the other."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, list[tuple[int, bytes, int]]] = {}  # status, body, promised length
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append(self.path)
                file = self.path.rsplit("/", 1)[1].removesuffix(".gz")
                body = packed("tiny", file)
                status, body, length = (mirror.answers.get(self.path) or [(200, body, len(body))]).pop(0)
                self.send_response(status)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    mirror = Mirror()
    threading.Thread(target=mirror.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


WHOLE = sorted(f"{name}.gz" for name in CONTENT)
IMAGES = "train-images-idx3-ubyte"


def test_fetch_downloads_what_is_missing(tmp_path: Path, mirror: Mirror) -> None:
    seen: list[tuple[str, int, int]] = []
    found = image_data.KNOWN["tiny"].fetch(tmp_path, [f"{mirror.url}/a/"], lambda *step: seen.append(step))
    assert found.dir == tmp_path / "tiny"
    assert names_in(found.dir) == WHOLE
    assert find("tiny", tmp_path).files == found.files
    assert seen[0] == (f"{IMAGES}.gz", len(packed("tiny", IMAGES)), len(packed("tiny", IMAGES)))
    found.files[1].write_bytes(b"damaged")
    mirror.asked.clear()
    image_data.KNOWN["tiny"].fetch(tmp_path, [mirror.url])
    assert mirror.asked == ["/train-labels-idx1-ubyte.gz"]


GOOD = packed("tiny", IMAGES)
SETBACKS: dict[str, tuple[list[tuple[int, bytes, int]], list[str]]] = {
    "absent": ([(404, b"", 0)], ["/bad", "/good"]),
    "wrong file": ([(200, flip(GOOD), len(GOOD))], ["/bad", "/good"]),
    "endless": ([(200, bytes(1 << 20), 1 << 20)], ["/bad", "/good"]),
    "broken off": ([(200, GOOD[:20], len(GOOD))], ["/bad", "/good"]),
    "overloaded": ([(503, b"", 0)], ["/bad", "/good"]),
}


@pytest.mark.parametrize("setback", SETBACKS)
def test_fetch_turns_to_the_next_mirror(tmp_path: Path, mirror: Mirror, setback: str) -> None:
    answers, asked = SETBACKS[setback]
    mirror.answers[f"/bad/{IMAGES}.gz"] = list(answers)
    image_data.KNOWN["tiny"].fetch(tmp_path, [f"{mirror.url}/bad", f"{mirror.url}/good"])
    assert [path.removesuffix(f"/{IMAGES}.gz") for path in mirror.asked if IMAGES in path] == asked
    assert names_in(tmp_path / "tiny") == WHOLE


def test_fetch_asks_a_lame_mirror_again(tmp_path: Path, mirror: Mirror) -> None:
    mirror.answers[f"/{IMAGES}.gz"] = [(503, b"", 0), (200, GOOD, len(GOOD))]
    assert image_data.KNOWN["tiny"].fetch(tmp_path, [mirror.url]).name == "tiny"


def test_fetch_tells_what_every_mirror_said(tmp_path: Path, mirror: Mirror) -> None:
    mirror.answers[f"/a/{IMAGES}.gz"] = [(404, b"", 0)]
    mirror.answers[f"/b/{IMAGES}.gz"] = [(200, b"no data", 7)] * 2
    mirrors = [f"{mirror.url}/a", f"{mirror.url}/b", "http://127.0.0.1:9/c", "gopher"]
    with pytest.raises(DatasetError) as told:
        image_data.KNOWN["tiny"].fetch(tmp_path, mirrors)
    for part in ("/a: HTTP 404", "/b: broke off after 7 of", "/c: ", "Connection refused", "gopher: ", f"{IMAGES}.gz"):
        assert part in str(told.value)
    assert names_in(tmp_path / "tiny") == []


def test_two_fetches_at_once_do_no_harm(tmp_path: Path, mirror: Mirror) -> None:
    errors: list[BaseException] = []

    def get() -> None:
        try:
            image_data.KNOWN["tiny"].fetch(tmp_path, [mirror.url])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=get) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert names_in(tmp_path / "tiny") == WHOLE


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="cannot be written"):
        image_data.KNOWN["tiny"].fetch(tmp_path / "file", ["http://127.0.0.1:9"])


@pytest.mark.parametrize("plain", [False, True])
def test_a_file_server_that_does_not_answer_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    path = write(tmp_path / "tiny", "tiny", plain) / ("t10k-labels-idx1-ubyte" + ".gz" * (not plain))
    path.unlink()
    path.symlink_to("/proc/self/mem")  # whose first page cannot be read
    monkeypatch.setattr(retried_reads, "IN_A_COMMAND", 0.0)
    with pytest.raises(UnavailableError, match=f"{path} cannot be read now: Input/output error"):
        find("auto", tmp_path)
