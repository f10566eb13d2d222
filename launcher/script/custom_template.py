"""Checks and renders the user's own template of job scripts (cluster.template). `lost_parts` compares it with ours.

Values are quoted for the shell wherever a template prints them. Within quotes of the template this would not work: in
`"{{ plan.name }}"` the single quotes are text, and a `$(...)` in the value would be executed. In some places bash
evaluates a word even if it is quoted: `a[$(...)]` executes a command in arithmetic. So both are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_type_hints

from launcher.errors import ConfigError, near
from launcher.paths import resource, user_config_dir
from launcher.script import templates
from launcher.script.shell_context import ShellContext
from launcher.spec.plan import JobPlan

if TYPE_CHECKING:
    import jinja2


@dataclass(frozen=True)
class Problem:
    """An error in a template.

    Attributes:
        path: path of the template.
        line: line number, from 1.
        what: text about the error and the fix.
    """

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def found(name: str) -> Path:
    """Returns the path of the file that cluster.template names.

    A relative name is searched in the user's config folder, then in the working folder.

    Raises:
        ConfigError: the file exists in neither of them.
    """
    places = [folder / Path(name).expanduser() for folder in (user_config_dir(), Path.cwd())]
    for path in places:
        if path.is_file():
            return path
    tried = " or ".join(dict.fromkeys(map(str, places)))
    raise ConfigError(f"cluster.template={name}: there is no file {tried}; `template show` prints one to start from")


def require_sound(path: Path) -> None:
    """Checks a template for errors that do not depend on a plan.

    Raises:
        ConfigError: `problems` finds errors; the text has the file and line of each.
    """
    if wrong := problems(path):
        raise ConfigError("cluster.template: " + "\n  ".join(map(str, wrong)))


def problems(path: Path) -> list[Problem]:
    """Returns the errors of a template that do not depend on a plan: syntax, unknown names, unprotected values.

    Templates of the user that it extends, includes or imports are checked too.
    """
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
    """Returns the errors of one file.

    Args:
        path: path of the template.
        files: templates to check later; those that this one extends, includes or imports are added.
        known: names that templates may use; all names in this file are added, since it may set them for others.
    """
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
            hint = near(names[0], ours) or " Name your own by its absolute path"
            wrong.append(Problem(path, line, f"there is no template {' or '.join(names)}.{hint}"))
    return sorted([*wrong, *_unprotected(environment, path, source)], key=lambda each: each.line)


def _references(tree: jinja2.nodes.Template) -> Iterator[tuple[int, list[str], bool]]:
    """Yields each reference to other templates: line, names (the first that exists counts), whether one must exist."""
    # Lazily: jinja2 takes 15 ms, and only a submission needs it
    from jinja2 import nodes

    for node in tree.find_all((nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)):
        assert isinstance(node, (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport))
        try:
            named = node.template.as_const()
        except nodes.Impossible:  # the name is computed
            continue
        needed = not (isinstance(node, nodes.Include) and node.ignore_missing)
        yield node.lineno, [named] if isinstance(named, str) else [*map(str, named)], needed


NAMES = (
    "plan", "version", "directives", "array", "elements", "arrays", "checkpoints", "setup", "environment", "start",
    "node", "requeue", "after", "secrets", "secrets_file", "seconds", "lease_timeout", "lease_heartbeat", "lease_poll",
    "umask", "shell", "passing", "read_timeout", "read_pause", "seen", "no_workdir",
)  # fmt: skip


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """Renders a custom template.

    Args:
        template: path of the template.
        values: variables of the template, by name.

    Raises:
        ConfigError: rendering fails; the text has the file and the line.
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
        raise ConfigError(f"cluster.template: {path}:{line}: {_explain(str(error))}") from None


def _explain(message: str) -> str:
    """Returns the text for an error message of jinja2: a clearer one for an unknown field of the plan, else itself."""
    match = re.search(r"'launcher\.spec\.\w+\.(\w+) object' has no attribute '(\w+)'", message)
    kinds = {"a plan": JobPlan, **{f"a plan's {name}": kind for name, kind in get_type_hints(JobPlan).items()}}
    for name, kind in kinds.items() if match else ():
        if match and is_dataclass(kind) and getattr(kind, "__name__", "") == match[1]:
            return f"{name} has no {match[2]}.{near(match[2], [each.name for each in fields(kind)])}"
    return message


def _place(trace: TracebackType | None, template: str) -> tuple[str, int]:
    """Returns the template and the line of an error, which jinja2 writes into the traceback.

    If the traceback has none, it is `template` and line 0.
    """
    place = (template, 0)
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name == template or name.endswith(".j2"):
            place = (name, trace.tb_lineno)
        trace = trace.tb_next
    return place


# -- values where quotes do not protect them

# Positions where bash evaluates a word even if it is quoted: a pattern of the text before it on its line, and the name
# of the position (man bash: ARITHMETIC EVALUATION, Arrays, Parameter Expansion, QUOTING; builtins that take a
# variable's name evaluate its subscript).
_COMMAND = r"(?:^|[;&|({]|\b(?:then|do|else|if|while))\s*"
EVALUATED = {
    r"\$$": "after a $",
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
    """Yields an error for each value where quoting does not protect it.

    Numbers (`| int`, `| float`) and shell code (`| raw`) are allowed everywhere.
    """
    shell = ShellContext()
    words: list[str] = []
    inside = before = ""  # what encloses the value; the text before it on its line
    for line, kind, text in environment.lex(source):
        if kind == "data":
            shell.read(text)
            before = (before + text).rpartition("\n")[2]
        elif kind == "variable_begin":
            evaluated = (where for pattern, where in EVALUATED.items() if re.search(pattern, before))
            words, inside = [], f"within {shell.inside}" if shell.inside else next(evaluated, "")
        elif kind == "variable_end":
            shell.read("_")  # stands for the value
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
