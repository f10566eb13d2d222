"""Finds, verifies and downloads the data sets that ddp_mnist can train on; KNOWN is the table of them.

A data set is four IDX files (training and test images and labels), each either gzipped as published or unpacked.
Gzipped files are verified by their SHA-256, unpacked ones by header, length and range of labels. Nothing here
imports torch, since the login node uses this before a submission.
"""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from launcher.errors import ConfigError, near, program
from launcher.fast_dataclasses import Struct
from launcher.files import safe_io
from launcher.files.retried_reads import Unavailable, exists, retry_read, unwrap, unwrap_or
from launcher.paths import user_data_dir

AUTO = "auto"
BUNDLED = "part of the launcher"
TIMEOUT = 30  # seconds without data after which a download from a mirror fails
ROUNDS = 2  # tries of each mirror
PAUSE = 1  # seconds between two rounds
_BLOCK = 1 << 18

Progress = Callable[[str, int, int], None]  # file name, bytes so far, bytes in all


class DatasetError(ConfigError):
    """A data set is missing, damaged, or could not be fetched; the text names the file and what to do."""


class IdxFile(Struct):
    """One of a data set's four files."""

    name: str  # file name without `.gz`
    # accepted SHA-256 sums of the gzipped file: that of the original, and those of other publishers
    sha256: tuple[str, ...]
    size: int  # bytes of the original gzipped file
    shape: tuple[int, ...]  # (samples, rows, columns) of images, (samples,) of labels

    @property
    def length(self) -> int:
        """Size of the unpacked file in bytes: the header, and one byte per value."""
        return 4 + 4 * len(self.shape) + math.prod(self.shape)


class Dataset(Struct):
    """A known data set."""

    name: str  # name of the data set in a config
    title: str  # description for users
    files: tuple[IdxFile, ...]  # training images, training labels, test images and test labels
    mirrors: tuple[str, ...]  # base URLs of the files; none if the data set is bundled
    accuracy: float  # test accuracy (0 to 1) that training with the default settings reaches in `epochs` epochs
    epochs: int  # default number of epochs
    classes: int = 10  # number of different labels
    # directories into which system packages (or the launcher itself) install it, each with the package's name
    folders: tuple[tuple[str, str], ...] = ()
    subfolders: tuple[str, ...] = ()  # directories below a data directory in which other programs keep it

    def find(self, data_dir: str | Path | None, *, named: bool = True) -> Found | None:
        """Finds and verifies the data set; None: none of its files is there. data_dir: None: the default one.

        named: whether the user has named it: only then do files in `data_dir` itself count, since those of mnist and
        fashion-mnist have the same names.
        """
        base, places = _base(data_dir), {Path(path): how for path, how in self.folders}
        below = [(base / sub, "in the data folder") for sub in (self.name, *self.subfolders)]
        own = [(base, places.get(base, "in the data folder"))] if named else []
        for folder, how in (*below, *own, *places.items()):
            if any(_present(file, folder) for file in self.files):
                return _verified(self, folder, how, data_dir)
        return None

    def fetch(
        self, data_dir: str | Path | None, mirrors: Sequence[str] | None = None, progress: Progress | None = None
    ) -> Found:
        """Downloads missing files into `data_dir`/`name`, and returns the data set verified; raises DatasetError.

        Each file is written under a temporary name, verified and renamed, so an interrupted or a simultaneous second
        download does no harm. A bundled data set is only found.
        mirrors: base URLs (`http`, `https` or `file`), tried in turn; None: those of the data set.
        """
        if not self.mirrors and mirrors is None:
            return find(self.name, data_dir)
        folder = _base(data_dir) / self.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in self.files:
                target = folder / f"{file.name}.gz"
                if not (target.is_file() and safe_io.digest_of(target) in file.sha256):
                    _download(file, target, self.mirrors if mirrors is None else mirrors, progress)
        except OSError as error:
            raise DatasetError(f"{folder} cannot be written: {error}. Choose another folder for the data") from error
        return _verified(self, folder, "just fetched", data_dir)


class Found(Struct):
    """A verified data set on this machine."""

    name: str  # name of the data set
    dir: Path  # directory with its files
    how: str  # where it was found, as text
    files: tuple[Path, ...]  # paths of the files, in the order of `Dataset.files`

    @property
    def dataset(self) -> Dataset:
        """The data set's entry in KNOWN."""
        return KNOWN[self.name]


def _four(side: int, train: int, test: int, sums: Sequence[tuple[int, tuple[str, ...]]]) -> tuple[IdxFile, ...]:
    parts = (("train", "images", train), ("train", "labels", train), ("t10k", "images", test), ("t10k", "labels", test))
    return tuple(
        IdxFile(
            name=f"{part}-{kind}-idx{3 if kind == 'images' else 1}-ubyte",
            sha256=accepted,
            size=size,
            shape=(count, side, side) if kind == "images" else (count,),
        )
        for (part, kind, count), (size, accepted) in zip(parts, sums, strict=True)
    )


