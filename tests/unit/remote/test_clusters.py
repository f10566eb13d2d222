"""Profiles of clusters behind ssh, which of them a command line chooses, and where a run is."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from launcher.cli import commands, ssh_forward
from launcher.cli.ssh_forward import _renamed
from launcher.environment.code_files import Tree
from launcher.errors import ConfigError
from launcher.remote import clusters, ssh
from launcher.remote.clusters import (
    RemoteCluster,
    Unreachable,
    chosen,
    last_seen,
    locate,
    note,
    noted,
    parsed,
    save_seen,
)
from launcher.remote.ssh import _paths, keys_of
from tests.launch import until


def test_a_command_there_starts_without_what_reads_runs() -> None:
    code = (
        "import sys, launcher.cli.ssh_serve, launcher.cli.ssh_forward; print('launcher.runs.directory' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folders, with two clusters behind ssh."""
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "config/cluster").mkdir(parents=True)
    for name in ("hpc1", "hpc2"):
        (tmp_path / f"config/cluster/{name}.yaml").write_text(f"ssh: me@{name}\n")
    (tmp_path / "config/cluster/here.yaml").write_text("defaults: [slurm, _self_]\nname: here\n")
    return tmp_path


def cluster(name: str = "hpc1") -> RemoteCluster:
    return clusters.remote_clusters()[name]


def test_a_profile_says_how_to_get_there() -> None:
    text = "ssh: me@login\ncommand: bin/launcher\nprofile: gpu\nsecrets: [A, B]\nexclude: ['*.pt']\ntimeout: 3\n"
    found = parsed(Path("hpc.yaml"), text)
    assert found == RemoteCluster(
        "hpc", Path("hpc.yaml"), "me@login", "bin/launcher", "gpu", ("A", "B"), ("*.pt",), 3.0
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ssh: [", "this is not valid YAML: expected the node content, but found .<stream end>.$"),
        ("ssh: me@login\npartition: gpu\n", "has no key 'partition'"),
        ("ssh: me@login\nexcludes: []\n", "Did you mean exclude?"),
        ("ssh: 5\n", "ssh"),
        ("ssh: ''\n", r"is not \[USER@\]HOST"),
        ("ssh: -oProxyCommand=evil\n", r"is not \[USER@\]HOST"),
        ("ssh: a b\n", r"is not \[USER@\]HOST"),
        ("ssh: a\ncommand: 'x; rm'\n", "is not a path of letters"),
        ("ssh: a\ncommand: $HOME/x\n", "is not a path of letters"),
        ("ssh: a\ntimeout: 0\n", "is not a number of seconds"),
        ("ssh: a\ntimeout: 3601\n", "is not a number of seconds"),
        ("ssh: a\ntimeout: yes\n", "timeout"),
        ("ssh: a\nsecrets: A\n", "secrets"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_with_its_file(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"^hpc\.yaml(, line 1)?: .*{told}"):
        parsed(Path("hpc.yaml"), text)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["cluster=hpc1"], "hpc1"),
        (["cluster='hpc2'", "nodes=2"], "hpc2"),
        (["cluster=hpc1", "cluster=here"], None),
        (["cluster=here"], None),
        ([], None),
        (["--", "cluster=hpc1"], None),
        (["cluster.partition=hpc1"], None),
    ],
)
def test_the_last_cluster_on_the_command_line_counts(folder: Path, words: list[str], name: str | None) -> None:
    found = chosen(words)
    assert (found and found.name) == name


def test_the_default_of_user_yaml_may_be_behind_ssh_and_a_sweep_has_one(folder: Path) -> None:
    (folder / "config/user.yaml").write_text("cluster: hpc2\n")
    assert chosen([]) == cluster("hpc2")
    with pytest.raises(ConfigError, match="hpc1 is behind ssh, and a sweep has one such cluster"):
        chosen(["cluster=here,hpc1"])


def test_runs_are_found_where_they_are(folder: Path) -> None:
    (folder / "runs/train-1").mkdir(parents=True)
    note(cluster("hpc1"), "train-2")
    note(cluster("hpc2"), "lr-3")
    save_seen(cluster("hpc2"), [{"run": "old-9"}, {"run": "train-1"}])
    here = (None, "train-1")
    assert locate("train-1") == here
    assert locate("train") == (None, "train")  # runs here come first, and may be several
    assert locate("train-2") == (cluster("hpc1"), "train-2")
    assert locate("lr") == (cluster("hpc2"), "lr-3")
    assert locate("lr-3/7") == (cluster("hpc2"), "lr-3/7")
    assert locate("ol") == (cluster("hpc2"), "old-9")
    assert locate("hpc2:train-1") == (cluster("hpc2"), "train-1")
    assert locate("hpc2:latest") == (cluster("hpc2"), "latest")
    assert locate("unknown:x") == (None, "unknown:x")
    assert locate("nothing") == (None, "nothing")
    assert locate("n" * 5000) == (None, "n" * 5000)
    assert locate("latest") == (cluster("hpc2"), "lr-3")
    (folder / "runs/latest").symlink_to("train-1")
    os.utime(folder / "runs/latest", (2**32, 2**32), follow_symlinks=False)
    assert locate("latest") == (None, "latest")


