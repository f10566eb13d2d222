"""What cannot be composed is explained in the launcher's words, with what was probably meant."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydra_plugins.launcher_sweep import PointLauncher, PointSweeper, _count
from launcher.cli import submit
from launcher.cli.submit import CommandLine, command_line, with_program_arguments
from launcher.config.errors import explain
from launcher.config.overrides import opened
from launcher.errors import ConfigError
from launcher.paths import resource
from launcher.submission import resume


@pytest.fixture(autouse=True)
def hydra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    resolvers = {start: list(pairs) for start, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    resume.register()
    yield
    GlobalHydra.instance().clear()
    yaml.SafeLoader.yaml_implicit_resolvers = resolvers


def explained(*typed: str) -> str:
    arguments = opened(typed)
    try:
        with initialize_config_dir(str(resource("conf")), version_base="1.3"):
            OmegaConf.to_object(compose("config", arguments))
    except (HydraException, OmegaConfBaseException) as error:
        return explain(error, arguments)
    raise AssertionError("it composed")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["workload=ddp_mnits"],
            "there is no workload=ddp_mnits. Did you mean ddp_mnist? Known: collective, ddp_mnist, fsdp_lm, function, "
            "p2p, program",
        ),
        (["workload=zzz"], "there is no workload=zzz. Known: collective, ddp_mnist, fsdp_lm, function, p2p, program"),
        (["workload=p2p", "cluster=slrum"], "there is no cluster=slrum. Did you mean slurm?"),
        (["workload=p2p", "hydra/launcher=lancher"], "there is no hydra/launcher=lancher. Did you mean launcher?"),
        (["workload=p2p", "cluster=a/b"], "there is no cluster=a/b. Known: abci, "),
        (["workload=p2p", "env=${oc.env:NONE,/x}"], "env=${oc.env:NONE,/x}: there is no env=/x. Known: default"),
        (["workload=p2p", "launch=task"], "there is no launch=task. Did you mean tasks?"),
        (["worklod=p2p"], "there is no key 'worklod'. Did you mean workload"),
        (["workload=p2p", "node=2"], "there is no key 'node'. Did you mean nodes"),
        (["workload=p2p", "gpus=2"], "there is no key 'gpus'. Did you mean gpus_per_node?"),
        (["workload=p2p", "NODES=2"], "there is no key 'NODES'. Did you mean nodes?"),
        (["workload=p2p", "queue=q"], "there is no key 'queue'. Did you mean cluster.queue?"),
        (
            ["workload=p2p", "cluster=slurm", "cluster.partitoin=x"],
            "there is no key 'cluster.partitoin'. Did you mean cluster.partition",
        ),
        (["workload=ddp_mnist", "workload.batchsize=8"], "Did you mean workload.batch_size"),
        (["workload=p2p", "time=[1]"], "time=[1]: it must be one text, and no list or section"),
        (["workload=p2p", "~zzz"], "~zzz: there is no key 'zzz' that could be removed"),
        (["workload=p2p", "zzz=2"], "there is no key 'zzz'. `python -m launcher help --all` lists all"),
        (["workload=p2p", "stauts"], "'stauts' is neither a command nor KEY=VALUE"),
        (["workload=p2p", "cluster.exclude=node[3,7]"], "quote it as a text: 'cluster.exclude=\"node[3,7]\"'"),
        (["workload=program", "workload.flags.lr=1,2"], "or write 'workload.flags.lr=[1,2]' for a list"),
        (
            ["workload=program", "workload.flags=3"],
            "workload.flags=3: it is a section: set a name in it (workload.flags.NAME=VALUE)",
        ),
        (["workload=p2p", "+cluster.pools.a=3"], "a: it must be a section ({NAME: VALUE})"),
        (
            ["workload=p2p", "cluster.limits=3"],
            "cluster.limits=3: it is a section: set a key in it (cluster.limits.nodes, ",
        ),
        (
            ["workload=p2p", "resume=never"],
            "resume=never: it is a section: set a key in it (resume.how, resume.max_attempts",
        ),
        (["workload=ddp_mnist", "train.lr=1"], "there is no key 'train.lr'. Did you mean workload.lr?"),
        (["workload=p2p", "checkpoint.kep=1"], "Did you mean checkpoint.keep?"),
        (["workload=p2p", "cluster.setup=null"], "cluster.setup=null: it cannot be null: leave it out for its default"),
        (
            ["workload=p2p", "name=a,b"],
            "add -m for a sweep of these values, or write 'name=[a,b]' for a list, 'name=\"a,b\"' for a text",
        ),
        (["workload=p2p", "nodes=two"], "nodes=two: it must be a whole number"),
        (["workload=p2p", "launch.grace=30s"], "launch.grace=30s: it must be a whole number: seconds between SIGTERM"),
        (["workload=p2p", "launch.mode=both"], "launch.mode=both: it must be one of agent, tasks"),
        (["workload=p2p", "cluster.setup=x"], "cluster.setup=x: it must be a list ([one, two])"),
        (["workload=p2p", "cluster.setup=[null]"], "cluster.setup[0]: null cannot be one of its values: leave it out"),
        (["workload.sizes=1M"], "no workload: add workload=NAME, with one of collective, "),
        (["workload=p2p", "workload.size=1M"], "Did you mean workload.sizes?"),  # once
        (["workload=p2p", "workload.lr=1"], "There is one with workload=ddp_mnist or fsdp_lm."),
        (["workload=program", "workload.script=a.py", "lr=1"], "Arguments of your own program follow `--`"),
        (
            ["workload=p2p", "cluster.directives.l=a=1"],
            "cluster.directives.l=a=1: the value is not valid in Hydra's grammar",
        ),
        (
            ["workload=p2p", "name=my run!"],
            "name=my run!: the value is not valid in Hydra's grammar: correct it, or quote",
        ),
    ],
)
def test_the_error_names_what_was_typed_and_what_was_meant(arguments: list[str], words: str) -> None:
    assert words in explained(*arguments)


@pytest.mark.parametrize(
    ("value", "means"),
    [
        ("[--lr,0.1,--name,a=b]", ["--lr", 0.1, "--name", "a=b"]),
        ("[--name,it's,--x,$(y)=1]", ["--name", "it's", "--x", "$(y)=1"]),
        ("--lr=1", "--lr=1"),
        ("a=(b", "a=(b"),
    ],
)
def test_what_is_to_be_quoted_means_what_was_meant_when_it_is(value: str, means: object) -> None:
    told = explained("workload=program", f"workload.args={value}")
    (word,) = shlex.split(told.partition("as a text: ")[2].partition("; or, without quotes, after `--`")[0])
    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        assert compose("config", ["workload=program", word]).workload.args == means


@pytest.mark.parametrize(
    ("words", "composed"),
    [
        (["nodes=2"], ["nodes=2"]),
        (
            ["nodes=2", "--", "--lr", "0.1", "a=b", "--", "${x}"],
            ["nodes=2", "workload.args=['--lr','0.1','a=b','--','\\${x}']"],
        ),
        (["--"], ["workload.args=[]"]),
    ],
)
def test_what_stands_behind_two_dashes_is_text(words: list[str], composed: list[str]) -> None:
    assert with_program_arguments(words) == composed


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["workload.args=[1]", "--", "2"], "workload.args=[1] and arguments after `--` exclude each other"),
        (["--", "???"], "??? cannot be an argument"),
    ],
)
def test_arguments_that_cannot_be_taken_are_refused(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        with_program_arguments(words)


def test_an_option_among_the_scripts_arguments_is_not_ours() -> None:
    command = command_line(["workload=program", "--", "--yes", "-m"])
    assert (command.words, command.yes) == (("workload=program", "workload.args=['--yes','-m']"), False)
    assert command_line(["--yes", "workload=p2p"]).yes


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["workload=p2p", "=3"], "=3: there is no key in front of the ="),
        (["-m", "workload=p2p", "cluster=local,3"], "cluster=local,3: it must be one of "),
        (["workload=true"], "workload=true: it must be one of "),
        (["workload=null"], "workload=null: it must be one of "),
        (["workload=p2p", "cluster=3"], "cluster=3: it must be one of "),
        (
            ["workload=p2p", "nodes=2", "sweep.slots=2", "dry_run=true"],
            "sweep.slots=2 is for a sweep, and this is a single run: add -m, or leave it out",
        ),
        (
            ["workload=p2p", "cluster.queue=q", "dry_run=true"],
            "cluster.queue=q: without cluster= this runs on local, which ignores it: add cluster=pbs, or cluster=local",
        ),
        (
            ["-m", "workload=p2p", "++cluster.chunk.a=1", "nodes=1,2", "dry_run=true"],
            "cluster.chunk.a=1: without cluster= this runs on local, which ignores it: add cluster=pbs, or",
        ),
        (["workload=p2p", "runs_dir=", "dry_run=true"], "runs_dir is empty: give it a value, or leave it out"),
        (
            ["-m", "workload=p2p", "seed=1,2", "sweep.budget.points=1", "dry_run=true"],
            "sweep.budget.points=1 is for a search: add sweep.search=random, tpe, asha or grid, or leave it out",
        ),
        (["-m", "workload=p2p", "seed=1,2", "sweep.budget={points: 1}", "dry_run=true"], "{points: 1} is for a search"),
        (["-m", "workload=p2p", "seed=1,2", "sweep.asha={min_steps: 5}", "dry_run=true"], "5} is for a search: add"),
        (
            ["-m", "workload=p2p", "workload.seed=interval(0,1)", "dry_run=true"],
            "workload.seed=interval(0,1): only a search takes an interval: add sweep.search=random, tpe or asha",
        ),
        (
            ["workload=p2p", "cluster=slurm", "cluster.partition=''", "dry_run=true"],
            "cluster.partition is empty: give it",
        ),
        (["--partition=x"], "there is no option '--partition'. Did you mean cluster.partition?"),
        (["--nodes", "2"], "there is no option '--nodes'. Keys have no dashes: nodes=VALUE"),
        (["workload=p2p", "--mulitrun"], "there is no option '--mulitrun'. Did you mean --multirun"),
        (["--foo"], "there is no option '--foo'. `python -m launcher --help` lists them"),
        (["workload=p2p", "--cfg", "jbo"], "--cfg/-c: invalid choice: 'jbo'"),
        (["workload=p2p", "--cfg"], "--cfg/-c: expected one argument"),
        (["workload=p2p", "--config-dir=/no/such"], "--config-dir /no/such: there is no such folder"),
        (["workload=p2p", "--resolve"], "--resolve is for --cfg: add --cfg job"),
        (["-m", "workload=p2p", "--cfg", "job"], "--multirun and --cfg exclude each other: leave one of them out"),
        (["-m", "workload=p2p", "stauts"], "'stauts' is neither a command nor KEY=VALUE"),
    ],
)
def test_a_command_line_that_cannot_be_meant(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        submit.main(words)


def test_overrides_may_follow_an_option_whose_value_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = list[str]()
    monkeypatch.setattr(submit.hydra, "main", lambda **_: lambda task: lambda: typed.extend(sys.argv[1:]))
    assert submit.main(["--info", "workload=p2p"]) == 0
    assert typed == ["workload=p2p", "--info"]


@pytest.mark.parametrize(("seeds", "told"), [("1", True), ("1,1", True), ("1,2", False)])
def test_a_sweep_of_one_point_says_so(seeds: str, told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["-m", "workload=p2p", f"seed={seeds}", "dry_run=true"]) == 0
    assert ("note: the sweep has one point: several come from KEY=A,B" in capsys.readouterr().err) is told


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["seed=range(1000)", "nodes=range(0,10,0.01)", "time=shuffle(range(1000))"],
            "it has 1,000,000,000 points, and a sweep has at most 100,000: divide it into several sweeps",
        ),
        (["seed=range(100000)", "nodes=1,2"], "it has 200,000 points"),
        (["seed=range(0,1e15)", "nodes=range(2,1)"], "nodes=range(2,1): it has no values, so the sweep has no points"),
        (["seed=range(0,inf)"], "seed=range(0,inf): write range(START,STOP,STEP) with finite numbers"),
        (["seed=range(0,1,0)"], "seed=range(0,1,0): write range(START,STOP,STEP) with finite numbers"),
    ],
)
def test_a_grid_is_counted_before_it_is_made(words: list[str], problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PointSweeper, "split_arguments", lambda *_: pytest.fail("it was made"))
    with pytest.raises(ConfigError, match=re.escape(problem)):
        submit.main(["-m", "workload=p2p", *words])


@pytest.mark.parametrize(
    "values",
    [
        "1", "[1,2]", "1,2,2", "choice(a,b)", "shuffle(range(5))", "sort(range(1,5),reverse=true)", "range(4,0,-1)",
        "range(0,1,0.1)", "range(0,-0.3,-0.3)", "range(1.146,20.746,0.7)", "range(5,3)", "float(range(1,5))",
    ],
)  # fmt: skip
def test_values_are_counted_as_they_are_made(values: str) -> None:
    overrides = OverridesParser.create().parse_overrides([f"a={values}"])
    (points,) = PointSweeper.split_arguments(overrides, None)
    assert _count(overrides[0]) == len(points)


def test_more_ranks_than_a_machine_can_run_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["workload=p2p", "procs_per_node=100000", "dry_run=true"]) == 0
    assert "note: 100000 ranks share the " in capsys.readouterr().err


@pytest.mark.parametrize("section", ["chunk", "directives", "environment", "expects", "rank_environment", "resources"])
def test_keys_that_are_the_users_own_need_no_plus(section: str) -> None:
    words = command_line(["workload=p2p", "cluster=pbs", f"cluster.{section}.a=1"]).words
    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        assert compose("config", list(words)).cluster[section].a == 1


def test_another_hydra_app_is_no_command_line_of_ours() -> None:
    """Hydra loads our plug-in in every Hydra app of the same Python; what was typed comes with our task function."""

    def task(config: DictConfig) -> None:
        """Of another app."""

    context = HydraContext(config_loader=Mock(), callbacks=Mock())
    config = OmegaConf.create({"hydra": {"sweeper": {"_target_": "PointSweeper"}}})
    with pytest.raises(ConfigError, match="hydra/launcher=launcher submits runs of the launcher's own command"):
        PointLauncher().setup(hydra_context=context, task_function=task, config=config)
    ours = PointLauncher()
    command = command_line(["-m", "workload=p2p", "seed=1,2", "--yes"])
    ours.setup(hydra_context=context, task_function=submit.HydraTask(command), config=config)
    assert ours.multirun._command == CommandLine(("-m", "workload=p2p", "seed=1,2"), yes=True)


@pytest.mark.parametrize("word", ["hydra/sweeper=optuna", "hydra/sweeper=ax"])
def test_a_sweeper_that_searches_is_refused_with_what_to_write(word: str) -> None:
    with pytest.raises(ConfigError, match=r"hydra/sweeper=\w+ is not used here. Searches are sweep.search=tpe"):
        submit.main(["-m", "workload=ddp_mnist", word, "workload.lr=interval(0,1)"])
