"""Whatever a value holds, it reaches its place byte by byte and is never run: the rendered scripts are run to see."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import ConfigError
from launcher.paths import own_module
from launcher.plan.plan import CONTROL, JobPlan
from launcher.runs.directory import Run
from launcher.schedulers import tasks, templates
from launcher.schedulers.pbs import script as qsub
from launcher.submission import render
from tests.unit.plans import bare_plan
from tests.unit.sandbox import Outcome, Sandbox

EVIL = [
    "two words", " blanks around ", "\ttab\t", "it's", '"quoted"', "'''", "$(touch {0})", "`touch {0}`", "; touch {0}",
    "& touch {0} &", "| touch {0}", "> {0}", "$HOME", "${{HOME}}", "~", "*", "?", "!!", "#", "\\", "a\\",
    "\\$(touch {0})",
    "'; touch {0}; '", '"; touch {0}; "', "'$(touch {0})'", "\"$(touch {0})\"", "a\\'; touch {0} #", "{{{{ 7 * 7 }}}}",
    "{{% raw %}}", "größe", "名前", "--flag", "-n", "", "a=b", "%j", "(touch {0})", "{{a,b}}", "<({0})",
]  # fmt: skip


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def evil(sandbox: Sandbox) -> list[str]:
    return [text.format(sandbox.folder / "pwned") for text in EVIL]


def safe(outcome: Outcome) -> bool:
    return not list(outcome.sandbox.folder.rglob("pwned"))


def test_values_of_the_environment_arrive_as_they_are(sandbox: Sandbox) -> None:
    wanted = {f"V{number}": text for number, text in enumerate(evil(sandbox))}
    outcome = sandbox.execute(sandbox.plan(cluster={"environment": wanted}))
    assert outcome.code == 0
    assert wanted.items() <= outcome.environment.items()
    assert safe(outcome)


def test_arguments_of_srun_arrive_as_they_are(sandbox: Sandbox) -> None:
    wanted = evil(sandbox)
    outcome = sandbox.execute(sandbox.plan(cluster={"srun_args": tuple(wanted)}))
    assert [argument for argument in outcome.arguments if argument in wanted] == wanted
    assert safe(outcome)


def test_the_test_would_see_it_if_quoting_were_off(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shlex, "quote", str)
    outcome = sandbox.execute(sandbox.plan(name=f"$(touch {sandbox.folder}/pwned)", python=sys.executable))
    assert not safe(outcome)


NAMES = [" a  b ", 'it\'s "so"', "$(touch pwned)`touch pwned`; touch pwned", "\\$HOME*?", "größe #1"]


@pytest.mark.parametrize(
    ("scheduler", "name"),
    [*(("slurm", name) for name in NAMES), *((each, name) for each in ("allocation", "local") for name in NAMES[1:3])],
)
def test_folders_and_the_interpreter_may_have_any_name(tmp_path: Path, scheduler: str, name: str) -> None:
    sandbox = Sandbox(tmp_path / name)
    plan = sandbox.plan(cluster={"scheduler": scheduler}, code_root=f"{sandbox.folder}/code")
    outcome = sandbox.execute(plan)
    assert outcome.code == 0
    assert outcome.cwd == str(sandbox.work)
    assert outcome.environment["LAUNCHER_RUN_DIR"] == str(sandbox.run_dir)
    assert outcome.environment["PYTHONPATH"] == f"{sandbox.folder}/code"
    agent = ["-u", *own_module("launcher.agent"), str(sandbox.run_dir)]
    assert outcome.arguments[-len(agent) :] == agent
    assert outcome.arguments[-len(agent) - 1].endswith(str(sandbox.python))
    assert not list(tmp_path.rglob("pwned"))


TEXTS = ("name", "partition", "account", "constraint", "exclude")


def with_text(sandbox: Sandbox, text: str, **fields: Any) -> Path:
    """The script of a plan that has this text wherever one may be."""
    cluster = {**dict.fromkeys(TEXTS, text), "gpu_directive": "gres", "setup": (":",)}
    plan = sandbox.plan(name=text, run_id=text, gpus_per_node=1, cluster=cluster, **fields)
    return render.write(Run(sandbox.run_dir), plan, token=text)


def test_no_text_of_the_plan_is_run_by_the_script(sandbox: Sandbox) -> None:
    driver = sandbox.folder / "bin/driver"
    driver.write_text('#!/bin/sh\n[ "$1" = -I ] && echo begun\n')  # the real one is a Python, and has no shell
    driver.chmod(0o700)
    for number, text in enumerate(evil(sandbox), 1):
        script = with_text(sandbox, text, python=str(driver))
        outcome = sandbox.start(script, {"SLURM_JOB_ID": "7"})
        assert (outcome.code, safe(outcome)) == (0, True), script.read_text()
        assert (sandbox.folder / "output").read_text() == "begun\n" * number


@pytest.mark.parametrize("start", range(0, len(EVIL), 10))
def test_no_text_of_the_plan_is_run_by_the_driver(sandbox: Sandbox, start: int) -> None:
    script = with_text(sandbox, " ".join(evil(sandbox)[start : start + 10]))
    outcome = sandbox.start(script, {"SLURM_JOB_ID": "7"})
    assert (outcome.code, outcome.started, safe(outcome)) == (0, True, True), outcome.stderr


def options(script: str) -> dict[str, str]:
    """The #SBATCH options as sbatch reads them (sbatch/opt.c, _get_argument).

    tests/cluster/test_render.py holds the scripts against a real one.
    """
    found = {}
    for line in script.splitlines():
        if not line.startswith("#SBATCH"):
            continue
        words, word, quote, escaped = [], "", "", False
        for char in line.removeprefix("#SBATCH") + " ":
            if escaped:
                word, escaped = word + char, False
            elif char == "\\":
                escaped = True
            elif quote:
                quote, word = ("", word) if char == quote else (quote, word + char)
            elif char in "'\"":
                quote = char
            elif char == "#":
                break
            elif char.isspace():
                words, word = [*words, word] if word else words, ""
            else:
                word += char
        assert (len(words), quote, escaped) == (1, "", False), line  # one option in a line, and all of it
        name, _, value = words[0].removeprefix("--").partition("=")
        assert name not in found, f"{name} twice"
        found[name] = value
    return found


@pytest.mark.parametrize("field", ["partition", "account", "qos", "constraint", "reservation", "exclude"])
def test_directives_arrive_as_they_are(sandbox: Sandbox, field: str) -> None:
    for text in evil(sandbox):
        plan = bare_plan(cluster={field: text, "directives": {"mcs-label": text}})
        read = options(render.script(plan, token=text))
        assert (read[field], read["comment"], read["mcs-label"]) == (text, text, text)


def test_directives_come_before_the_first_command() -> None:
    lines = render.script(bare_plan(cluster={"partition": "p"}), token="token").splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert lines[0] == "#!/bin/bash"
    assert all(line.startswith("#SBATCH") for line in lines[1 : last + 1])


@pytest.mark.parametrize(
    ("letter", "value", "line"),
    [
        ("N", "job", "-N job"),
        ("h", "", "-h"),
        ("l", "select=2:ncpus=4", "-l select=2:ncpus=4"),
        ("o", "/a b/", "-o '/a b/'"),
        ("A", "it's", "-A 'it'\"'\"'s'"),
        ("A", "a\\b", "-A 'a\\b'"),  # qsub takes no backslash for an escape within quotes
        ("J", "0-9%2", "-J 0-9%2"),
    ],
)
def test_options_of_qsub_are_written_as_it_reads_them(letter: str, value: str, line: str) -> None:
    assert qsub.line(letter, value) == line


@pytest.mark.parametrize(
    ("word", "problem"), [("{ranks}", "'ranks'"), ("{}", "Replacement index 0"), ("{", "Single '{'")]
)
def test_a_word_of_mpiexec_that_cannot_be_filled_in_is_told(word: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        tasks.command("python", 2, 4, 1, starter="mpiexec", mpiexec=["mpiexec", word])
    assert str(refusal.value).startswith(f"mpiexec: {problem}")
    assert str(refusal.value).endswith(" cannot be filled in; there are {nodes}, {tasks} and {tasks_per_node}")


@pytest.mark.parametrize("char", ["\n", "\r", "\x00", "\x1b", "\x85", "\u2028"])
def test_no_option_of_qsub_has_a_control_character(char: str) -> None:
    with pytest.raises(ValueError, match="refusing to write the control character"):
        qsub.line("A", f"a{char}b")


CONTROLS = ["\n", "\r", "\x00", "\x1b", "\x7f", "\x0b", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize(
    "fields",
    [
        *({field: "a{}b"} for field in ("run_dir", "workdir", "python", "code_root", "run_id", "name")),
        {"cluster": {"partition": "a{}b"}},
        {"cluster": {"environment": {"A": "a{}b"}}},
        {"cluster": {"directives": {"licenses": "a{}b"}}},
        {"cluster": {"srun_args": ("a{}b",)}},
    ],
    ids=str,
)
def test_control_characters_never_reach_a_script(fields: dict[str, Any]) -> None:
    def filled(value: Any, char: str) -> Any:
        if isinstance(value, dict):
            return {key: filled(item, char) for key, item in value.items()}
        return tuple(filled(item, char) for item in value) if isinstance(value, tuple) else value.format(char)

    for char in CONTROLS:
        with pytest.raises(ValueError, match="refusing to write the control character") as refusal:
            render.rendered(bare_plan(**filled(fields, char)), token="token")
        assert repr(char) in str(refusal.value)


@pytest.mark.parametrize("char", CONTROLS)
def test_a_token_with_a_control_character_is_refused(char: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        render.script(bare_plan(), token=f"a{char}b")


def test_a_variable_of_a_template_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    from jinja2 import UndefinedError

    (tmp_path / "t.j2").write_text("{{ plan.no_such_thing }}")
    with pytest.raises(UndefinedError):
        templates.template(str(tmp_path / "t.j2")).render(plan=bare_plan())


def test_templates_quote_by_default_and_no_filter_turns_it_off(tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_text("{{ a }}|{{ a | safe }}|{{ a | upper }}|{{ [a][0] }}|{{ a ~ '' }}")
    text = templates.template(str(tmp_path / "t.j2")).render(a="$(x)")
    assert text == "'$(x)'|'$(x)'|'$(X)'|'$(x)'|'$(x)'"


def test_the_same_plan_gives_the_same_script() -> None:
    assert render.script(bare_plan(), token="t") == render.script(bare_plan(), token="t")


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda text: not CONTROL.search(text))


@given(st.lists(words, max_size=20), st.lists(words, max_size=10))
@settings(max_examples=8)
def test_any_text_arrives_as_it_is(values: list[str], arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sandbox = Sandbox(Path(folder))
        environment = {f"V{number}": text for number, text in enumerate(values)}
        outcome = sandbox.execute(sandbox.plan(cluster={"environment": environment, "srun_args": tuple(arguments)}))
        assert environment.items() <= outcome.environment.items()
        ours = outcome.arguments.index("--kill-on-bad-exit=1") + 1
        assert outcome.arguments[ours : ours + len(arguments)] == arguments


@given(words, words)
def test_any_text_is_one_word_of_the_shell_and_of_sbatch(first: str, second: str) -> None:
    assert shlex.split(f"{templates.quote(first)} {templates.quote(second)}") == [first, second]
    plan: JobPlan = bare_plan(cluster={"partition": first, "account": second})
    assert {"partition": first, "account": second}.items() <= options(render.script(plan, token="token")).items()