def test_a_run_of_two_clusters_is_named_by_its_cluster(folder: Path) -> None:
    for name in ("hpc1", "hpc2"):
        note(cluster(name), "same-1")
    with pytest.raises(ConfigError, match="write hpc1:same-1, hpc2:same-1"):
        locate("same-1")
    note(cluster("hpc1"), "same-2")
    with pytest.raises(ConfigError, match="'same' fits"):
        locate("same")
    # Two profiles of one launcher, of which the other was only seen to have the run.
    (folder / "config/cluster/hpc2.yaml").write_text("ssh: me@hpc1\nprofile: gpu\n")
    assert [locate(name)[1] for name in ("same-1", "same-2", "same-1/0")] == ["same-1", "same-2", "same-1/0"]
    save_seen(cluster("hpc2"), [{"run": "same-2"}])
    assert locate("same-2") == (cluster("hpc1"), "same-2"), "the one that submitted it"


def test_what_was_not_submitted_is_forgotten_and_damage_is_left_out(folder: Path) -> None:
    for name in ("a", "b"):
        note(cluster(), name)
    note(cluster(), "a", gone=True)
    with (cluster().folder / "runs.jsonl").open("ab") as file:
        file.write(b'{"run": 5\n\xff\n{"run": "c"}\n')
    assert list(noted(cluster())) == ["b"]
    (cluster().folder / "status.json").write_text("{")
    assert last_seen(cluster()) == (None, [])


