"""Templates of the user's own: what is refused before anything is submitted, and what they lost against ours."""

from __future__ import annotations

import dataclasses
import subprocess
from functools import partial
from pathlib import Path

import pytest

from launcher.cli import commands
from launcher.cli.template import with_all_parts
from launcher.errors import ConfigError
from launcher.paths import resource
from launcher.runs.directory import Run
from launcher.schedulers import job_script, registry
from launcher.schedulers.planning import make_plan
from launcher.script import custom_template, lost_parts, templates
from launcher.script.lost_parts import Lost
from launcher.spec.plan import JobPlan
from launcher.submission.inputs import Inputs
from tests.unit.plans import SITE, make_config, with_fields
from tests.unit.sandbox import Sandbox

SCRIPT = partial(job_script.script, token="t")
OF_PBS = {"shell's variables", "secrets of the job", "secrets removed"}
OF_SRUN = "srun's environment"
EXTENDS = '{% extends "sbatch.sh.j2" %}\n'


def write(folder: Path, text: str) -> str:
    (folder / "mine.sh.j2").write_text(text)
    return str(folder / "mine.sh.j2")


def planned(template: str, **cluster: object) -> JobPlan:
    config = Inputs().with_template(make_config(cluster={"template": template, **cluster}))
    return make_plan(config, SITE)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{% block before %}\n{{ plan.naem }}\n{% endblock %}", r":3: a plan has no naem\. Did you mean name"),
        ("{% block before %}\n{{ plna }}\n{% endblock %}", r":3: there is no plna\. Did you mean plan"),
        ("{% if false %}{{ never_seen }}{% endif %}", r":2: there is no never_seen\."),
        ("{% block before %}\n{% endfor %}", r":3: Encountered unknown tag 'endfor'"),
        ("{% block before %}\n\n{{ plan.name | raw }}{% endblock %}", r":4: 'job' is a value and no shell code"),
        ('{% block before %}\nX="{{ plan.name }}"{% endblock %}', r":3: \{\{ plan\.name \}\} is within double quotes"),
        ("{% block before %}\necho 'a {{ plan.name }}'{% endblock %}", r":3: .* is within single quotes"),
        ("{% block before %}\ncat <<EOF\n{{ plan.name }}\nEOF\n{% endblock %}", r":4: .* is within a here-document"),
        ("{% block before %}\nx=`echo {{ plan.name }}`{% endblock %}", r":3: .* is within backquotes"),
        ('x=$(basename "$(dirname {{ plan.workdir }})" "{{ plan.workdir }}")', r":2: .* is within double quotes"),
        ('x="$(basename "{{ plan.workdir }}")"', r":2: .* is within double quotes"),
        ("cat <<-A <<'B C'\n\tA\nA\n{{ plan.name }}", r":5: .* is within a here-document"),
        ('{% include "parts/leese.sh.j2" %}', r":2: there is no template parts/leese\.sh\.j2"),
        (
            '{% include ["a.j2", "b.j2"] %}',
            r":2: there is no template a\.j2 or b\.j2\. Name your own by its absolute",
        ),
        ('\n{% import "/gone/macros.j2" as m %}', r":3: there is no template /gone/macros\.j2"),
        ('{% from "local.sh" import m %}', r":2: there is no template local\.sh\. Did you mean local\.sh\.j2"),
        ('{% include "/gone/" ~ plan.name %}', r": there is no template /gone/job"),
        ("{% block before %}\n{{ plan.name | shout }}{% endblock %}", r":3: No filter named 'shout'"),
        ("{% block before %}\n{{ {}.pop(plan.name) }}{% endblock %}", r":3: 'job'"),
        ("{% block before %}{{ [1] | join(1, 2, 3) }}{% endblock %}", r":2: "),
    ],
)
def test_what_is_wrong_with_one_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, EXTENDS + text + "\n")
    with pytest.raises(ConfigError, match=rf"(?s)cluster\.template: {path}{told}"):
        job_script.script(planned(path), token="t")