# fmt: off
MNIST = Dataset(
    name="mnist",
    title="MNIST: 70,000 handwritten digits, 28 x 28",
    files=_four(28, 60_000, 10_000, (
        (9_912_422, ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",)),
        (28_881, ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",)),
        (1_648_877, ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",)),
        (4_542, ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",)),
    )),
    mirrors=(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
    ),
    accuracy=0.97,
    epochs=5,
    subfolders=("MNIST/raw",),
)
FASHION = Dataset(
    name="fashion-mnist",
    title="Fashion-MNIST: 70,000 articles of clothing, 28 x 28",
    # The second sums are of Debian's files: the same data, packed again without file names in the gzip headers.
    files=_four(28, 60_000, 10_000, (
        (26_421_880, ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                      "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7")),
        (29_515, ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                  "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056")),
        (4_422_102, ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                     "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa")),
        (5_148, ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                 "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05")),
    )),
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    accuracy=0.87,
    epochs=5,
    folders=(("/usr/share/datasets/fashion-mnist", "the Debian package dataset-fashion-mnist"),),
    subfolders=("FashionMNIST/raw",),
)
DIGITS = Dataset(
    name="digits",
    title="UCI digits: 1,797 handwritten digits, 8 x 8, part of the launcher",
    files=_four(8, 1437, 360, (
        (35_674, ("ff83eaac92e88cfe8c9eef547ee694096f29cfb982a7f29baf184de69019198c",)),
        (744, ("4e02f77ccd75b255d028b5b7d642ba83855e7c058c9333bb3f0f8d4d70fdfcb5",)),
        (9_221, ("d0a10b88ff8929f837e2d75e1c69947ac1accdf2e25c64d379c14fc373300025",)),
        (206, ("27eb7cb10e7dd4a90c7b0f689ba4e86c9e5832379d8901c6d42581fd91c0c103",)),
    )),
    mirrors=(),
    accuracy=0.97,
    epochs=30,
    folders=((str(Path(__file__).resolve().parent / "digits"), BUNDLED),),
)
# fmt: on
KNOWN: dict[str, Dataset] = {dataset.name: dataset for dataset in (MNIST, FASHION, DIGITS)}  # `auto` takes the first


def find(name: str, data_dir: str | Path | None = None) -> Found:
    """Finds and verifies a data set; `auto`: the first of mnist, fashion-mnist and digits that exists.

    It searches below `data_dir`, in `data_dir` itself unless the name is `auto`, and where system packages install. A
    damaged data set is a DatasetError even with `auto`: the user does not expect training on another one.
    """
    names = (AUTO, *KNOWN)
    if name not in names:
        raise DatasetError(f"There is no data set {name!r}; known are {', '.join(names)}.{near(name, names)}")
    for dataset in KNOWN.values() if name == AUTO else [KNOWN[name]]:
        if found := dataset.find(data_dir, named=name != AUTO):
            return found
    if name == AUTO:
        line = _fetch_line(MNIST.name, data_dir)
        raise DatasetError(f"None of the data sets {', '.join(KNOWN)} is on this machine. Get one with: {line}")
    raise DatasetError(
        f"The data set {name} is not on this machine (looked below {_base(data_dir)}). "
        f"Get it with: {_fetch_line(name, data_dir)}"
    )


def read_header(head: bytes, path: Path) -> tuple[int, ...]:
    """Returns (samples, rows, columns) or (samples,) of the first 16 bytes of an IDX file; raises DatasetError."""
    if len(head) < 4 or head[:3] != b"\x00\x00\x08" or head[3] not in (1, 3):
        raise DatasetError(f"{path} is not an IDX file of bytes: it starts with {head[:4].hex() or 'nothing'}")
    dims = head[3]
    if len(head) < 4 + 4 * dims:
        raise DatasetError(f"{path} ends within its header ({len(head)} bytes)")
    return struct.unpack(f">{dims}I", head[4 : 4 + 4 * dims])


def _base(data_dir: str | Path | None) -> Path:
    return Path(data_dir).expanduser() if data_dir else user_data_dir() / "datasets"  # with a subdirectory of each


def _fetch_line(name: str, data_dir: str | Path | None) -> str:
    return f"{program()} data fetch {name}" + (f" --data-dir {shlex.quote(str(data_dir))}" if data_dir else "")