@pytest.fixture
def lost_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of ssh, which connects, and is lost as soon as it has the request."""
    (folder / "bin").mkdir()
    said = folder / "bin/arguments"
    (folder / "bin/ssh").write_text(f"#!/bin/sh\necho \"$*\" > '{said}'\nprintf '\\036LAUNCHER\\n'\nread -r request\n")
    (folder / "bin/ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("LAUNCHER_CACHE_DIR", str(folder / "cache"))
    return folder / "bin/ssh"


@pytest.mark.parametrize("error", [MemoryError(), OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_a_run_of_which_no_request_was_sent_is_forgotten(
    lost_ssh: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh.SentCode, "here", Mock(side_effect=error))
    with pytest.raises(type(error)) as raised:
        ssh.submit(["cluster=hpc1", "run_id=a"])
    assert raised.value is error and not noted(cluster())


def test_a_run_of_which_nobody_knows_whether_it_was_submitted_stays_known(
    lost_ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh.SentCode, "here", lambda *_: ssh.SentCode(Tree(Path(), {}), {}, {}))
    with pytest.raises(Unreachable, match="Repeat the command with run_id=a"):
        ssh.submit(["cluster=hpc1", "run_id=a"])
    assert list(noted(cluster())) == ["a"]


def test_a_run_that_an_earlier_command_may_have_submitted_stays_known_if_it_cannot_be_repeated(
    lost_ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(cluster(), "a")
    lost_ssh.write_text("#!/bin/sh\necho down >&2; exit 255\n")
    for name in ("a", "b"):
        with pytest.raises(Unreachable, match="down"):
            ssh.submit(["cluster=hpc1", f"run_id={name}"])
    assert list(noted(cluster())) == ["a"]


def test_what_ssh_says_while_a_file_comes_does_not_stop_it(lost_ssh: Path, tmp_path: Path) -> None:
    lost_ssh.write_text(
        "#!/bin/sh\nprintf '\\036LAUNCHER\\n'; read -r request\n"
        'mark=$(echo "$request" | sed \'s/.*"mark": "\\([0-9a-f]*\\).*/\\1/\')\n'
        "printf '\\036%s{\"file\": 3}\\n' $mark; echo note >&2; sleep 0.4\n"
        "printf abc; sleep 0.2; printf '\\036%s{\"exit\": 0}\\n' $mark\nexec sleep 30\n"
    )
    got, said, began = list[bytes](), list[str](), time.monotonic()
    with ssh.Call(cluster(), errors=said.append) as made:
        for event in made.events():
            if event == {"hello": True}:
                made.answer(made.header)
                time.sleep(0.2)  # the next event, and ssh's words, come together
            elif isinstance(event, dict) and "file" in event:
                made.take(event["file"], got.append)
    assert (b"".join(got), said, made.exit_code) == (b"abc", ["note\n"], 0)
    assert time.monotonic() - began < 10


def control_path() -> str | None:
    words = ssh.arguments(cluster(), prompts=False)
    return next((word.removeprefix("ControlPath=") for word in words if word.startswith("ControlPath=")), None)


def test_where_the_path_of_the_cache_is_long_the_connection_is_kept_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f"launcher-{os.getuid()}"
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("LAUNCHER_CACHE_DIR", short)
        assert control_path() == f"{short}/ssh/%C"
        monkeypatch.setenv("LAUNCHER_CACHE_DIR", str(folder / ("long" * 20)))
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        assert control_path() == f"{short}/{own}/%C"
        Path(short, own).chmod(0o777)  # anybody could put a connection of their own there
        assert control_path() is None
        with pytest.raises(ConfigError, match="Set LAUNCHER_CACHE_DIR to a folder of your own with a short path"):
            ssh.log_in(cluster())
    monkeypatch.delenv("XDG_RUNTIME_DIR")  # as on a Mac
    assert control_path() == f"/tmp/{own}/%C"
    with contextlib.suppress(OSError):  # connections of this user are in it
        Path("/tmp", own).rmdir()


def test_a_connection_may_take_as_long_as_the_whole_answer(lost_ssh: Path) -> None:
    """ConnectTimeout of ssh includes the login to a jump host, which may take seconds."""
    (lost_ssh.parents[1] / "config/cluster/hpc1.yaml").write_text("ssh: me@hpc1\ntimeout: 33\n")
    with pytest.raises(Unreachable, match="the connection was lost"):
        ssh.call(cluster(), ["status"], timeout=cluster().timeout)
    assert " ConnectTimeout=33 " in lost_ssh.with_name("arguments").read_text()


def test_clusters_are_waited_for_once_while_other_runs_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered, states = threading.Event(), ["running", "running", "done", "done"]

    def call(*_: object, show: Callable[[bytes], object], **__: object) -> int:
        assert answered.wait(5)
        show(json.dumps([{"run": "a-1", "state": states.pop(0)}]).encode())
        return 0

    def seen() -> list[str]:
        return [row["state"] for each in rows.answers() for row in each.rows]

    monkeypatch.setattr(ssh_forward, "call", call)
    monkeypatch.setattr(ssh_forward, "BETWEEN", -1.0)
    rows = ssh_forward.RemoteRows([])
    rows.ask()
    answered.set()
    assert seen() == ["running", "running"]
    answered.clear()
    rows.ask()
    rows.ask()
    assert seen() == ["running", "running"], "the last answers, at once"
    answered.set()
    until(lambda: seen() == ["done", "done"], "the next answers")


@pytest.mark.parametrize(
    ("row", "over"),
    [
        ({"state": "running"}, False), ({"state": "cancelling"}, False), ({"state": "orphaned"}, False),
        ({"state": "waiting"}, False), ({"state": "failed"}, True), ({"state": "unreadable"}, True),
        ({"state": "0/2 done", "points": {"waiting": 2}}, False), ({"state": "2/2 done", "points": {"done": 2}}, True),
    ],
)  # fmt: skip
def test_what_is_not_over_there_is_not_over_here(folder: Path, row: dict[str, Any], over: bool) -> None:
    assert ssh_forward._of_cluster({"run": "a", **row}, cluster())["over"] is over


def test_names_are_those_of_the_other_side() -> None:
    words = ["hpc:a", "b", "--baseline=hpc:a", "--tail", "5", "--", "hpc:a"]
    assert _renamed(words, {"hpc:a": "a"}, ["b"]) == ["a", "--baseline=a", "--tail", "5", "--", "hpc:a"]


def test_a_table_of_a_sweep_there_is_written_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def call(cluster: RemoteCluster, words: list[str], *, show: Callable[[bytes], object]) -> int:
        asked.append(words)
        show(b"point,state\n")
        return len(asked) - 1

    monkeypatch.setattr(ssh_forward, "call", call)
    note(cluster(), "lr-1")
    path = folder / "own.csv"
    assert commands.main(["sweep", "results", "lr-1", f"--csv={path}"]) == 0
    assert asked == [["sweep", "results", "lr-1", f"--csv={path}", "--csv=-"]]
    assert (path.read_text(), capsys.readouterr().out) == ("point,state\n", f"wrote {path}\n")
    path.unlink()
    assert commands.main(["sweep", "results", "lr", "--csv", str(path)]) == 1 and not path.exists()


def test_paths_are_found_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data.bin", "tokens", "x y"):
        Path(name).touch()
    Path("out").mkdir()
    words = ["a=data.bin", "tokens", f"b=[{tmp_path}/data.bin,c]", "--in=x y", "out", "lr=0.1", "nothing.txt", "."]
    assert list(_paths(words)) == ["data.bin", "tokens", f"{tmp_path}/data.bin", "x y"]


def test_keys_are_read_without_signs_and_quotes() -> None:
    assert keys_of(["++a.b='1'", "run_id=x", "--flag", "c=d=e"]) == {"a.b": "1", "run_id": "x", "c": "d=e"}
