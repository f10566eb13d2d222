"""The user's own template of a job script: what is refused with its line, and what its blocks do in a job."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from launcher.cli import commands
from launcher.errors import ConfigError
from launcher.files.retried_reads import read_json, unwrap
from launcher.plan.plan import JobPlan
from launcher.runs.directory import Run
from launcher.runs.job_file import NAME
from launcher.schedulers import registry
from launcher.submission import render
from launcher.submission.prepare import Inputs, make_plan
from tests.unit.plans import SITE, make_config
from tests.unit.sandbox import Sandbox

EXTENDS = '{% extends "sbatch.sh.j2" %}\n'
DIRECTIVES = "{% block directives %}\n{{ super() }}\n#SBATCH --comment=XX\n{% endblock %}"


def write(folder: Path, text: str) -> str:
    (folder / "mine.sh.j2").write_text(text)
    return str(folder / "mine.sh.j2")


def planned(template: str, **cluster: object) -> JobPlan:
    config = Inputs().with_template(make_config(cluster={"template": template, **cluster}))
    return make_plan(config, SITE)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (DIRECTIVES.replace("XX", "{{ plan.naem }}"), r":4: a plan has no naem\. Did you mean name"),
        (DIRECTIVES.replace("XX", "{{ plna }}"), r":4: there is no plna\. Did you mean plan"),
        (DIRECTIVES.replace("XX", "{{ plan.name | raw }}"), r":4: 'job' is a value and no shell code"),
        (DIRECTIVES.replace("XX", "{{ plan.name | shout }}"), r":4: No filter named 'shout'"),
        (DIRECTIVES.replace("XX", "{{ {}.pop(plan.name) }}"), r":4: 'job'"),
        (DIRECTIVES.replace("XX", "{{ [1] | join(1, 2, 3) }}"), r":4: "),
        (DIRECTIVES.replace("XX", "1\nexport A=1"), r": the block directives has the line 'export A=1', which is no"),
        ("{% if false %}{{ never_seen }}{% endif %}", r":2: there is no never_seen\."),
        ("{% block setup %}\n{% endfor %}", r":3: Encountered unknown tag 'endfor'"),
        (
            "{% block setup %}{{ super() }}\necho {{ plan.name }}\n{% endblock %}",
            r":3: plan is used outside of the block",
        ),
        ("{% set name = plan.name %}", r":2: plan is used outside of the block directives: .*LAUNCHER_NAME"),
        ("{% macro m() %}{{ plan.name }}{% endmacro %}", r":2: plan is used outside of the block directives"),
        (
            "{% block setup %}module load x\n{% endblock %}",
            r":2: the block setup lacks \{\{ super\(\) \}\}: cluster\.setup",
        ),
        ("{% block run %}srun x\n{% endblock %}", r":2: the block run lacks \{\{ super\(\) \}\}: the run's driver has"),
        ("{% block start %}x\n{% endblock %}", r":2: there is no block start\. There are directives, setup"),
        ("{% block stup %}x\n{% endblock %}", r":2: there is no block stup\. .*Did you mean setup"),
        ('{% include "job.sh.j2" %}', r":2: a template cannot include or import another one"),
        ('{% import "/x/macros.j2" as m %}', r":2: a template cannot include or import another one"),
    ],
)
def test_what_is_wrong_with_one_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, EXTENDS + text + "\n")
    with pytest.raises(ConfigError, match=rf"(?s)cluster\.template: {path}{told}"):
        render.rendered(planned(path), token="t")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("#!/bin/bash\nsrun x\n", r':1: it lacks \{% extends "sbatch\.sh\.j2" %\} \(there are allocation\.sh\.j2, '),
        ('{% extends "sbatch.sh" %}', r":1: there is no template sbatch\.sh\. Did you mean sbatch\.sh\.j2"),
        ('{% extends "/gone/x.j2" %}', r": /gone/x\.j2:1: it cannot be read as text"),
    ],
)
def test_one_that_extends_none_of_ours_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=told):
        planned(path)


def test_those_that_it_extends_are_looked_at_as_well(tmp_path: Path) -> None:
    (tmp_path / "base.j2").write_text(f"{EXTENDS}{{% block run %}}{{{{ super() }}}}{{{{ plan.name }}}}{{% endblock %}}")
    path = write(tmp_path, f'{{% extends "{tmp_path}/base.j2" %}}\n')
    (problem,) = render.template_problems(Path(path))
    assert problem.startswith(f"{tmp_path}/base.j2:2: plan is used outside of")


def test_one_that_extends_itself_or_is_no_text_is_told_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, f'\n{{% extends "{tmp_path}/mine.sh.j2" %}}\n')
    with pytest.raises(ConfigError, match=rf"cluster\.template: {path}:2: it extends or calls itself"):
        render.script(planned(path), token="t")
    Path(path).write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match=rf"cluster\.template: {path}:1: it cannot be read as text: .*utf-8"):
        planned(path)


def test_one_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"there is no file {tmp_path}/config/my\.j2 or {tmp_path}/my\.j2"):
        render.checked_template("my.j2")
    (tmp_path / "config").mkdir()
    (tmp_path / "config/my.j2").write_text(EXTENDS)
    (tmp_path / "my.j2").touch()
    assert render.checked_template("my.j2") == f"{tmp_path}/config/my.j2"


def test_each_block_does_what_it_is_for(tmp_path: Path) -> None:
    text = "{% block directives %}\n{{ super() }}\n#SBATCH --nice=5\n#SBATCH --wckey={{ plan.name }}\n{% endblock %}\n"
    text += '{% block setup %}\n{{ super() }}\nexport NAMED="$LAUNCHER_NAME on $LAUNCHER_NODES"\n{% endblock %}\n'
    text += "{% block run %}\nexport WRAPPED=yes\n{{ super() }}\n{% endblock %}\n"
    text += '{% block after %}\necho "$LAUNCHER_EXIT_CODE $LAUNCHER_ATTEMPT" >"$SANDBOX/after"\nfalse\n{% endblock %}\n'
    sandbox = Sandbox(tmp_path / "box")
    name = "a $(touch bad) b"
    plan = sandbox.plan(name=name, cluster={"template": write(tmp_path, EXTENDS + text), "setup": ("true",)})
    outcome = sandbox.execute(plan, code=75)
    assert outcome.code == 75
    assert (outcome.environment["NAMED"], outcome.environment["WRAPPED"]) == (f"{name} on 1", "yes")
    assert (sandbox.folder / "after").read_text() == "75 0\n"
    script = (sandbox.run_dir / "script.sh").read_text()
    assert {"#SBATCH --nice=5", f"#SBATCH --wckey='{name}'", "#SBATCH --nodes=1"} <= set(script.splitlines())
    assert not list(tmp_path.rglob("bad"))
    assert render.notes(plan, token="token") == ()


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "sge"])
def test_an_option_of_the_job_that_is_lost_is_named(tmp_path: Path, scheduler: str) -> None:
    base = registry.scheduler(scheduler).template
    path = write(tmp_path, f'{{% extends "{base}" %}}\n{{% block directives %}}\n{{% endblock %}}\n')
    plan = planned(path, scheduler=scheduler)
    options = registry.scheduler(scheduler).directives(plan, "t", None, None)
    wanted = tuple(f"cluster.template={path}: the job does not ask for {option}" for option in options)
    assert render.notes(plan, token="t") == wanted


def test_a_template_that_is_changed_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, EXTENDS + "{% block setup %}\n{{ super() }}first\n{% endblock %}\n")
    assert "\nfirst\n" in render.script(planned(path), token="t")
    write(tmp_path, EXTENDS + "{% block setup %}\n{{ super() }}second\n{% endblock %}\n")
    assert "\nsecond\n" in render.script(planned(path), token="t")


def test_an_element_of_an_array_has_its_script_before_it_goes_on_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a template is rendered where it was submitted."""
    from launcher.schedulers.executor import RunExecutor

    text = EXTENDS + "{% block after %}\necho over\n{% endblock %}\n"
    plan = dataclasses.replace(planned(write(tmp_path, text), check=False), run_dir=str(tmp_path / "runs/run-1"))
    run = Run.create(tmp_path / "runs/run-1")
    run.write_record(plan, {}, {"token": "t"})
    elements = [Run.create(run.path / str(number)) for number in range(2)]
    for element in elements:
        element.write_record(dataclasses.replace(plan, run_dir=str(element.path)), {}, {"token": "t"})
    executor = RunExecutor(run, plan, "token", scripts=render, elements=elements)
    monkeypatch.setattr(executor, "_send", lambda *_: "7")
    executor._submit_array(elements)
    assert "run-1/1" in (elements[1].path / "script.sh").read_text()
    after = Path(unwrap(read_json(elements[1].path / NAME))["after"])
    assert (after.parent, after.read_text()) == (elements[1].path, "echo over\n")


@pytest.mark.parametrize("cluster", ["slurm", "pbs", "derecho"])
def test_the_command_prints_one_that_changes_nothing(
    tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(["template", "show", "--cluster", cluster]) == 0
    path = write(tmp_path, capsys.readouterr().out)
    assert list(render.template_problems(Path(path))) == []
    scheduler = "slurm" if cluster == "slurm" else "pbs"
    mine = render.script(planned(path, scheduler=scheduler), token="t")
    ours = render.script(make_plan(make_config(cluster={"scheduler": scheduler}), SITE), token="t")
    changed = set(ours.splitlines()) - set(mine.splitlines())
    assert all("launcher_modules=" in line for line in changed)  # its set-up block may need `module`
