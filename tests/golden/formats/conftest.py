"""The fixture `site` of the golden tests: a stopped clock, and scheduler commands that print recorded answers."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from launcher.__main__ import main
from launcher.files import folder_checks
from launcher.submission.resume import composed_config as composed
from tests.golden.golden import FORMATS, put, sections

SUBMITTED = 1795345200.0  # 2026-11-22 11:00:00 UTC
NOW = SUBMITTED + 3600  # the time at which commands are called
SITE = "/site"  # stands for the test's folder in golden files
FACTS = ("launcher", "python", "hydra", "submitit", "host", "commit")  # keys of a record that depend on the machine
COMMANDS = {
    "slurm": ("squeue", "sacct", "scontrol", "sinfo", "sbatch", "scancel", "srun", "sacctmgr"),
    "pbs": ("qstat", "qsub", "qdel", "qselect", "qalter", "qmgr", "pbsnodes"),
}


@dataclass
class Site:
    """A folder for runs, with stand-ins for the schedulers' commands on PATH.

    Attributes:
        folder: the site's directory; in golden files its path is /site.
        capture: captures the output of commands.
        now: the time that `time.time()` returns, in seconds since the epoch.
    """

    folder: Path
    capture: pytest.CaptureFixture[str]
    now: float = SUBMITTED

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def call(self, *arguments: str) -> tuple[int, str]:
        """Runs the launcher's command line at NOW.

        Returns its exit code, and its standard output or, if that is empty, its standard error.
        """
        self.now = NOW
        self.capture.readouterr()
        code = main(list(arguments))
        printed = self.capture.readouterr()
        return code, printed.out or printed.err

    def submit(self, *arguments: str) -> None:
        """Submits a run or a sweep with these command-line arguments; fails the test if the launcher refuses it."""
        code = main([*arguments, "wait=false", "env.snapshot=false"])
        printed = self.capture.readouterr()
        assert code == 0, printed.out + printed.err

    def json_output(self, *arguments: str) -> str:
        """Runs a command and returns the JSON that it prints, with placeholders for what differs between machines."""
        _, text = self.call(*arguments)
        assert text == json.dumps(json.loads(text), indent=1) + "\n"
        return self.neutral(text)

    def neutral(self, text: str) -> str:
        """Returns a text with placeholders for the test's folder, the Python, the checkout and tokens."""
        for found, name in (
            (str(self.folder), SITE), (sys.executable, "/venv/bin/python"), (str(FORMATS.parents[2]), "/checkout"),
        ):  # fmt: skip
            text = text.replace(found, name)
        return re.sub(r"launcher-[0-9a-f]{20}", "launcher-" + "0" * 20, text)

    def answer(self, scheduler: str, name: str | None = None, **values: str) -> None:
        """Puts stand-ins for a scheduler's commands on PATH, which print recorded answers, or fail if there is none.

        Args:
            scheduler: slurm or pbs.
            name: the recorded answers: the name of a file in answers/, without `.txt`; None: no answers. An answer that
                starts with the command's name and a colon is an error message: the command fails with it. A line
                `@A|B|C` of squeue is split into its columns.
            values: replacements for {NAME} in the answers.
        """
        recorded = sections(f"answers/{name}.txt", "$") if name else []
        for command in COMMANDS[scheduler]:
            lines = ["#!/bin/sh", f'case "{command} $*" in']
            for number, (pattern, text) in enumerate(recorded):
                if pattern.partition(" ")[0] == command:
                    for key, value in values.items():
                        text = text.replace(f"{{{key}}}", value)
                    (self.folder / f"answer-{number}").write_text(
                        re.sub(r"^@(.*)$", _columns, self.placed(text), flags=re.M)
                    )
                    quoted = "*".join(shlex.quote(part) if part else "" for part in pattern.split("*"))
                    ends = "1>&2; exit 1" if text.startswith(f"{command}: ") else "; exit"
                    lines.append(f"{quoted}) /bin/cat {self.folder}/answer-{number} {ends};;")
            lines += ["esac", f'echo "{command}: no recorded answer to $*" >&2', "exit 1", ""]
            (self.folder / "bin" / command).write_text("\n".join(lines))
            (self.folder / "bin" / command).chmod(0o700)

    def placed(self, text: str) -> str:
        """Returns a golden text with the path of the test's folder in place of /site."""
        return text.replace(SITE, str(self.folder))

    def unpack(self, name: str) -> Path:
        """Creates the run or sweep that the file runs/NAME.txt describes, and returns its directory.

        The file has sections. `--- like X` copies the JSON files of written/X, with this run's paths in them. `---
        replace KEY` replaces a value of the record by the JSON that follows. Any other title is the path of a file,
        with its content below it.
        """
        path = self.runs / name
        (path / "submitit").mkdir(parents=True)
        (path / "attempts").mkdir()
        for title, text in sections(f"runs/{name}.txt", "---"):
            if title.startswith("like "):  # files that the launcher wrote for another run
                like = FORMATS / "written" / title[5:]
                for source in sorted(each for each in like.rglob("*.json*") if each.is_file()):
                    text = json.dumps(record(source)) if source.name == "record.json" else source.read_text()
                    text = text.replace(f"/runs/{title[5:]}", f"/runs/{path.name}")
                    _place(path / source.relative_to(like), self.placed(text))
            elif title.startswith("replace "):  # one value of the record
                changed = json.loads((path / "record.json").read_text())
                put(changed, title[8:], json.loads(text))
                _place(path / "record.json", json.dumps(changed))
            else:
                _place(path / title, self.placed(text))
        for each in sorted(path.rglob("*")):
            os.utime(each, (NOW, NOW))
        return path