def _present(file: IdxFile, folder: Path) -> Path | None:
    for path in (folder / f"{file.name}.gz", folder / file.name):  # gzipped first, which a checksum verifies
        found = exists(path)
        if isinstance(found, Unavailable) and not found.is_transient:  # access denied: counts as missing
            continue
        if unwrap(found):
            return path
    return None


def _verified(dataset: Dataset, folder: Path, how: str, data_dir: str | Path | None) -> Found:
    cure = f"Delete it and run: {_fetch_line(dataset.name, data_dir)}"
    bundled = any(how == BUNDLED for _, how in dataset.folders)
    if bundled:
        cure = f"Delete {folder}: the launcher contains a copy"
    paths = []
    for file in dataset.files:
        path = _present(file, folder)
        if path is None:
            raise DatasetError(
                f"{folder} contains only a part of {dataset.name}: {file.name}.gz is missing. "
                + (f"Run: {_fetch_line(dataset.name, data_dir)}" if not bundled else cure)
            )
        check = partial(_packed_fault if path.suffix == ".gz" else _plain_fault, file, path, dataset)
        if wrong := unwrap_or(DatasetError, retry_read(check, path)):
            raise DatasetError(f"{path} {wrong}. {cure}")
        paths.append(path)
    return Found(dataset.name, folder, how, tuple(paths))


def _packed_fault(file: IdxFile, path: Path, dataset: Dataset) -> str:
    found = safe_io.digest_of(path)
    if found in file.sha256:
        return ""
    for other in KNOWN.values():
        if any(found in theirs.sha256 for theirs in other.files):
            return f"belongs to {other.name}, not to {dataset.name}"
    return f"is damaged: its SHA-256 is {found}, not {file.sha256[0]} ({path.stat().st_size} bytes of {file.size})"


def _plain_fault(file: IdxFile, path: Path, dataset: Dataset) -> str:
    with path.open("rb") as stream:
        shape = read_header(stream.read(16), path)
        if shape != file.shape:
            return f"has the shape {shape}, and {dataset.name} has {file.shape}"
        if (length := path.stat().st_size) != file.length:
            return f"has {length} bytes instead of {file.length}"
        if len(shape) == 1:
            stream.seek(8)
            if (highest := max(stream.read())) >= dataset.classes:
                return f"has a label {highest}, and labels go from 0 to {dataset.classes - 1}"
    return ""


class _UselessError(Exception):
    """A mirror failed in a way that a second try would not change."""


def _download(file: IdxFile, target: Path, mirrors: Sequence[str], progress: Progress | None) -> None:
    import ssl
    from http.client import HTTPException
    from urllib.error import URLError

    failures: dict[str, str] = {}
    candidates = list(dict.fromkeys(mirror.rstrip("/") for mirror in mirrors))
    for attempt in range(ROUNDS):
        if attempt and candidates:
            time.sleep(PAUSE)
        for mirror in tuple(candidates):
            try:
                return _download_from(f"{mirror}/{target.name}", file, target, progress)
            except _UselessError as error:
                candidates.remove(mirror)
                failures[mirror] = str(error)
            except (URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
                failures[mirror] = str(getattr(error, "reason", error)) or type(error).__name__
    tried = "; ".join(f"{mirror}: {reason}" for mirror, reason in failures.items()) or "there are no mirrors"
    raise DatasetError(f"{target.name} could not be fetched ({tried}). Copy it to {target} yourself, or name a mirror")


def _download_from(url: str, file: IdxFile, target: Path, progress: Progress | None) -> None:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    digest = hashlib.sha256()
    done = 0
    try:
        response = urlopen(url, timeout=TIMEOUT)  # noqa: S310 - a file: mirror is meant to work
    except HTTPError as error:
        if error.code in (408, 429) or error.code >= 500:
            raise
        raise _UselessError(f"HTTP {error.code} {error.reason}") from error
    except ValueError as error:
        raise _UselessError(str(error)) from error
    temporary = target.with_name(safe_io.temporary_name(target.name))
    with response, _removed(temporary), temporary.open("xb") as stream:
        while block := response.read(_BLOCK):
            done += len(block)
            if done > file.size + (1 << 16):
                raise _UselessError(f"sends more than the {file.size} bytes of the file")
            digest.update(block)
            stream.write(block)
            if progress:
                progress(target.name, done, file.size)
        if digest.hexdigest() not in file.sha256:
            if done < file.size:
                raise ConnectionError(f"broke off after {done} of {file.size} bytes")
            raise _UselessError(f"sent {done} bytes with the SHA-256 {digest.hexdigest()}, not {file.sha256[0]}")
        stream.flush()
        os.fsync(stream.fileno())
        temporary.replace(target)


@contextmanager
def _removed(temporary: Path) -> Iterator[None]:
    try:
        yield
    finally:
        temporary.unlink(missing_ok=True)
