"""`launcher site`: which profiles there are, and the schedulers that they are made from."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from launcher.cli import commands, ssh_forward
from launcher.cli import site as command
from launcher.config import profiles
from launcher.errors import ConfigError, RunError
from launcher.plan.limits import NodeGroup
from launcher.schedulers import registry
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.pbs.limits import PBSSite
from launcher.schedulers.slurm.limits import Partition, SlurmSite


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    return tmp_path / "cluster"


def test_nothing_is_overwritten_unless_that_is_wanted(own: Path) -> None:
    path = profiles.save("mine", "name: one\n", force=False)
    with pytest.raises(RunError, match=r"mine.yaml exists already: `--force` replaces it"):
        profiles.save("mine", "name: two\n", force=False)
    assert path.read_text() == "name: one\n"
    profiles.save("mine", "name: two\n", force=True)
    assert [file.name for file in own.iterdir()] == ["mine.yaml"]
    assert path.read_text() == "name: two\n"
    for name in ("slurm", "../x", ".x", "-x"):
        with pytest.raises(ConfigError):
            profiles.save(name, "", force=True)


def test_set_up_lines_of_jobs_go_to_the_profile_behind_ssh(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr(ssh_forward, "set_up", lambda *values: given.extend(values))
    words = ["site", "init", "hpc", "--activate=module load python"]
    assert commands.main([*words, "--ssh=login", "--setup=module load cuda", "--partition=gpu"]) == 0
    setup = ["--setup=module load python", "--setup=module load cuda"]
    assert given[2:] == [["module load python"], None, ["--partition=gpu", *setup]]


def test_a_cluster_behind_ssh_that_is_installed_again_keeps_what_the_user_has_set(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    monkeypatch.setattr(ssh_forward, "set_up", lambda name, text, *_: texts.append(text))
    words = ["site", "init", "hpc", "--force", "--ssh"]
    assert commands.main([*words, "me@login1"]) == 0
    path = own / "hpc.yaml"
    path.write_text(f"{path.read_text()}command: bin/old\nprofile: gpu\n# theirs\nsecrets: [A]\n")
    assert commands.main([*words, r"me@\1"]) == 0
    assert (
        path.read_text()
        == texts[1]
        == texts[0].replace("me@login1", r"me@\1") + "profile: gpu\n# theirs\nsecrets: [A]\n"
    )
    path.write_text("defaults: [slurm, _self_]\nname: hpc\n")
    assert commands.main([*words, "me@login1"]) == 0
    assert path.read_text() == texts[0]


def test_profiles_of_the_user_take_the_place_of_ours(own: Path) -> None:
    profiles.save("polaris", "defaults: [derecho, _self_]\nname: polaris\n", force=False)
    profiles.save("odd", "defaults:\n  - odd\n", force=False)
    found = {each.name: each for each in profiles.profiles()}
    assert (found["polaris"].own, found["polaris"].scheduler) == (True, "pbs")
    assert (found["derecho"].own, found["lumi-g"].scheduler, found["odd"].scheduler) == (False, "slurm", "")
    with pytest.raises(ConfigError, match=r"there is no profile 'derech'\. Did you mean derecho"):
        profiles.find("derech")


def test_the_command_writes_what_it_prints(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = Partition("gpu", True, None, None, (NodeGroup(4, 8, 1024**3, 2),))
    slurm, site = registry.scheduler("slurm"), SlurmSite("test", "22.05.8", (), (gpu,), {}, (), "", {})
    monkeypatch.setattr(command, "survey", lambda wanted: (slurm, site))
    setup = ["--setup", "echo \U0001f600"]
    assert commands.main(["site", "init", "--print", *setup]) == 0
    printed = capsys.readouterr().out
    assert not own.exists()
    assert commands.main(["site", "init", *setup]) == 0
    assert (own / "test.yaml").read_text() == printed
    assert yaml.safe_load(printed)["setup"] == setup[1:]
    assert f"written  {own / 'test.yaml'}" in capsys.readouterr().out
    assert commands.main(["site", "show", "test"]) == 0
    assert capsys.readouterr().out == f"# {own / 'test.yaml'}\n{printed}"
    assert commands.main(["site", "list"]) == 0
    assert ["test", "slurm", str(own / "test.yaml")] in map(str.split, capsys.readouterr().out.splitlines())
    with pytest.raises(ConfigError, match="this is a Slurm: use --partition"):
        commands.main(["site", "init", "--queue=gpu"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["intt"], "there is no site command 'intt'. Did you mean init?"),
        (["show"], "`site show` needs the NAME of a profile"),
        (["login"], "`site login` needs the NAME of a profile"),
        (["list", "x"], "`site list` takes no name"),
        (["show", "x", "--force"], "--force goes with site init"),
        (["show", "pollaris"], "there is no profile 'pollaris'. Did you mean polaris"),
    ],
)
def test_a_wrong_command_is_told(words: list[str], told: str, own: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        commands.main(["site", *words])
    assert told in str(refusal.value)


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_where_slurm_is_silent_a_pbs_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    put(tmp_path, "sbatch", "exit 1")
    put(tmp_path, "sinfo", "echo 'no controller' >&2; exit 1")
    put(tmp_path, "qsub", "exec sbatch")  # Slurm's wrapper
    for wanted in (None, "slurm"):
        with pytest.raises(RunError, match=r"^Slurm does not answer: [^;]*no controller$"):
            command.survey(wanted)
    put(tmp_path, "qsub", "echo 'pbs_version = 23.06.06'")
    put(tmp_path, "qstat", "echo 'no server' >&2; exit 1")
    with pytest.raises(RunError, match=r"^Slurm does not answer: .*no controller; PBS does not answer: .*no server$"):
        command.survey(None)
    with pytest.raises(RunError, match=r"^PBS does not answer: "):
        command.survey("pbs")
    monkeypatch.setattr(PBS, "queues", lambda _: [])
    scheduler, site = command.survey(None)
    assert (scheduler.name, type(site)) == ("pbs", PBSSite)


@pytest.mark.parametrize(
    ("wanted", "qsub", "words"),
    [
        (None, "", "there is neither sbatch nor qsub on PATH: run this on a login node of the cluster"),
        (None, "echo 'Version: 6.1.2'", "is not PBS's qsub but Torque"),
        ("slurm", "", "sbatch is not on this machine's PATH"),
        ("pbs", "", "qsub is not on this machine's PATH"),
        ("pbs", "exec sbatch", "Slurm's wrapper around sbatch"),
    ],
)
def test_a_machine_without_the_scheduler_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: str | None, qsub: str, words: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if qsub:
        put(tmp_path, "qsub", qsub)
    with pytest.raises(RunError, match=words):
        command.survey(wanted)
