"""A template of the user's own (cluster.template), looked at before it is used; `lost_parts` compares it with ours.

Values are quoted for the shell wherever a template prints them. Within quotes of the template's own that would undo
itself: in `"{{ plan.name }}"` the single quotes are text, and a `$(...)` in the value would be run. And in some places
bash evaluates what a word comes to, quoted or not: `a[$(...)]` runs a command in arithmetic. So both are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError, near
from launcher.paths import resource, user_config_dir
from launcher.script import templates
from launcher.script.shell_text import ShellText
from launcher.spec.plan import JobPlan

if TYPE_CHECKING:
    import jinja2


@dataclass(frozen=True)
class Problem:
    """What is wrong, and where."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def found(name: str) -> Path:
    """The file that cluster.template means: in the user's own config folder, else seen from the working folder.

    Raises:
        ConfigError: it is not there.
    """
    places = [folder / Path(name).expanduser() for folder in (user_config_dir(), Path.cwd())]
    for path in places:
        if path.is_file():
            return path
    tried = " or ".join(dict.fromkeys(map(str, places)))
    raise ConfigError(f"cluster.template={name}: there is no file {tried}; `template show` prints one to start from")


def require_sound(path: Path) -> None:
    """
    Raises:
        ConfigError: `problems` has found some.
    """
    if wrong := problems(path):
        raise ConfigError("cluster.template: " + "\n  ".join(map(str, wrong)))


def problems(path: Path) -> list[Problem]:
    """What is wrong with a template whatever the plan: syntax, unknown names, values that are not protected. Those
    of the user's own that it extends, includes or imports are looked at as well."""
    ours = resource("templates")
    wrong: list[Problem] = []
    files, known = [str(path)], {*NAMES, *templates.environment().globals}
    seen: set[str] = set()
    while files:
        if (each := files.pop(0)) not in seen and (each == str(path) or not (ours / each).is_relative_to(ours)):
            seen.add(each)
            wrong += _of_file(each, files, known)
    return wrong


def _of_file(path: str, files: list[str], known: set[str]) -> list[Problem]:
    """What is wrong with one file. The templates that it needs are added to `files`; to `known` its names, which may
    be set for those."""
    # Lazily: jinja2 takes 15 ms, and only a submission needs it
    import jinja2
    from jinja2 import meta, nodes

    environment = templates.environment()
    try:
        source = Path(path).read_text()
        tree = environment.parse(source, filename=path)
        undeclared = meta.find_undeclared_variables(tree)
    except jinja2.TemplateSyntaxError as error:
        return [Problem(path, error.lineno, f"{error.message}")]
    except (OSError, UnicodeDecodeError) as error:
        return [Problem(path, 1, f"it cannot be read as text: {error}")]
    wrong = []
    for name in sorted(undeclared - known):
        line = next((n for n, text in enumerate(source.splitlines(), 1) if re.search(rf"\b{name}\b", text)), 1)
        wrong.append(Problem(path, line, f"there is no {name}.{near(name, known)} Known: {', '.join(NAMES)}"))
    known |= {each.name for each in tree.find_all(nodes.Name)}
    for line, names, needed in _references(tree):
        there = [name for name in names if (resource("templates") / name).is_file()]
        files += there
        if needed and not there:
            ours = [each.name for each in resource("templates").glob("*.j2")]
            hint = near(names[0], ours) or " One of your own is named by its whole path"
            wrong.append(Problem(path, line, f"there is no template {' or '.join(names)}.{hint}"))
    return sorted([*wrong, *_unprotected(environment, path, source)], key=lambda each: each.line)


def _references(tree: jinja2.nodes.Template) -> Iterator[tuple[int, list[str], bool]]:
    """The templates that one names: line, names of which any will do, and whether one has to be there."""
    # Lazily: jinja2 takes 15 ms, and only a submission needs it
    from jinja2 import nodes

    for node in tree.find_all((nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)):
        assert isinstance(node, (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport))
        try:
            named = node.template.as_const()
        except nodes.Impossible:  # made of values
            continue
        needed = not (isinstance(node, nodes.Include) and node.ignore_missing)
        yield node.lineno, [named] if isinstance(named, str) else [*map(str, named)], needed


