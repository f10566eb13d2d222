"""`run SCRIPT`: which overrides it stands for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.cli import commands, submit
from launcher.cli.run import as_keys, overrides
from launcher.errors import ConfigError
from launcher.plan.build import check_name, command, name_of
from launcher.runs.directory import Run
from tests.unit.plans import bare_plan, with_fields


@pytest.mark.parametrize(
    ("script", "module", "given", "meant"),
    [
        ("train.py", False, [], ["name='train'", "workload=program", "workload.script='train.py'"]),
        (
            "a b/it's.py",
            False,
            ["nodes=2"],
            ["name='it_s'", "workload=program", "workload.script='a b/it\\'s.py'", "nodes=2"],
        ),
        ("pkg.train", True, [], ["name='train'", "workload=program", "workload.module='pkg.train'"]),
        ("t.py", False, ["name=x", "~wait"], ["workload=program", "workload.script='t.py'", "name=x", "~wait"]),
        ("t.py", False, ["workload=mine"], ["name='t'", "workload.script='t.py'", "workload=mine"]),
    ],
)
def test_a_script_is_a_run_of_its_name(script: str, module: bool, given: Sequence[str], meant: Sequence[str]) -> None:
    assert overrides(script, given, module=module) == meant


def test_a_script_in_a_folder_of_hydras_is_no_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path("lr=0.1,exp=1/train.py")
    with pytest.raises(ConfigError, match="name the script before its KEY=VALUE"):
        overrides(str(script), [])
    script.parent.mkdir()
    script.touch()
    assert overrides(str(script), ["nodes=2"]) == [
        "name='train'", "workload=program", f"workload.script='{script}'", "nodes=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("./dir/train.v2.py", "train.v2"),
        ("run", "run"),
        ("my train.py", "my_train"),
        ("-x.py", "x"),
        (".hidden", "hidden"),
        ("..py", "program"),
        ("ü.py", "_"),
        ("7.py", "7"),
        ("x" * 80 + ".py", "x" * 64),
    ],
)
def test_the_name_is_one_that_every_system_takes(script: str, name: str) -> None:
    assert check_name("name", name_of(script)) == name


@pytest.mark.parametrize("option", ["-m", "--multirun", "--yes"])
@pytest.mark.parametrize("behind", [(), ("--", "-m", "run")])
def test_options_stand_in_front_of_the_command_as_well(
    option: str, behind: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(submit, "main", lambda words: asked.append(words) or 0)
    for words in ([option, "run"], ["run", option]):
        assert main([*words, "train.py", "seed=1,2", *behind]) == 0
    assert asked[0] == asked[1]
    assert f"--{option.removeprefix('--').replace('-m', 'multirun')}" in asked[0]


@pytest.mark.parametrize(
    "line",
    [
        "launcher run train.py",
        "launcher run train.py nodes=2 -- --lr 0.1 --name 'a b' 'it'\"'\"'s' -- '${x}' '\\'",
        "launcher run --module pkg.train name=other",
        "launcher run 'a b/t.py' workload.flags.lr=0.1 -- model=big",
        "python -m launcher workload=program workload.args='[--lr]'",
        "launcher workload=ddp_mnist workload.lr=0.1 cluster.environment.A=1",
    ],
)
def test_a_command_to_copy_is_what_one_would_type(line: str) -> None:
    program, _, typed = line.partition("launcher ")
    name, *words = shlex.split(typed)
    if name == "run":
        parser = commands.Parser("run", None)
        commands.of_run(parser)
        given = parser.parse(words)
        behind = [] if given.arguments is None else ["--", *given.arguments]
        words = [*overrides(given.script, given.overrides, module=given.module), *behind]
    else:
        words = [name, *words]
    recorded = submit.command_line(words).words
    assert shlex.split(command(f"{program}launcher", recorded)) == shlex.split(line)


# -- resume


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of a script that is over."""
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "own"))
    (tmp_path / "t.py").touch()
    run = Run.create(tmp_path / "runs" / "r")
    words = submit.command_line([*overrides("t.py", ["cluster=local", "seed=3"]), "--", "--lrr", "1"]).words
    plan = bare_plan(workdir=str(tmp_path), workload={"kind": "Program"}, run_id="r")
    run.write_record(plan, {}, {"overrides": list(words), "token": "t"})
    return run


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ([], "['--lrr', '1']"),
        (["--", "--lr", "a b", "--", "seed=5"], "['--lr', 'a b', '--', 'seed=5']"),
        (["--"], "[]"),
    ],
)
def test_arguments_of_resume_are_those_of_the_script_instead_of_its_own(
    ended: Run, typed: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(ended.path), "dry_run=true", *typed]) == 0
    assert re.search(rf"^workload.args +{re.escape(shown)}$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "typed", "problem"),
    [
        ("Program", ["--lr", "3"], "there is no option '--lr'. Known: --help, "),
        ("Program", ["--lr", "3"], "Arguments of your own program follow `--`: python -m launcher resume RUN "),
        ("Program", ["workload.args=[a]", "--", "b"], "exclude each other"),
        ("P2P", ["--", "b"], "r is no run of a script of yours, so it has no arguments (--): use KEY=VALUE"),
    ],
)
def test_what_resume_does_not_take(
    ended: Run, kind: str, typed: list[str], problem: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plan = with_fields(ended.plan(), workload={"kind": kind})
    monkeypatch.setattr(Run, "plan", lambda _: plan)
    assert main(["resume", str(ended.path), *typed]) == 2
    assert problem in capsys.readouterr().err


# -- options of schedulers


def meant(line: str) -> str:
    """The arguments of `run` after its scheduler's options have become keys."""
    parser = commands.Parser("run", None)
    commands.of_run(parser)
    return " ".join(as_keys(shlex.split(line), parser._option_string_actions))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    return tmp_path


SELECT = "-l select=2:ncpus=8:ngpus=4:mem=64gb:arch=x,walltime=3600"


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("line", "keys"),
    [
        # without a cluster: sbatch's long options, and those of `run` itself
        ("t.py --nodes=2 --time 2h -m --cfg job --yes", "t.py nodes=2 time=2h -m --cfg job --yes"),
        ("t.py --partition=gpu --gpus-per-node=4 --account=me --mem=64G",
         "t.py cluster.partition=gpu gpus_per_node=4 cluster.account=me mem=64G"),
        ("--nodes 2 t.py seed=1,2 --hint=nomultithread", "nodes=2 t.py seed=1,2 cluster.directives.hint=nomultithread"),
        ("t.py --job-name=a --ntasks-per-node=8 --cpus-per-task=2", "t.py name=a procs_per_node=8 cpus_per_proc=2"),
        ("t.py --nodes=2-4", "t.py min_nodes=2 nodes=4"),
        ("t.py --mem=4096", "t.py mem=4096M"),
        ("t.py --mem=0", "t.py cluster.directives.mem=0"),
        ("t.py --gpus-per-node=a100:4", "t.py gpus_per_node=4 cluster.gpu_type=a100"),
        ("t.py --gres=gpu", "t.py gpus_per_node=1"),
        ("t.py --gres=gpu:a100:2", "t.py gpus_per_node=2 cluster.gpu_type=a100"),
        ("t.py --gres=gpu:2,tmp:1", "t.py gpus_per_node=2 cluster.directives.gres='gpu:2,tmp:1'"),
        ("t.py --gres=tmp:1", "t.py cluster.directives.gres='tmp:1'"),
        ("t.py --partition=a,b", "t.py cluster.partition='a,b'"),  # no sweep
        ("t.py --account=0123 --qos=null", "t.py cluster.account='0123' cluster.qos='null'"),  # no number, no null
        ("t.py --exclusive --no-requeue", "t.py cluster.directives.exclusive=true cluster.directives.no_requeue=true"),
        ("t.py --exclusive=user", "t.py cluster.directives.exclusive=user"),
        # the scheduler of the cluster decides what short ones are
        ("t.py cluster=slurm -N 2 -p gpu -t 2h -A me", "t.py cluster=slurm nodes=2 cluster.partition=gpu time=2h "
                                                       "cluster.account=me"),
        ("t.py cluster=slurm -N2 -pgpu -c 4 -t 2:00:00", "t.py cluster=slurm nodes=2 cluster.partition=gpu "
                                                         "cpus_per_proc=4 time=2:00:00"),
        ("t.py cluster=pbs -N a -q work -P p -A me", "t.py cluster=pbs name=a cluster.queue=work cluster.project=p "
                                                     "cluster.account=me"),
        (f"t.py cluster=pbs {SELECT}", "t.py cluster=pbs nodes=2 gpus_per_node=4 mem=64gb cluster.chunk.arch=x "
                                       "cpus_per_proc=2 time=3600s"),
        ("t.py cluster=pbs -l select=ncpus=6:mpiprocs=3 -lplace=pack", "t.py cluster=pbs nodes=1 procs_per_node=3 "
                                                                       "cpus_per_proc=2 cluster.place=pack"),
        ("t.py cluster=pbs -l walltime=1:00:00 -l filesystems=home", "t.py cluster=pbs time=1:00:00 "
                                                                     "cluster.resources.filesystems=home"),
        ("t.py cluster=pbs -W a=1 -M x -W b=2", "t.py cluster=pbs cluster.directives.W=['a=1'] cluster.directives.M=x "
                                                "cluster.directives.W=['a=1','b=2']"),  # the last one counts
        ("t.py cluster=pbs --nodes 2", "t.py cluster=pbs nodes=2"),
        ("t.py cluster=sge -N a -q all.q -l h_rt=60,gpu=1,excl -notify -ar 3",
         "t.py cluster=sge name=a cluster.queue=all.q time=60s cluster.resources.gpu=1 cluster.resources.excl='TRUE' "
         "cluster.directives.notify=true cluster.directives.ar=3"),
    ],
)  # fmt: skip
def test_options_of_schedulers_are_keys(line: str, keys: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert meant(line) == keys
    assert capsys.readouterr().err.startswith("launcher: -")


def test_the_option_is_shown_with_its_key(capsys: pytest.CaptureFixture[str], own: Path) -> None:
    (own / "user.yaml").write_text("cluster: slurm\n")
    assert meant("t.py --nodes 2 -x 'n[1-3]'") == "t.py nodes=2 cluster.exclude='n[1-3]'"
    assert capsys.readouterr().err == (
        "launcher: --nodes 2: nodes=2\nlauncher: -x 'n[1-3]': cluster.exclude='n[1-3]'\n"
    )


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("t.py --node 2", "there is no option '--node'. Did you mean --nodes"),
        ("t.py --partiton=gpu", "there is no option '--partiton'. Did you mean --partition?"),
        ("t.py --lr 0.1", "there is no option '--lr'. Arguments of your own program follow `--`: python -m"),
        ("t.py --dry-run", r"there is no option '--dry-run': keys have no dashes \(dry_run=VALUE\)"),
        ("t.py -N 2", r"there is no option '-N' with cluster=local: name the cluster .* \(slurm or pbs or sge\)"),
        ("t.py --nodes", "--nodes needs a value"),
        ("t.py --hold=1", "--hold=1: --hold has no value"),
        ("t.py --array=1-4", "--array is the launcher's: one command submits one run"),
        ("t.py --gpus=4", "--gpus is the launcher's: use --gpus-per-node"),
        ("t.py cluster=pbs --hint=x", "--hint is an option of sbatch, and the cluster is pbs"),
        ("t.py cluster=pbs -o out", "-o is the launcher's: the output's place"),
        ("t.py cluster=pbs -l nodes=2", "-l nodes=2: write -l select=NODES"),
        ("t.py cluster=pbs -l select=1:ncpus=2+1:ncpus=1", "all nodes of a run are equal"),
        ("t.py cluster=pbs -l select=1:ncpus=3:ngpus=2", "ncpus is not a multiple of the 2 ranks of a node"),
        ("t.py cluster=sge -pe smp 4", "-pe is the launcher's: use nodes and cluster.parallel_environment"),
    ],
)
def test_what_is_no_option_is_told_with_what_was_meant(line: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        meant(line)


def test_options_behind_two_dashes_are_the_scripts(monkeypatch: pytest.MonkeyPatch, own: Path) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(submit, "main", lambda words: asked.append(words) or 0)
    assert main(["run", "t.py", "--nodes=2", "--", "--nodes=3", "-N", "4"]) == 0
    assert asked[0][3:] == ["nodes=2", "--", "--nodes=3", "-N", "4"]