def record(path: Path) -> dict[str, Any]:
    """Returns a golden record, whole."""
    whole = base_of(path)
    for key, value in json.loads(path.read_text()).items():
        put(whole, key, value)
    return whole


def base_of(path: Path) -> dict[str, Any]:
    """Returns what a golden record has the differences from: of a point, the record of its scheduler's run; of that,
    the record of a run of this machine; of that, the defaults of the config."""
    if path.parent.name == "local":
        return {"config": json.loads(_default_config())}
    sweep = path.parent.parent.name
    return record(FORMATS / "written" / (sweep[6:] if sweep.startswith("sweep-") else "local") / "record.json")


@cache
def _default_config() -> str:
    return json.dumps(composed(["workload=p2p", "runs_dir=/runs"]).resolved)


def _columns(match: re.Match[str]) -> str:
    """Returns a recorded line of squeue, padded to the column widths that the launcher asks for."""
    widths = (64, 32, 64, 256, 32)
    return "".join(f"{text:{width}}" for text, width in zip(match[1].split("|"), widths, strict=True))


def _place(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    folder = tmp_path / "site"
    for name in ("bin", "cache", "home", "config", "work"):
        (folder / name).mkdir(parents=True)
    (folder / "bin/bash").symlink_to(shutil.which("bash") or "/bin/bash")
    for name in [name for name in os.environ if name.startswith(("LAUNCHER_", "SLURM_", "PBS_", "HYDRA_"))]:
        monkeypatch.delenv(name)
    for name, value in (
        ("PATH", folder / "bin"), ("HOME", folder / "home"), ("LAUNCHER_RUNS_DIR", folder / "runs"),
        ("LAUNCHER_CACHE_DIR", folder / "cache"), ("LAUNCHER_CONFIG_DIR", folder / "config"), ("TZ", "UTC"),
    ):  # fmt: skip
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(folder / "work")
    made = Site(folder, capsys)
    monkeypatch.setattr(time, "time", lambda: made.now)
    monkeypatch.setattr(socket, "gethostname", lambda: "login1")
    monkeypatch.setattr(folder_checks, "user_name", lambda uid: "alice")
    monkeypatch.setattr(sys, "argv", ["launcher"])
    time.tzset()
    before, collects = os.umask(0o022), gc.get_threshold()
    resolvers = {start: list(pairs) for start, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    yield made
    os.umask(before)
    gc.set_threshold(*collects)  # commands change the thresholds of their process
    yaml.SafeLoader.yaml_implicit_resolvers = resolvers
    GlobalHydra.instance().clear()
    monkeypatch.undo()
    time.tzset()