NAMES = (
    "plan", "version", "directives", "array", "elements", "arrays", "checkpoints", "setup", "environment", "start",
    "node", "again", "after", "secrets", "secrets_file", "seconds", "lease_patience", "lease_beat", "lease_look",
    "umask", "shell", "passing", "read_patience", "read_pause", "seen", "no_workdir",
)  # fmt: skip


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """The script.

    Raises:
        ConfigError: the template does not go together with these values; with its file and line.
    """
    # Lazily: jinja2 takes 15 ms, and only a submission needs it
    import jinja2

    try:
        return str(templates.template(template).render(values))
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"cluster.template: {error.filename}:{error.lineno}: {error.message}") from None
    except jinja2.TemplateNotFound as error:
        raise ConfigError(f"cluster.template: {template}: there is no template {error.name}") from None
    except RecursionError as error:
        path, line = _place(error.__traceback__, template)
        raise ConfigError(f"cluster.template: {path}:{line}: it extends, includes or calls itself") from None
    except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        path, line = _place(error.__traceback__, template)
        raise ConfigError(f"cluster.template: {path}:{line}: {_words(str(error))}") from None


def _words(told: str) -> str:
    match = re.search(r"JobPlan object' has no attribute '(\w+)'", told)
    names = [each.name for each in fields(JobPlan)]
    return f"a plan has no {match[1]}.{near(match[1], names)}" if match else told


def _place(trace: TracebackType | None, template: str) -> tuple[str, int]:
    """The line of a template that an error comes from; jinja2 puts them into the traceback."""
    place = (template, 0)
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name == template or name.endswith(".j2"):
            place = (name, trace.tb_lineno)
        trace = trace.tb_next
    return place


# -- values where quotes do not protect them

# What a value follows on its line, and what bash makes of it there (man bash: ARITHMETIC EVALUATION, Arrays, Parameter
# Expansion, QUOTING; the builtins that take a variable's name evaluate its subscript).
_COMMAND = r"(?:^|[;&|({]|\b(?:then|do|else|if|while))\s*"
EVALUATED = {
    r"\$$": "behind a $",
    r"\$\{[^}:]+:(?![-=+?])[^}]*$": "within ${x:...}",
    r"\$\[[^\]]*$|[\w(]\[[^\]]*$|\[$": "within a[...]",
    r"\[\[(?!.*\]\])": "within [[ ]]",
    r"\s-v\s+$": "the name of a variable (-v)",
    rf"{_COMMAND}let\s[^;&|]*$": "an argument of let",
    rf"{_COMMAND}(declare|typeset|local|readonly)\s[^;&|]*-\w*i[^;&|]*$": "the value of an integer",
    rf"{_COMMAND}(declare|typeset|local|readonly|unset|read|mapfile|readarray|eval)\s[^;&|]*(?<=\s)$":
        "where bash evaluates a word",
}  # fmt: skip


def _unprotected(environment: jinja2.Environment, path: str, source: str) -> Iterator[Problem]:
    """Values where the quotes that they get do not protect them; a number (`| int`, `| float`), and what is no value
    but shell code (`| raw`), may stand anywhere."""
    shell = ShellText()
    words: list[str] = []
    inside = before = ""  # what the value is in; its line so far
    for line, kind, text in environment.lex(source):
        if kind == "data":
            shell.read(text)
            before = (before + text).rpartition("\n")[2]
        elif kind == "variable_begin":
            evaluated = (where for pattern, where in EVALUATED.items() if re.search(pattern, before))
            words, inside = [], f"within {shell.inside}" if shell.inside else next(evaluated, "")
        elif kind == "variable_end":
            shell.read("_")  # a word
            before += "_"
            expression = "".join(words).strip()
            if inside and not re.search(r"\|\s*(int|float|raw)\s*$", expression):
                yield Problem(
                    path, line,
                    f"{{{{ {expression} }}}} is {inside}: the quotes that the launcher puts around a value do not "
                    'protect it there. Let it stand by itself ("a "{{ value }}" b"), or add `| int` to a number',
                )  # fmt: skip
        else:
            words.append(text)
