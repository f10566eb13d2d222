"""An environment that is unpacked on the node's own disk: once, privately, checked, and removed by the last."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from launcher.cli import commands
from launcher.config.schema import Env
from launcher.environment import archives, programs, snapshot
from launcher.errors import ConfigError, RunError, is_transient
from launcher.paths import own_module
from launcher.plan.plan import Archive, JobPlan
from launcher.runs.directory import Run
from launcher.submission.prepare import Inputs, make_plan
from tests.launch import ROOT
from tests.unit.faults import FileServer
from tests.unit.plans import SITE, make_config

# A stand-in for an environment's Python: it answers what is asked of it, and tells where it runs.
PYTHON = """#!/bin/bash
case "$*" in
  *find_spec*) echo '[[3, 12], []]' ;;
  *) echo "$0 $*"; env; ls "$(dirname "$0")/../lib" ;;
esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    folder = tmp_path / "en v"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    (folder / "lib/module.py").write_text("x = 1\n")
    (folder / "bin/python").write_text(PYTHON)
    (folder / "bin/python").chmod(0o755)
    (folder / "bin/python3").symlink_to("python")
    (folder / "bin/python3.99").symlink_to("/usr/bin/env")  # as a venv's python is a link out of it
    (folder / "bin/activate").touch()
    return folder