@pytest.mark.parametrize(
    "text",
    [
        'echo "a "{{ plan.name }}" b"', "echo 'it'\\''s' {{ plan.name }}", "# don't\n{{ plan.name }}",
        'x="${Y:-"{{ plan.name }}"}"', "cat <<EOF\n'\nEOF\n{{ plan.name }}", "echo \\\" {{ plan.name }}",
        'sleep "{{ plan.time | int }}"', "echo a#'b' {{ plan.name }}", "cat <<<word\n{{ plan.name }}",
        "n=$((1<<20)) m=$(( $((1)) <<2 ))\n{{ plan.name }}", "x=$'a\\'b' {{ plan.name }}",
        "(a; b) # '\n{{ plan.name }}", "cat <<A <<\"B\"\n'\nA\n'\nB\n{{ plan.name }}", 'echo "1 << x"\n{{ plan.name }}',
        "cat <<-A\n\tA\n{{ plan.name }}", 'x="$(cat {{ plan.name }} "a")" {{ plan.name }}',
        'echo "$((1<<2))" ")" {{ plan.name }}',
        '{% include "/gone/site.sh" ignore missing %}', '{% include ["/gone/site.sh", "parts/lease.sh.j2"] %}',
    ],
)  # fmt: skip
def test_values_outside_of_quotes_are_fine(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, f"{EXTENDS}{{% block before %}}\n{text}\n{{% endblock %}}\n")
    assert custom_template.problems(Path(path)) == []


def ran(folder: Path, source: str, value: str) -> bool:
    """Whether a value of a template ran as a command where it stands."""
    template = templates.environment().from_string(source)
    script = template.render(value=value)
    subprocess.run(["/bin/bash", "-c", f"a=(1 2)\n{script}"], cwd=folder, capture_output=True, check=False, timeout=30)
    pwned = folder / "pwned"
    there = pwned.exists()
    pwned.unlink(missing_ok=True)
    return there


# From a session in which 17 of such places ran something.
EVALUATES = [
    "echo $(( {{ value }} ))", "echo $((1 + {{ value }} * 2))", "(( x = {{ value }} ))",
    "x=$(( $(( {{ value }} )) ))", "for ((i = 0; i < {{ value }}; i++)); do break; done", "let x={{ value }}",
    "let {{ value }}", "let x=1 y={{ value }}", "true && let x={{ value }}", "echo ${a[{{ value }}]}",
    "a[{{ value }}]=1", "b=([{{ value }}]=1)", "b=([0]=1 [{{ value }}]=2)", "[[ {{ value }} -eq 1 ]]",
    "[[ 1 -lt {{ value }} ]]", "[[ -v {{ value }} ]]", "[ -v {{ value }} ]", "test -v {{ value }}",
    "unset {{ value }}", "declare -i x={{ value }}", "declare {{ value }}=1", "f() { local -i x={{ value }}; }; f",
    "printf -v {{ value }} x", "read {{ value }} <<<1", "echo ${a:{{ value }}}", "echo ${IFS:{{ value }}:1}",
    "echo $[ {{ value }} ]", "echo ${{ value }}", "eval {{ value }}",
]  # fmt: skip
COMMANDS = ["a[$(touch pwned)]", "$(touch pwned)", "\\'\\';touch pwned;\\'", "0;touch pwned"]


@pytest.mark.parametrize("text", EVALUATES)
def test_a_value_that_bash_would_evaluate_is_refused(tmp_path: Path, text: str) -> None:
    assert any(ran(tmp_path, text, value) for value in COMMANDS), "there is no danger here"
    path = write(tmp_path, f"{EXTENDS}{{% block before %}}\n{text.replace('value', 'plan.name')}\n{{% endblock %}}\n")
    (problem,) = custom_template.problems(Path(path))
    assert "the quotes that the launcher puts around a value do not protect it there" in str(problem)
    path = write(
        tmp_path, f"{EXTENDS}{{% block before %}}\n{text.replace('value', 'plan.time | int')}\n{{% endblock %}}\n"
    )
    assert custom_template.problems(Path(path)) == []


# Words that bash takes as they are.
SAFE = [
    "x={{ value }}", "local={{ value }}; export x={{ value }}", "readonly x={{ value }}",
    "f() { local x={{ value }}; }; f", "[ {{ value }} = b ]", "[ {{ value }} -eq 1 ]", "echo $((1 + 2)) {{ value }}",
    "a[0]={{ value }}", "b=({{ value }})", "echo ${HOME} {{ value }}", "echo ${x:-{{ value }}} ${x-{{ value }}}",
    "[[ -n x ]] && echo {{ value }}", "case {{ value }} in x) ;; esac", "unset x; echo {{ value }}",
    "echo let {{ value }}", "cat <<<{{ value }}", "for x in {{ value }}; do :; done", "printf -v x {{ value }}",
]  # fmt: skip


