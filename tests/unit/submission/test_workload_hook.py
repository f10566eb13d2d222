"""What a workload brings to its submission, and what is said of a hook that is none."""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from launcher import WorkloadHook
from launcher.__main__ import main
from launcher.cli import doctor
from launcher.config.schema import Config, Function, Workload
from launcher.errors import ConfigError
from launcher.paths import resource
from launcher.plan import workload_hook
from launcher.plan.plan import JobPlan
from launcher.schedulers.site import Level
from launcher.submission.prepare import Inputs, planned
from tests.launch import ROOT
from tests.unit.plans import SITE, hook_of, make_config, plan_of

HERE = f"{__name__}:"


class Answers(WorkloadHook):
    def prepare(self, config: Config) -> tuple[Workload, list[str]]:
        return dataclasses.replace(config.workload, min_ranks=3), ["three at least"]

    def check(self, plan: JobPlan) -> list[str]:
        return [f"{plan.world_size} ranks"]


class Raises(WorkloadHook):
    def check(self, plan: JobPlan) -> None:
        raise KeyError(plan.workload.params["name"])


class Forgets(WorkloadHook):
    def prepare(self, config: Config) -> None:  # type: ignore[override]
        pass


class Mistakes(WorkloadHook):
    def prepare(self, config: Config) -> tuple[Workload, list[str]]:
        return Function("other", "a:b", seed=0), []


class Counts(WorkloadHook):
    made = 0

    def __init__(self) -> None:
        Counts.made += 1


def config_with(hook: str | None, **keys: object) -> Config:
    return make_config(workload=Workload("work", "a:b", seed=0, hook=hook), **keys)


def test_its_answers_are_in_the_plan_and_in_the_notes() -> None:
    plan, notes = planned(config_with(f"{HERE}Answers"), SITE, Inputs())
    assert (plan.workload.params["min_ranks"], plan.world_size) == (3, 3)
    assert notes[:2] == ("three at least", "3 ranks")


def test_one_object_answers_for_a_whole_submission() -> None:
    inputs, before = Inputs(), Counts.made
    for _ in range(3):
        inputs.with_workload(config_with(f"{HERE}Counts"))
    assert Counts.made == before + 1
    Inputs().with_workload(config_with(f"{HERE}Counts"))
    assert Counts.made == before + 2


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("Answers", "write it as package.module:Class"),
        ("nowhere_to_be_found:Hook", "No module named .nowhere_to_be_found.\\. Submit in the folder that has it"),
        ("tests.nowhere:Hook", r"No module named 'tests.nowhere'\. Submit in the folder that has it"),
        (f"{HERE}Nobody", "has no attribute 'Nobody'"),
        (f"{HERE}Path", "Path is no subclass of launcher.WorkloadHook"),
        (f"{HERE}Forgets", "cannot unpack"),
        (f"{HERE}Mistakes", r"prepare\(\) returned Function\(.*, instead of a Workload"),
    ],
)
def test_a_hook_that_is_none_is_refused_by_its_key(hook: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"workload.hook={re.escape(hook)}: .*{words}"):
        Inputs().with_workload(config_with(hook))


def test_an_error_of_a_hook_has_its_place() -> None:
    with pytest.raises(ConfigError, match=rf"^workload.hook={HERE}Raises: KeyError: 'work' \({__file__}, line \d+\)$"):
        workload_hook.load(f"{HERE}Raises").check(plan_of(workload=Workload("work", "a:b", seed=0)))


def test_every_hook_of_ours_is_seen_in_its_file() -> None:
    for path in (resource("conf") / "workload").glob("*.yaml"):
        assert workload_hook._hook_in(path) == hook_of(path.stem)


def test_the_working_folder_is_searched_last_and_only_for_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("colorsys.py").write_text("raise AssertionError('not this one')")
    Path("only_here.py").write_text(
        "import colorsys, launcher\nclass Hook(launcher.WorkloadHook):\n    ONE = colorsys.ONE_THIRD\n"
    )
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    before = list(sys.path)
    assert workload_hook.load("only_here:Hook").name == "only_here:Hook"
    assert sys.path == before
    del sys.modules["only_here"]


def test_a_file_whose_hook_is_broken_hides_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    (tmp_path / "workload").mkdir()
    texts = {
        "a": "hook: gone:Hook",
        "b": "entry: a:hook\n# hook: x:Y",
        "c": "hook: null",
        "d": "hook: 'lost:Hook' # mine",
    }
    for name, text in texts.items():
        (tmp_path / "workload" / f"{name}.yaml").write_text(text)
    (tmp_path / "workload" / "e.yaml").write_bytes(b"\xff")
    known, problems = workload_hook.data_sets_of_all()
    assert {"mnist", "digits"} <= set(known)
    words = (
        "a.yaml: workload.hook=gone:Hook: Mod",
        "d.yaml: workload.hook=lost:Hook: Mod",
        "e.yaml: it cannot be read",
    )
    assert len(problems) == len(words)
    for problem, each in zip(problems, words, strict=True):
        assert problem.startswith(f"{tmp_path}/workload/{each}")
    assert [each.says for each in doctor._data() if each.level is Level.PROBLEM] == list(problems)


# -- the example of docs/your-code.md


def blocks() -> Iterator[str]:
    """The code blocks of the section."""
    page = (ROOT / "docs" / "your-code.md").read_text()
    section = page.partition("### Checks before submission\n")[2].partition("\n## ")[0]
    for block in re.findall(r"(?:^(?:    .*)?\n)+", section, re.MULTILINE):
        if block.strip():
            yield textwrap.dedent(block).strip("\n") + "\n"


def test_the_example_of_the_page_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, session = blocks()
    code = (ROOT / "tests" / "examples" / "checks.py").read_text()
    assert shown.partition("\n\n\nclass Checks(WorkloadHook):\n")[2] in code, "the page shows a part of the example"
    settings = "defaults: [function, _self_]\nname: mytrain\ntarget: mypkg.train:main\nhook: mypkg.checks:Checks\n"
    package, folder, mirror = tmp_path / "mypkg", tmp_path / "own" / "workload", tmp_path / "mirror"
    for each in (package, folder, mirror):
        each.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text("def main(folder, lr, batch_size=64): pass\n")
    (package / "checks.py").write_text(code)
    (folder / "mytrain.yaml").write_text(settings)
    (mirror / "names.txt").write_text("emma\n")

    own = {"LAUNCHER_CONFIG_DIR": str(folder.parent), "LAUNCHER_RUNS_DIR": f"{tmp_path}/runs", "HOME": str(tmp_path)}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["launcher"])

    def call(line: str) -> tuple[int, str]:
        GlobalHydra.instance().clear()
        code = main(line.split())
        for name in [name for name in sys.modules if name.partition(".")[0] == "mypkg"]:
            del sys.modules[name]
        return code, "".join(capsys.readouterr())

    command, *answer = session.splitlines()
    submission = command.removeprefix("$ launcher ")
    assert call(submission) == (2, "launcher: there are no names here yet: `launcher data fetch names` gets them\n")
    fetched = call(f"data fetch names --mirror file://{mirror}")[1]
    assert f"names is in {tmp_path}/data/names\n" in fetched and "names.txt: 5 B of 5 B" in fetched
    assert f"{tmp_path}/data/names (in the data folder)\n" in call("data")[1]
    assert call(submission) == (2, "".join(f"{line}\n" for line in answer))
    assert f"note: names: {tmp_path}/data/names\n" in call(submission.replace("=3", "=2 dry_run=true"))[1]