@pytest.mark.parametrize("suffix", archives.SUFFIXES)
def test_what_is_packed_is_unpacked(environment: Path, tmp_path: Path, suffix: str) -> None:
    if suffix.endswith("zst") and shutil.which("zstd") is None:
        pytest.skip("there is no zstd")
    packed = tmp_path / f"env{suffix}"
    told = archives.pack(environment, packed)
    assert told["sha256"] == archives.digest_of(packed)
    archives.unpack(packed, tmp_path / "out", told["sha256"])
    assert (tmp_path / "out/lib/module.py").read_text() == "x = 1\n"
    assert os.access(tmp_path / "out/bin/python3", os.X_OK)
    assert os.readlink(tmp_path / "out/bin/python3.99") == "/usr/bin/env"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("how", ["another", "cut off", "no archive"])
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.zst"])
def test_a_damaged_or_another_archive_is_refused(environment: Path, tmp_path: Path, how: str, suffix: str) -> None:
    if suffix.endswith("zst") and shutil.which("zstd") is None:
        pytest.skip("there is no zstd")
    packed = tmp_path / f"env{suffix}"
    (environment / "lib/random").write_bytes(os.urandom(1 << 16))
    digest = archives.pack(environment, packed)["sha256"]
    if how == "another":
        (environment / "lib/module.py").write_text("x = 2\n")
        archives.pack(environment, packed)
    elif how == "cut off":
        os.truncate(packed, packed.stat().st_size // 2)
    else:
        packed.write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(archives.ArchiveError, match=r"env.archive\) (has changed|cannot be unpacked)"):
        archives.unpack(packed, tmp_path / "out", digest)


def member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, to
    return found


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE
LONG = "/".join(["d" * 200] * 16)


@pytest.mark.parametrize(("members", "told"), [
    ([member("../escaped")], "../escaped would be outside of the folder"),
    ([member("{outside}/escaped")], "/escaped would be outside of the folder"),
    ([member("a/../../escaped")], "would be outside of the folder"),
    ([member("a", LINK, ".."), member("a/escaped")], "a is a link that leaves the folder, to .."),
    ([member("a", LINK, "{outside}"), member("a/escaped")], "a is a link that leaves the folder"),
    ([member("a/b", LINK, "../..")], "is a link that leaves the folder, to ../.."),
    ([member("bin/python", LINK, "{outside}"), member("bin/python/escaped")], "would be within a link"),
    ([member("bin/python", LINK, "{outside}/escaped"), member("bin/python")], "within a link, or in its place"),
    ([member("a", LINK, "b"), member("a/escaped")], "a/escaped would be within a link"),
    ([member("a", HARD, "{outside}/theirs"), member("a")], "a is a hard link to"),
    ([member("a", HARD, "../theirs"), member("a")], "a is a hard link to ../theirs, which is not a file of"),
    ([member("bin/python", LINK, "{outside}/theirs"), member("a", HARD, "bin/python")], "a is a hard link"),
    # CVE-2025-4517: a path too long for realpath, which then does not see the link in it.
    ([member(LONG, tarfile.DIRTYPE), member("s", LINK, LONG), member("s/up", LINK, "../" * 18), member("s/up/escaped")],
     "s/up would be within a link"),
    ([member("a", tarfile.FIFOTYPE)], "a is neither a file nor a folder nor a link"),
    ([member("a", tarfile.CHRTYPE)], "a is neither a file nor a folder nor a link"),
])  # fmt: skip
def test_what_would_be_outside_of_it_is_refused(tmp_path: Path, members: list[tarfile.TarInfo], told: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs").write_text("theirs")
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        for each in members:
            each.name, each.linkname = (text.format(outside=outside) for text in (each.name, each.linkname))
            each.size = 4 if each.isfile() else 0
            tar.addfile(each, io.BytesIO(b"ours"))
    with pytest.raises(archives.ArchiveError, match="cannot be unpacked") as refusal:
        archives.unpack(tmp_path / "bad.tar", tmp_path / "out", archives.digest_of(tmp_path / "bad.tar"))
    assert told in str(refusal.value)
    assert [path.name for path in outside.iterdir()] == ["theirs"] and (outside / "theirs").read_text() == "theirs"
    assert not [*tmp_path.rglob("escaped")]


def test_nothing_of_an_exchanged_archive_is_unpacked(environment: Path, tmp_path: Path) -> None:
    digest = archives.pack(environment, tmp_path / "env.tar")["sha256"]
    with tarfile.open(tmp_path / "env.tar", "w") as tar:
        tar.addfile(member("evil"))
    with pytest.raises(archives.ArchiveError, match="has changed since the run was submitted"):
        archives.unpack(tmp_path / "env.tar", tmp_path / "out", digest)
    assert not [*(tmp_path / "out").iterdir()]


def test_what_could_not_be_unpacked_is_not_packed(environment: Path, tmp_path: Path) -> None:
    (environment / "lib/cache").symlink_to("/var/cache")
    with pytest.raises(RunError, match="lib/cache is a link that leaves the folder, to /var/cache"):
        archives.pack(environment, tmp_path / "env.tar")
    assert not [*tmp_path.glob("*.tar")] and not [*tmp_path.glob(".*.tar*")]


def test_an_archive_in_a_folder_that_is_not_there_is_refused(environment: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"/none/env.tar cannot be written: there is no folder {tmp_path}/none"):
        archives.pack(environment, tmp_path / "none" / "env.tar")


def test_an_interrupted_archive_leaves_nothing(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives.Members, "allowed", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        archives.pack(environment, tmp_path / "env.tar.gz")
    assert [*tmp_path.iterdir()] == [environment]


def test_an_archive_that_is_exchanged_meanwhile_does_not_count(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "env.tar"
    digest = archives.pack(environment, packed)["sha256"]
    real = tarfile.open

    def exchanged(*args: Any, **options: Any) -> Any:
        packed.write_bytes(b"something else")
        return real(*args, **options)

    monkeypatch.setattr(tarfile, "open", exchanged)
    archives.unpack(packed, tmp_path / "out", digest)
    assert (tmp_path / "out/lib/module.py").read_text() == "x = 1\n"


def test_the_second_on_a_node_finds_it_and_the_last_removes_it(environment: Path, tmp_path: Path) -> None:
    digest = archives.pack(environment, tmp_path / "env.tar")["sha256"]
    first, env = archives.enter(tmp_path / "env.tar", digest, str(tmp_path))
    unpacked = (env.parent / "done").stat().st_mtime_ns
    second, same = archives.enter(tmp_path / "env.tar", digest, str(tmp_path))
    assert (same, (env.parent / "done").stat().st_mtime_ns) == (env, unpacked)
    assert env.parent.stat().st_mode & 0o777 == 0o700
    archives.leave(first, env.parent)
    assert env.is_dir()
    archives.leave(second, env.parent)
    assert not env.parent.exists()


def test_one_that_comes_while_it_is_removed_has_one_of_its_own(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = archives.pack(environment, tmp_path / "env.tar")["sha256"]
    lock, env = archives.enter(tmp_path / "env.tar", digest, str(tmp_path))
    remove, came = shutil.rmtree, []

    def slowly(path: Path, ignore_errors: bool) -> None:
        monkeypatch.setattr(shutil, "rmtree", remove)
        (path / "lock").unlink()
        came.append(archives.enter(tmp_path / "env.tar", digest, str(tmp_path)))
        remove(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    archives.leave(lock, env.parent)
    (newcomer,) = came
    assert (newcomer[1] / "lib/module.py").exists()
    archives.leave(newcomer[0], newcomer[1].parent)
    assert not list(tmp_path.glob("launcher-*"))


def test_one_that_waited_for_what_is_gone_removes_nothing_of_others(environment: Path, tmp_path: Path) -> None:
    digest = archives.pack(environment, tmp_path / "env.tar")["sha256"]
    lock, env = archives.enter(tmp_path / "env.tar", digest, str(tmp_path))
    late = os.open(env.parent / "lock", os.O_RDWR)
    archives.leave(lock, env.parent)
    lock, env = archives.enter(tmp_path / "env.tar", digest, str(tmp_path))
    archives.leave(late, env.parent)
    assert env.is_dir()
    archives.leave(lock, env.parent)


def test_of_many_at_once_one_unpacks_it(environment: Path, tmp_path: Path) -> None:
    digest = archives.pack(environment, tmp_path / "env.tar")["sha256"]
    script = (
        "import sys; from pathlib import Path; from launcher.environment import archives as archive\n"
        "unpack, calls = archive._unpack_and_check, []\n"
        "archive._unpack_and_check = lambda *words: calls.append(unpack(*words))\n"
        "lock, env = archive.enter(Path(sys.argv[1]), sys.argv[2], sys.argv[3])\n"
        "assert (env / 'lib/module.py').exists(); print(len(calls), flush=True)\n"
        "sys.stdin.read()\n"
        "archive.leave(lock, env.parent)\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "env.tar"), digest, str(tmp_path)]
    pipe = subprocess.PIPE
    tasks = [subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    told = [task.stdout.readline().strip() for task in tasks if task.stdout]  # all are in it now
    assert sorted(told) == ["0"] * 3 + ["1"]
    for task in tasks:
        task.communicate(timeout=60)
    assert [task.returncode for task in tasks] == [0] * 4
    assert not list(tmp_path.glob("launcher-*"))


def test_one_that_was_killed_while_it_unpacked_leaves_nothing_in_the_way(environment: Path, tmp_path: Path) -> None:
    digest = archives.pack(environment, tmp_path / "env.tar")["sha256"]
    half = tmp_path / f"launcher-{os.getuid()}-{digest[:16]}/env"
    half.mkdir(parents=True, mode=0o700)
    half.parent.chmod(0o700)
    (half / "half").touch()
    removed = tmp_path / f"{half.parent.name}.1234/env"  # one that was killed while it removed it
    removed.mkdir(parents=True)
    lock, env = archives.enter(tmp_path / "env.tar", digest, str(tmp_path))
    assert not (env / "half").exists()
    assert not removed.parent.exists()
    archives.leave(lock, env.parent)


def test_a_folder_of_somebody_else_is_not_used(environment: Path, tmp_path: Path) -> None:
    digest = archives.pack(environment, tmp_path / "env.tar")["sha256"]
    planted = tmp_path / f"launcher-{os.getuid()}-{digest[:16]}"
    planted.mkdir()
    planted.chmod(0o777)
    with pytest.raises(archives.ArchiveError, match="is not a private folder of yours"):
        archives.enter(tmp_path / "env.tar", digest, str(tmp_path))


@pytest.mark.parametrize(("number", "transient"), [(errno.ESTALE, True), (errno.EIO, True), (errno.ENOENT, False)])
def test_a_file_server_that_does_not_answer_now_may_do_so_later(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, transient: bool
) -> None:
    digest = archives.pack(environment, tmp_path / "env.tar")["sha256"]
    FileServer(monkeypatch).fail("env.tar", number=number)
    with pytest.raises((archives.ArchiveError, OSError), match=r"env\.archive\) cannot be unpacked into") as failure:
        archives.enter(tmp_path / "env.tar", digest, str(tmp_path))
    assert is_transient(failure.value) == transient
    assert not list(tmp_path.glob("launcher-*"))


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"SLURM_TMPDIR": "/s", "TMPDIR": "/t"}, "/s"),
        ({"PBS_JOBFS": "/j", "TMPDIR": "/t"}, "/j"),
        ({"SLURM_TMPDIR": "/gone", "TMPDIR": "/t"}, "/t"),
        ({}, "/tmp"),
    ],
)
def test_it_is_unpacked_on_the_nodes_own_disk(environ: dict[str, str], folder: str) -> None:
    assert archives.place(environ, lambda path: path != "/gone") == folder


MOUNTS = """\
overlay / overlay rw 0 0
tmpfs /tmp tmpfs rw 0 0
fs1:/home /home nfs4 rw 0 0
10.0.0.1@o2ib:/s /scratch lustre rw 0 0
/dev/sdb1 /scratch/local xfs rw 0 0
fs2:/x /with\\040space fuse.glusterfs rw 0 0
fs2:/y /tmp beegfs_nodev rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/var/tmp", False),
        ("/home/me/tmp", True),
        ("/homes", False),
        ("/scratch", True),
        ("/scratch/me/tmp", True),
        ("/scratch/local/7", False),
        ("/with space/x", True),
        ("/tmp/x", True),  # what is mounted last on a place is seen there
    ],
)
def test_a_folder_that_other_nodes_see_is_not_the_nodes_own(folder: str, expected: bool) -> None:
    assert archives.shared(folder, MOUNTS) == expected


def planned(packed: Path, tmp_path: Path) -> JobPlan:
    import dataclasses

    config = make_config(env=Env(archive=str(packed)))
    site = dataclasses.replace(SITE, run_dir=str(tmp_path / "runs/run-1"), code_root=str(ROOT))
    config, _ = (inputs := Inputs()).with_environment(config)
    return snapshot.into_plan(make_plan(config, inputs.with_code(config, site)))


def started(plan: JobPlan, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    run = Run.create(Path(plan.run_dir))
    run.write_record(plan, {}, {})
    (run.path / "attempts/0/events").mkdir(parents=True)
    (tmp_path / "local").mkdir()
    return subprocess.run(
        [sys.executable, "-m", "launcher.environment.archives", plan.run_dir],
        cwd=ROOT, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "LAUNCHER_RUN_DIR": plan.run_dir, "LAUNCHER_ATTEMPT": "0",
             "SLURM_TMPDIR": str(tmp_path / "local"), "PYTHONHOME": ""}, timeout=60, check=False,
    )  # fmt: skip


def test_the_agent_runs_with_it(environment: Path, tmp_path: Path) -> None:
    archives.pack(environment, tmp_path / "env.tar")
    plan = planned(tmp_path / "env.tar", tmp_path)
    done = started(plan, tmp_path)
    assert done.returncode == 0, done.stderr
    env = tmp_path / f"local/launcher-{os.getuid()}-{plan.archive.digest[:16]}/env"
    assert " ".join([f"{env}/bin/python", "-u", *own_module("launcher.agent"), plan.run_dir]) in done.stdout
    assert f"VIRTUAL_ENV={env}\n" in done.stdout
    assert f"PATH={env}/bin:" in done.stdout


def test_a_node_that_cannot_unpack_it_is_named(environment: Path, tmp_path: Path) -> None:
    archives.pack(environment, tmp_path / "env.tar")
    plan = planned(tmp_path / "env.tar", tmp_path)
    (tmp_path / "env.tar").unlink()
    done = started(plan, tmp_path)
    assert done.returncode == 93
    assert f"launcher: {os.uname().nodename}: " in done.stderr
    (event,) = Run(Path(plan.run_dir)).attempts()[0].events()
    assert (event["event"], event["host"]) == ("fault", os.uname().nodename)
    assert (Run(Path(plan.run_dir)).attempts()[0].path / "exit_code").read_text() == "93\n"
    assert not list((tmp_path / "local").iterdir())


@pytest.mark.parametrize(
    ("name", "told"),
    [("env.zip", r"is none of \.tar"), ("gone.tar", r"no file gone\.tar in .*launcher env pack FOLDER gone\.tar`")],
)
def test_an_archive_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told):
        archives.checked(name)


def test_an_archive_that_nobody_wrote_a_word_about_is_read_once(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "env.tar"
    digest = archives.pack(environment, packed)["sha256"]
    assert archives.checked(str(packed))[1] == Archive(digest, str(environment))
    digest_of = Mock(side_effect=archives.digest_of)
    monkeypatch.setattr(archives, "digest_of", digest_of)
    monkeypatch.chdir(tmp_path)
    os.utime(packed)  # it may have been copied over
    for name in (str(packed), "env.tar"):
        assert archives.checked(name)[1] == Archive(digest)
    digest_of.assert_called_once_with(packed)
    os.utime(packed, (1, 1))
    assert archives.checked("env.tar")[1].digest == digest
    assert digest_of.call_count == 2


def test_what_zstd_unpacks_is_read_once(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("there is no zstd")
    packed = tmp_path / "env.tar.zst"
    digest = archives.pack(environment, packed)["sha256"]
    started = Mock(side_effect=subprocess.Popen)
    monkeypatch.setattr(subprocess, "Popen", started)
    archives.unpack(packed, tmp_path / "out", digest)
    assert started.call_args.args == (["zstd", "-dcq"],)  # and not the file, of which we take the checksum


def test_an_error_while_packing_ends_zstd(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "zstd").write_text("#!/bin/sh\nexec cat >/dev/null\n")
    (tools / "zstd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    started: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(tarfile.TarFile, "add", Mock(side_effect=OSError("no space left")))
    with pytest.raises(RunError, match="no space left"):
        archives.pack(environment, tmp_path / "env.tar.zst")
    (zstd,) = [each for each in started if each.args[0] == "zstd"]
    assert zstd.returncode == 0


def test_the_command_packs_and_does_not_replace(
    environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["env", "pack", str(environment), str(tmp_path / "env.tar")]
    assert commands.main(words) == 0
    assert f"use it with env.archive={tmp_path}/env.tar" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="exists already"):
        commands.main(words)
    with pytest.raises(ConfigError, match="would be within"):
        commands.main(["env", "pack", str(environment), str(environment / "x.tar")])
    (environment / "conda-meta").mkdir()
    with pytest.raises(ConfigError, match=r"conda-pack -p"):
        commands.main([*words, "--force"])
    assert programs.NEEDED


def test_a_folder_that_cannot_be_packed_is_named_without_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(tmp_path))}/gone: there is no gone in "):
        archives.pack(tmp_path / "gone", tmp_path / "env.tar")
    with pytest.raises(ConfigError, match="/gone/too is not there"):  # not even the folder around it
        archives.pack(tmp_path / "gone/too", tmp_path / "env.tar")