@pytest.mark.parametrize("text", SAFE)
def test_a_value_that_bash_takes_as_it_is_is_fine(tmp_path: Path, text: str) -> None:
    assert not any(ran(tmp_path, text, value) for value in COMMANDS)
    path = write(tmp_path, f"{EXTENDS}{{% block before %}}\n{text.replace('value', 'plan.name')}\n{{% endblock %}}\n")
    assert custom_template.problems(Path(path)) == []


def test_those_that_it_extends_and_includes_are_looked_at_as_well(tmp_path: Path) -> None:
    more = '{% include "parts/lease.sh.j2" %}\n{{ mine }}\ncat "{{ plan.name }}"\n{{ theirs }}\n'
    (tmp_path / "more.j2").write_text(more)
    included = f'{{% set mine = 1 %}}{{% include "{tmp_path}/more.j2" ignore missing %}}'
    (tmp_path / "base.j2").write_text(f"{EXTENDS}{{% block before %}}{included}{{% endblock %}}")
    path = write(tmp_path, f'{{% extends "{tmp_path}/base.j2" %}}\n')
    quoted, unknown = map(str, custom_template.problems(Path(path)))
    assert quoted.startswith(f"{tmp_path}/more.j2:3: {{{{ plan.name }}}} is within double quotes")
    assert unknown.startswith(f"{tmp_path}/more.j2:4: there is no theirs.")


def test_one_that_cannot_be_read_or_has_no_end_is_told_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, f'\n{{% extends "{tmp_path}/mine.sh.j2" %}}\n')
    with pytest.raises(ConfigError, match=rf"cluster\.template: {path}:2: it extends, includes or calls itself"):
        job_script.script(planned(path), token="t")
    Path(path).write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match=rf"cluster\.template: {path}:1: it cannot be read as text: .*utf-8"):
        planned(path)


def test_ours_keep_the_same_rules() -> None:
    files = [path for path in resource("templates").rglob("*.j2") if not path.name.endswith("function.sh.j2")]
    assert [str(problem) for path in files for problem in custom_template.problems(path)] == []
    assert len(files) > 5


def test_one_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"there is no file {tmp_path}/config/my\.j2 or {tmp_path}/my\.j2"):
        custom_template.found("my.j2")
    (tmp_path / "config").mkdir()
    (tmp_path / "config/my.j2").touch()
    (tmp_path / "my.j2").touch()
    assert custom_template.found("my.j2") == tmp_path / "config/my.j2"


def test_a_block_that_is_replaced_quotes_what_it_prints_and_keeps_what_is_ours(tmp_path: Path) -> None:
    text = "{% block before %}\nexport NAMED={{ plan.cluster.settings.partition }}\n{{ super() }}\n{% endblock %}\n"
    text += '{% block after %}\n{{ super() }}\necho "$code" >"$SANDBOX/after"\nfalse\n{% endblock %}\n'
    text += "{% block directives %}\n{{ super() }}\n#SBATCH --nice=5\n{% endblock %}\n"
    sandbox = Sandbox(tmp_path / "box")
    plan = sandbox.plan(
        cluster={"template": write(tmp_path, EXTENDS + text), "partition": "a $(touch bad) b", "setup": ("true",)}
    )
    outcome = sandbox.execute(plan, code=75)
    assert outcome.code == 75
    assert outcome.environment["NAMED"] == "a $(touch bad) b"
    assert (sandbox.folder / "after").read_text() == "75\n"
    script = (sandbox.folder / "script.sh").read_text()
    assert "#SBATCH --nice=5\n" in script
    assert "#SBATCH --nodes=1\n" in script
    assert lost_parts.of_plan(plan, SCRIPT) == []


def test_one_without_ours_has_lost_every_part(tmp_path: Path) -> None:
    text = '#!/bin/bash\n#SBATCH --nodes={{ plan.nodes }}\n{{ start }} {{ node }} "$LAUNCHER_RUN_DIR"\n'
    plan = with_all_parts(planned(write(tmp_path, text), setup=["module load x"], environment={"A": "1"}))
    lost = lost_parts.of_plan(plan, SCRIPT)
    parts = {each.part for each in lost}
    assert parts >= set(lost_parts.PARTS) - {"ranks", *OF_PBS}
    assert "ranks" not in parts
    assert {"set-up line 1 of the cluster's profile", "export A", "#SBATCH --job-name=job"} <= parts
    assert "#SBATCH --nodes=1" not in parts
    assert Lost("export A", "cluster.environment has no effect") in lost
    (told,) = lost_parts.notes(plan, SCRIPT)
    assert "lacks private files, lease" in told


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "sge"])
def test_an_option_of_the_job_that_is_lost_is_named(tmp_path: Path, scheduler: str) -> None:
    base = registry.scheduler(scheduler).template
    text = f'{{% extends "{base}" %}}\n{{% block directives %}}\n{{% endblock %}}\n'
    plan = planned(write(tmp_path, text), scheduler=scheduler)
    options = registry.scheduler(scheduler).directives(plan, "t", None, None)
    assert [each.part.partition(" ")[2] for each in lost_parts.of_plan(plan, SCRIPT)] == options


