"""Checks and renders the user's own template of job scripts (cluster.template).

A custom template extends one of ours, and fills the blocks `directives`, `setup`, `run` and `after`. Values of the plan
are allowed in `directives` only, whose lines are comments, so that no value can become shell code. Other blocks use the
exported variables (LAUNCHER_NAME, ...; docs/job-script.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from launcher.errors import ConfigError, near
from launcher.paths import resource, user_config_dir
from launcher.schedulers import templates
from launcher.spec.plan import JobPlan

if TYPE_CHECKING:
    import jinja2

T = TypeVar("T")

BLOCKS = ("directives", "setup", "run", "after")
VALUES = ("plan", "directives")  # names that the block `directives` may use
# Blocks that templates had before there was a driver, and what to write instead.
BEFORE = {
    "begin": "the driver does it (docs/job-script.md)", "environment": "the driver does it (docs/job-script.md)",
    "before": "put its lines at the end of the block setup, behind {{ super() }}",
    "start": "put a command in front of {{ super() }} in the block run",
    "end": "the driver does it (docs/job-script.md)",
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """An error in a template; `what` is a text about it and the fix."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def found(name: str) -> Path:
    """Returns the path of the file that cluster.template names.

    A relative name is searched in the user's config folder, then in the working folder.

    Raises ConfigError: the file exists in neither of them.
    """
    places = [folder / Path(name).expanduser() for folder in (user_config_dir(), Path.cwd())]
    for path in places:
        if path.is_file():
            return path
    tried = " or ".join(dict.fromkeys(map(str, places)))
    raise ConfigError(f"cluster.template={name}: there is no file {tried}; `template show` prints one to start from")


def require_sound(path: Path) -> None:
    """Checks a template for errors that do not depend on a plan.

    Raises ConfigError: `problems` finds errors; the text has the file and line of each.
    """
    if wrong := list(problems(path)):
        raise ConfigError("cluster.template: " + "\n  ".join(map(str, wrong)))


def problems(path: Path) -> Iterator[Problem]:
    """Yields the errors of a template, and of those of the user's that it extends, that do not depend on a plan."""
    # Lazily: jinja2 takes 15 ms, and only a submission needs it
    import jinja2
    from jinja2 import nodes

    names, seen = [str(path)], set[str]()
    while names:
        file = names.pop()
        seen.add(file)
        try:
            tree = templates.environment().parse(Path(file).read_text(), filename=file)
        except jinja2.TemplateSyntaxError as error:
            yield Problem(file, error.lineno, f"{error.message}")
            continue
        except (OSError, UnicodeDecodeError) as error:
            yield Problem(file, 1, f"it cannot be read as text: {error}")
            continue
        extends = tree.find(nodes.Extends)
        parent = extends.template.as_const() if extends and isinstance(extends.template, nodes.Const) else None
        ours = sorted(each.name for each in resource("templates").glob("*.sh.j2"))
        if parent is None:
            yield Problem(file, 1, f'it lacks {{% extends "sbatch.sh.j2" %}} (there are {", ".join(ours)})')
        elif Path(parent).is_absolute():
            names += [parent] if parent not in seen else []
        elif parent not in ours:
            hint = near(parent, ours) or " Name your own by its absolute path"
            assert extends is not None
            yield Problem(file, extends.lineno, f"there is no template {parent}.{hint}")
        yield from sorted(_of_tree(file, tree), key=lambda each: each.line)


def _of_tree(file: str, tree: jinja2.nodes.Template) -> Iterator[Problem]:
    # Lazily: jinja2 takes 15 ms, and only a submission needs it
    from jinja2 import nodes

    directives = set[int]()
    for block in tree.find_all(nodes.Block):
        if block.name not in BLOCKS:
            instead = BEFORE.get(block.name) or f"There are {', '.join(BLOCKS)}.{near(block.name, BLOCKS)}"
            yield Problem(file, block.lineno, f"there is no block {block.name} (any more): {instead}")
        if block.name == "directives":
            directives.update(map(id, block.find_all(nodes.Name)))
        if block.name in ("setup", "run") and not any(
            isinstance(call.node, nodes.Name) and call.node.name == "super" for call in block.find_all(nodes.Call)
        ):
            lost = "cluster.setup and env have" if block.name == "setup" else "the run's driver has"
            yield Problem(file, block.lineno, f"the block {block.name} lacks {{{{ super() }}}}: {lost} no place in it")
    for other in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport)):
        yield Problem(file, other.lineno, "a template cannot include or import another one: write it into this one")
    own = {each.name for each in tree.find_all(nodes.Name) if each.ctx in ("store", "param")}
    known = {"super", "loop", *own, *templates.environment().globals}
    for name in tree.find_all(nodes.Name):
        if name.ctx != "load" or name.name in known:
            continue
        if name.name not in VALUES:
            yield Problem(
                file, name.lineno, f"there is no {name.name}.{near(name.name, VALUES)} Known: plan, directives"
            )
        elif id(name) not in directives:
            yield Problem(
                file, name.lineno,
                f"{name.name} is used outside of the block directives: use an exported variable, such as "
                '"$LAUNCHER_NAME" (docs/job-script.md)',
            )  # fmt: skip


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """Renders a custom template, without its block `after`.

    values: variables of the template, by name; `heading` is the line behind the directives.
    Raises ConfigError: rendering fails, or a line of the block directives is no comment; the text has file and line.
    """
    text = _rendered(template, lambda loaded: str(loaded.render(values)))
    head, _, _ = text.partition(f"\n{values['heading'].text}\n")
    for line in head.splitlines():
        if line.strip() and not line.startswith("#"):
            raise ConfigError(
                f"cluster.template: {template}: the block directives has the line {line!r}, which is no comment: put "
                "commands into the block setup"
            )
    return text


def after(template: str, values: Mapping[str, Any]) -> str | None:
    """Returns the block `after` of a custom template as text; None: it has none.

    Raises ConfigError: rendering fails; the text has the file and the line.
    """

    def block(loaded: jinja2.Template) -> str | None:
        context = loaded.new_context(dict(values))
        for _ in loaded.root_render_func(context):  # adds the blocks of the templates that it extends to the context
            pass
        return "".join(context.blocks["after"][0](context)) if "after" in context.blocks else None

    return _rendered(template, block)


def _rendered(template: str, render: Callable[[jinja2.Template], T]) -> T:
    # Lazily: jinja2 takes 15 ms, and only a submission needs it
    import jinja2

    try:
        return render(templates.template(template))
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"cluster.template: {error.filename}:{error.lineno}: {error.message}") from None
    except jinja2.TemplateNotFound as error:
        raise ConfigError(f"cluster.template: {template}: there is no template {error.name}") from None
    except RecursionError as error:
        path, line = _place(error.__traceback__, template)
        raise ConfigError(f"cluster.template: {path}:{line}: it extends or calls itself") from None
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
