"""What Tab offers: from the parsers, the schema and the names of runs; and in each shell that is here."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from shlex import quote

import pytest

from launcher.cli import commands, complete
from launcher.cli.complete import candidates
from launcher.cli.help import COMMANDS
from launcher.errors import ConfigError
from launcher.paths import PACKAGE
from launcher.remote.clusters import note, remote_clusters


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, of which the second is newer, and a sweep of two points; and a profile of the user's own."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "config"))
    for name in (
        "mnist-20261120-120000-aaaa",
        "bench-20261121-120000-bbbb",
        "lr-3f9c/0",
        "lr-3f9c/1",
        "lr-3f9c/arrays",
    ):
        (tmp_path / "runs" / name).mkdir(parents=True)
        if not name.endswith("arrays"):
            (tmp_path / "runs" / name / "record.json").touch()
    (tmp_path / "runs" / "lr-3f9c" / "sweep.json").touch()
    (tmp_path / "runs" / "latest").symlink_to("bench-20261121-120000-bbbb")
    (tmp_path / "config" / "cluster").mkdir(parents=True)
    (tmp_path / "config" / "cluster" / "ours.yaml").touch()
    return tmp_path / "runs"


RUNS = ["latest", "bench-20261121-120000-bbbb", "mnist-20261120-120000-aaaa"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["log"], ["logs"]),
        (["nod"], ["nodes="]),
        (["nodes=2", "log"], []),  # a command comes first
        (["logs", ""], [*RUNS, "lr-3f9c/"]),
        (["logs", "m"], ["mnist-20261120-120000-aaaa"]),
        (["logs", "lr-3f9c/"], ["lr-3f9c/0", "lr-3f9c/1"]),
        (["logs", "mnist-20261120-120000-aaaa", ""], []),
        (["logs", "--tail", "5", "m"], ["mnist-20261120-120000-aaaa"]),
        (["logs", "m", "--r"], ["--rank", "--runs-dir"]),
        (["status", "a", "lr"], ["lr-3f9c", "lr-3f9c/"]),
        (["sweep", "re"], ["results", "rerun"]),
        (["sweep", "status", ""], ["lr-3f9c"]),
        (["checkpoint", "ver"], ["verify"]),
        (["data", "fetch", "mn"], ["mnist"]),
        (["resume", "latest", "gpus"], ["gpus_per_node="]),
        (["resume", "latest", "--", "gpus"], []),
        (["workload=dd"], ["workload=ddp_mnist"]),
        (["cluster=ours"], ["cluster=ours"]),
        (["-m", "cluster=local,sl"], ["cluster=local,slurm"]),
        (["launch.mo"], ["launch.mode="]),
        (["cluster.IN"], []),  # what a class of keys says of itself is no key
        (["launch.mode="], ["launch.mode=agent", "launch.mode=tasks"]),
        (["wait="], ["wait=true", "wait=false"]),
        (["track=[tensorboard,m"], ["track=[tensorboard,mlflow"]),
        (["workload=ddp_mnist", "workload.mom"], ["workload.momentum="]),
        (["workload=p2p", "workload.mom"], []),
        (["workload.mom"], ["workload.momentum="]),
        (["cluster.lim"], ["cluster.limits."]),
        (["cluster.limits.nodes"], ["cluster.limits.nodes="]),
        (["+nod"], ["+nodes="]),
        (["baseline=b"], ["baseline=bench-20261121-120000-bbbb"]),
        (["--cfg", ""], ["job", "hydra", "all"]),
        (["--mul"], ["--multirun"]),
        (["time=1"], []),
        (["hel"], ["help"]),
        (["help", "wor"], ["workload=", "workload."]),
        (["help", "workload=pr"], ["workload=program"]),
        (["help", "cluster=ou"], ["cluster=ours"]),
        (["help", "gpus"], ["gpus_per_node"]),
        (["help", "nodes", "canc"], ["cancel"]),
        (["help", "launch.mo"], ["launch.mode"]),
        (["help", "--a"], ["--all"]),
        (["run", "tr"], []),  # a file, which the shell completes
        (["run", "train.py", "nod"], ["nodes="]),
        (["run", "-m", "train.py", "workload.res"], ["workload.resumable="]),
        (["run", "train.py", "--mul"], ["--multirun"]),
        (["run", "train.py", "--", "nod"], []),
    ],
)  # fmt: skip
def test_what_is_offered(words: list[str], offered: list[str]) -> None:
    assert candidates(words) == offered


def test_the_first_word_may_be_a_command_a_group_or_a_key() -> None:
    offered = candidates([""])
    assert {*COMMANDS, "workload=", "cluster=", "nodes=", "checkpoint."} <= {*offered}
    assert len(offered) == len({*offered})


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of_every_command(name: str) -> None:
    assert "--help" in candidates([name, "--"])


def test_hydra_is_not_loaded() -> None:
    code = (
        "import sys; from launcher.cli.complete import candidates\n"
        "candidates(['workload=d']); candidates(['resume', ''])\n"
        "print([name for name in ('hydra', 'omegaconf', 'torch', 'submitit', 'rich', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# -- shells

LOAD_BASH = f". {quote(str(PACKAGE / 'cli' / 'complete.bash'))}"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("python -m launcher log", ["logs"]),
        ("python -m launcher workload=dd", ["ddp_mnist"]),  # bash takes what is behind = for a word of its own
        ("python -m launcher -m cluster=local,sl", ["local,slurm"]),
        ("python -m launcher hel", ["help"]),
        ("python -m launcher run train.py gpus", ["gpus_per_node="]),
        ("python -m launcher help workload=pro", ["program"]),
        ("python -m launcher help gpus", ["gpus_per_node"]),
        ("python -m launcher cancel lr-3f9c/", ["lr-3f9c/0", "lr-3f9c/1"]),
        ("python -m json", []),
        ("python -m laun", []),
        ("python scr", []),
    ],
)
def test_bash(line: str, offered: list[str]) -> None:
    script = (
        f"{LOAD_BASH}\n"
        "COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=(); _launcher_python python\n"
        '[[ ${#COMPREPLY[@]} -eq 0 ]] || printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", line], capture_output=True, text=True, cwd=PACKAGE.parent,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}, timeout=60,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_runs_that_were_submitted_to_clusters_behind_ssh_are_offered(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(runs.parent / "data"))
    (runs.parent / "config/cluster/hpc.yaml").write_text("ssh: me@login\n")
    note(remote_clusters()["hpc"], "mnist-20261128-120000-cccc")
    assert candidates(["logs", "mnist"]) == ["mnist-20261120-120000-aaaa", "mnist-20261128-120000-cccc"]
    assert candidates(["sweep", "status", "mnist-2026112"]) == ["mnist-20261128-120000-cccc"]
    assert candidates(["prune", "--cluster", "h"]) == ["hpc"]


def test_bash_puts_a_name_on_the_line_as_one_word(runs: Path) -> None:
    for name in ("x-$(touch ran)", "x-;touch ran", "x-`touch ran`", "x-it's", "x-\x1b]0;t\x07", "x-a\nb", "x-[1]"):
        (runs / name).mkdir()
        (runs / name / "record.json").touch()
    script = (
        f"{LOAD_BASH}\n"
        f'launcher() {{ {sys.executable} -m launcher "$@"; }}\n'
        'COMP_WORDBREAKS=" =:" COMP_LINE="launcher logs x-" COMP_POINT=16; _launcher_fill 1\n'
        'for each in "${COMPREPLY[@]}"; do eval "set -- $each"; printf "%s %s\\n" $# "$1"; done\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent, timeout=60,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )  # fmt: skip
    names = {"x-$(touch ran)", "x-;touch ran", "x-`touch ran`", "x-it's", "x-[1]"}
    assert {*done.stdout.splitlines()} == {f"1 {name}" for name in names}, done.stderr
    assert not (PACKAGE.parent / "ran").exists()


def test_bash_leaves_python_to_what_was_there_before() -> None:
    script = (
        "mine() { COMPREPLY=(mine); }; complete -F mine python\n"
        f"{LOAD_BASH}; {LOAD_BASH}\n"
        'COMP_LINE="python scr" COMP_POINT=10; _launcher_python python; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("mine\n", "")


SHELLS = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-f", "-i"], "fish": ["fish", "--no-config", "-i"]}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_terminal(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    env = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "xterm", "PS1": "$ ",
        "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "COLUMNS": "200",
    }  # fmt: skip
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(PACKAGE.parent)
        os.execvpe(SHELLS[shell][0], SHELLS[shell], env)
    try:
        load = f". {quote(str(PACKAGE / 'cli' / f'complete.{shell}'))}; echo rea''dy\n"
        _type(terminal, load, until=b"ready")
        _type(terminal, "python -m launcher workload=ddp\t", until=b"ddp_mnist")
        _type(terminal, " nodes=2 prefl\t", until=b"preflight=")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def _type(terminal: int, text: str, until: bytes) -> None:
    """Types a text and waits for what is to come of it."""
    os.write(terminal, text.encode())
    seen, give_up = b"", time.monotonic() + 60
    while until not in seen:
        assert time.monotonic() < give_up, seen
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536)
            if b"\x1b[c" in seen:  # fish asks what kind of terminal this is
                os.write(terminal, b"\x1b[?62c")
                seen = seen.replace(b"\x1b[c", b"")


@pytest.mark.parametrize(("shell", "rc"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", None)])
def test_it_is_installed_once(
    shell: str, rc: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name, value in (("HOME", home), ("SHELL", f"/bin/{shell}")):
        monkeypatch.setenv(name, str(value))
    for name in ("ZDOTDIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    if rc:
        (home / rc).write_text("echo mine")
    for _ in range(2):
        assert commands.main(["complete", "--install"]) == 0
    path = Path(capsys.readouterr().out.splitlines()[0])
    assert path.read_text() == complete.script(shell)
    if rc:
        mine, line = (home / rc).read_text().splitlines()
        assert mine == "echo mine" and str(path) in line
    else:
        assert path == home / ".config/fish/conf.d/launcher.fish"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--print", "tcsh"], "there is no completion for 'tcsh': use bash, zsh, fish"),
        ([], "give --install, or --print with one of bash, zsh, fish"),
    ],
)
def test_bad_input(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        commands.main(["complete", *words])
