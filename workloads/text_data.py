"""Finds and reads the texts that fsdp_lm trains on, and checks the workload's settings against their length.

A text is read as bytes, and each byte is a token, so any file in any language can be used. Nothing here imports torch,
since the login node uses this before a submission.
"""

from __future__ import annotations

import gzip
import hashlib
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from launcher.errors import ConfigError
from launcher.fast_dataclasses import Struct
from launcher.files.retried_reads import list_names, retry_read, unwrap_or

if TYPE_CHECKING:
    from launcher.config.schema import FSDPLm

T = TypeVar("T")
SHIPPED = "shakespeare"
SHIPPED_FILE = Path(__file__).resolve().parent / "shakespeare" / "shakespeare.txt.gz"
SHIPPED_SHA256 = "ec01df44e82107018c4403dac8155c9308b1789812529021ad7fe5788f9afaa1"  # of the text, unpacked
SHIPPED_LENGTH = 499_949  # its bytes; they need not be unpacked to be counted
VALIDATION = 0.1  # share of the text, at its end, that is used for validation
ENDINGS = (".txt", ".txt.gz")


class TextError(ConfigError):
    """A text is missing, damaged or too short; the message names the key and what to do."""


class Text(Struct):
    """A text that was found."""

    name: str  # `shakespeare`, or the path of the file or directory
    files: tuple[Path, ...]  # its files, in reading order
    length: int  # bytes of all files, unpacked


def find(text: str) -> Text:
    """Finds `shakespeare`, a file, or a directory: all its `*.txt` and `*.txt.gz`, sorted by name; raises TextError."""
    if text == SHIPPED:
        return Text(SHIPPED, (SHIPPED_FILE,), SHIPPED_LENGTH)
    path = Path(text).expanduser().absolute()
    where = f"workload.text={text}: "
    status = unwrap_or(TextError, retry_read(path.stat, path), where)
    if status is None:
        raise TextError(f"{where}{path} is not there: name a text file, a folder of *.txt, or {SHIPPED}")
    files: tuple[Path, ...] = (path,)
    if stat.S_ISDIR(status.st_mode):
        names = sorted(name for name in unwrap_or(TextError, list_names(path), where) or () if name.endswith(ENDINGS))
        kinds = {file: unwrap_or(TextError, retry_read(file.stat, file), where) for file in map(path.joinpath, names)}
        files = tuple(file for file, found in kinds.items() if found is not None and stat.S_ISREG(found.st_mode))
        if not files:
            raise TextError(f"workload.text={text}: the folder has no *.txt: name a file, or another folder")
    return Text(str(path), files, sum(_unpacked(file, text, lambda stream: stream.seek(0, 2)) for file in files))


def read(text: Text) -> bytes:
    """Returns the bytes of a whole text; raises TextError, also if it has changed since it was found."""
    whole = b"".join(_unpacked(file, text.name, lambda stream: stream.read()) for file in text.files)
    if text.name == SHIPPED and (found := hashlib.sha256(whole).hexdigest()) != SHIPPED_SHA256:
        raise TextError(f"{SHIPPED_FILE} is damaged: its text has the SHA-256 {found}. Install the launcher again")
    if len(whole) != text.length:
        raise TextError(f"workload.text={text.name} had {text.length} bytes, and now has {len(whole)}: it has changed")
    return whole


def split(length: int, context: int) -> int:
    """Returns the number of first bytes of a text that are for training; the rest is at least a window of `context`."""
    return length - max(int(length * VALIDATION), context + 1)


def windows(length: int, context: int) -> int:
    """Returns how many windows of `context` tokens, each followed by one more token, `length` tokens contain."""
    return max(0, (length - 1) // context)


def check(config: FSDPLm, text: Text, invariant: bool = False) -> None:
    """Raises ConfigError if a setting is not valid, or does not fit another one or the text."""
    if invariant:
        raise ConfigError(
            "train.invariant=true is not offered by fsdp_lm, which adds up gradients in parts of the model: leave it "
            "out, or use workload=ddp_mnist"
        )
    if config.backend.value == "mpi":
        raise ConfigError(
            "workload.backend=mpi: torch's MPI backend has no reduce_scatter, which fsdp_lm needs: use gloo or nccl"
        )
    if config.width % config.heads:
        least = -(-config.width // config.heads) * config.heads
        raise ConfigError(
            f"workload.width={config.width} cannot be divided into workload.heads={config.heads} equal parts: "
            f"use workload.width={least}"
        )
    for key, value, allowed in (
        ("dropout", config.dropout, config.dropout < 1),
        ("warm_up", config.warm_up, config.warm_up <= 1),
        ("clip", config.clip, config.clip < float("inf")),
        ("weight_decay", config.weight_decay, config.weight_decay < float("inf")),
    ):
        if not allowed:
            meant = {"dropout": "from 0 to less than 1", "warm_up": "a part of all steps, 0 to 1"}
            raise ConfigError(f"workload.{key}={value}: it must be {meant.get(key, 'a finite number')}")
    _check_length(config, text.length)


def _check_length(config: FSDPLm, length: int) -> None:
    training = windows(split(length, config.context), config.context)
    if training >= config.batch_size:
        return
    length_found = f"workload.text={config.text} has {length} bytes"
    if training == 0:
        raise TextError(
            f"{length_found}, too few for workload.context={config.context}, for training and for validation: use a "
            "smaller context or a longer text"
        )
    raise TextError(
        f"{length_found}, of which {training} windows of workload.context={config.context} are trained on, fewer than "
        f"workload.batch_size={config.batch_size}: use a smaller context, batch_size={training} or a longer text"
    )


def _unpacked(file: Path, text: str, use: Callable[[BinaryIO], T]) -> T:
    def attempt() -> T:
        try:
            with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
                return use(stream)  # type: ignore[arg-type]  # GzipFile reads like a file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TextError(f"workload.text={text}: {file} cannot be unpacked: {error}") from error

    if (found := unwrap_or(TextError, retry_read(attempt, file), f"workload.text={text}: ")) is None:
        raise TextError(f"workload.text={text}: {file} is not there any more")
    return found
