"""Fixtures that several unit test modules share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from launcher.cli import progress_bars, status, wait
from launcher.cli import sweep as sweep_command
from launcher.environment import code_files
from launcher.monitoring import run_status
from launcher.runs import event_files
from launcher.schedulers import job_cache
from tests.unit.clock import Clock
from tests.unit.faults import FileServer

NUMBERS = count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for one test. pytest's own fixture, which names it after the test, takes longer than most tests."""
    folder = tmp_path_factory.getbasetemp() / str(next(NUMBERS))
    folder.mkdir(mode=0o700)
    return folder


def pytest_collection_finish() -> None:
    """Threads of torch spin while they wait for each other, which takes longer than what these tests compute."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def known_commit() -> Iterator[None]:
    """git is asked once for the commit of each folder: it takes longer than most submissions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code_files, "commit_of", cache(code_files.commit_of))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache directory (LAUNCHER_CACHE_DIR) of its own for each test, so that tests share no cached queries."""
    folder = tmp_path_factory.getbasetemp() / f"cache-{next(NUMBERS)}"  # made by who needs it
    os.environ["LAUNCHER_CACHE_DIR"] = str(folder)  # monkeypatch is another fixture: most tests have none
    yield folder
    os.environ.pop("LAUNCHER_CACHE_DIR", None)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restores the handlers of SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 after the test."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """A simulated file server: the test chooses which file operations fail."""
    return FileServer(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the test sets, for the modules that determine and show the states of runs, and write events."""
    return Clock(monkeypatch, job_cache, event_files, run_status, progress_bars, status, sweep_command, wait)