def test_the_names_are_those_that_a_template_gets() -> None:
    assert set(custom_template.NAMES) == set(job_script.context(make_plan(make_config(), SITE), token="t"))


@pytest.mark.parametrize("scheduler", registry.OURS)
def test_every_part_is_in_ours(scheduler: str) -> None:
    """Or lint would not see that one is lost."""
    script = SCRIPT(with_all_parts(make_plan(make_config(cluster={"scheduler": scheduler}), SITE)))
    missing = {each.part for each in lost_parts.lost(make_plan(make_config(), SITE), "", script)}
    others = {"pbs": {OF_SRUN}, "sge": {OF_SRUN}, "slurm": OF_PBS, "allocation": {*OF_PBS, OF_SRUN},
              "local": {*OF_PBS, OF_SRUN}}  # fmt: skip
    assert set(lost_parts.PARTS) - missing == others[scheduler]


@pytest.mark.parametrize("env", [{"container": "/a.sif"}, {"archive": "/a.tar"}])
def test_what_starts_the_ranks_in_an_environment_is_missed(tmp_path: Path, env: dict[str, str]) -> None:
    path = write(tmp_path, EXTENDS + "{% block start %}\nsrun python x.py\n{% endblock %}\n")
    plan = with_fields(planned(path), env=env)
    assert lost_parts.of_plan(plan, SCRIPT) == [Lost("ranks", "nothing starts the ranks")]
    path = write(tmp_path, EXTENDS + "{% block start %}\n{{ super() }}\n{% endblock %}\n")
    assert lost_parts.of_plan(plan, SCRIPT) == []


def test_a_template_that_is_changed_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, EXTENDS + "{% block before %}\nfirst\n{% endblock %}\n")
    assert "\nfirst\n" in job_script.script(planned(path), token="t")
    write(tmp_path, EXTENDS + "{% block before %}\nsecond\n{% endblock %}\n")
    assert "\nsecond\n" in job_script.script(planned(path), token="t")


def test_an_element_of_an_array_has_its_script_before_it_goes_on_alone(tmp_path: Path) -> None:
    """So that a template is rendered where it was submitted."""
    from launcher.schedulers.slurm.executor import SlurmExecutor

    plan = planned(write(tmp_path, EXTENDS), check=False)
    plan = make_plan_in(plan, tmp_path)
    run = Run.create(tmp_path / "runs/run-1")
    run.write_record(plan, {}, {"token": "t"})
    elements = [Run.create(run.path / str(number)) for number in range(2)]
    executor = SlurmExecutor(run, plan, "token")
    executor._write_scripts(elements, "token")
    assert "run-1/1" in (elements[1].path / "script.sh").read_text()


def test_the_command_starts_one_and_tells_what_another_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "config"))
    assert commands.main(["template", "show", "--cluster", "derecho"]) == 0
    started = capsys.readouterr().out
    assert 'extends "qsub.sh.j2"' in started
    path = write(tmp_path, started)
    assert commands.main(["template", "lint", path, "--cluster", "derecho"]) == 0
    assert "no errors, and no part of ours is missing" in capsys.readouterr().out
    write(tmp_path, started + "{% block end %}{% endblock %}\n")
    assert commands.main(["template", "lint", path, "--cluster", "pbs"]) == 1
    assert "requeue" in capsys.readouterr().out
    write(tmp_path, started + "{% block environment %}\nexec 9> >(cat)\n{% endblock %}\n")
    assert commands.main(["template", "lint", path, "--cluster", "pbs"]) == 1
    told = capsys.readouterr().out
    for part in ("export NAME", "secrets that are there", "snapshot", "launcher's code", "heartbeat", "waiting"):
        assert f"\n{part} " in told
    with pytest.raises(ConfigError, match=r"there is no template command 'lnit'\. Did you mean lint"):
        commands.main(["template", "lnit"])
    with pytest.raises(ConfigError, match="cluster=slurm has no template"):
        commands.main(["template", "lint"])


def make_plan_in(plan: JobPlan, folder: Path) -> JobPlan:
    return dataclasses.replace(plan, run_dir=str(folder / "runs/run-1"))
