"""`template`: scripts made from a template of your own: ours to start from, and what one of yours lost against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.cli.options import add_actions, require_action
from launcher.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from launcher.spec.plan import JobPlan

ACTIONS = {
    "show": "one that changes nothing, to start from (--whole: the text of ours)",
    "lint": "errors in one of yours, and what it lost against ours",
}


def configure(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s ACTION [PATH] [options]"
    add_actions(parser, ACTIONS, "\n\nlint exits with 0 (nothing is lost), 1 (something is) or 2 (errors)")
    parser.add_argument("path", metavar="PATH", nargs="?", help="lint: the template (default: that of the profile)")
    parser.add_argument("--cluster", metavar="NAME", help="the profile that it is for (default: slurm)")
    parser.add_argument("--whole", action="store_true", help="show: all that a script has, with its parts")


def run(arguments: Namespace) -> int:
    """Templates of your own (cluster.template): one to start from; what yours lost."""
    require_action("template", arguments.action, ACTIONS)
    if arguments.action == "show":
        if arguments.path is not None:
            raise ConfigError("`template show` takes no PATH: it prints ours; --cluster NAME says for which scheduler")
        return _show(arguments.cluster or "slurm", whole=arguments.whole)
    return _lint(arguments.cluster or "slurm", arguments.path)


def _show(cluster: str, *, whole: bool) -> int:
    from launcher.paths import resource
    from launcher.schedulers import registry

    scheduler = registry.scheduler(_plan(cluster, None).scheduler)
    name = scheduler.template
    if not whole:
        print(START.format(name=name), end="")
        return 0
    for each in (
        name,
        "job.sh.j2",
        *(f"parts/{part}.sh.j2" for part in ("begin", "shared", "lease", "setup", "environment", "end")),
        *filter(None, [scheduler.shell.ends]),
    ):
        print(f"{{# ---- {each} #}}")
        print((resource("templates") / each).read_text())
    return 0


def _lint(cluster: str, path: str | None) -> int:
    from functools import partial

    from launcher.cli.text import print_columns
    from launcher.schedulers import job_script
    from launcher.script import lost_parts

    plan = _plan(cluster, path)
    if plan.template is None:
        raise ConfigError(f"cluster={cluster} has no template (cluster.template): name one, `template lint PATH`")
    lost = lost_parts.of_plan(with_everything(plan), partial(job_script.script, token="token"))  # noqa: S106
    if not lost:
        print(f"{plan.template}: no errors, and all that ours has")
        return 0
    print(f"{plan.template}: no errors. Against ours it lost")
    print_columns([("PART", "THEN"), *((each.part, each.then) for each in lost)])
    return 1


def _plan(cluster: str, template: str | None) -> JobPlan:
    """A plan on that cluster for the template; what the profile wants from everybody is made up."""
    import dataclasses

    from launcher.schedulers.planning import make_plan
    from launcher.submission import configs, submit
    from launcher.submission.inputs import Inputs

    config = configs.composed(["workload=collective", f"cluster={cluster}", "run_id=lint", "nodes=2"]).config
    missing: dict[str, Any] = {
        key: "made-up" for key in config.cluster.required if not getattr(config.cluster, key, None)
    }
    profile = dataclasses.replace(config.cluster, **missing)
    profile = dataclasses.replace(profile, template=template or profile.template)
    config = Inputs().with_template(dataclasses.replace(config, cluster=profile))
    return make_plan(config, submit.site_of(config, "lint", None))


def with_everything(plan: JobPlan) -> JobPlan:
    """The plan with what not every run has: each part of a script is there, or it would not be missed."""
    import dataclasses

    from launcher.schedulers import registry

    in_files = registry.scheduler(plan.scheduler).secrets_in_files
    return dataclasses.replace(
        plan, after=("ok:/runs/other",), env_setup=plan.env_setup or (":",), code="/runs/lint/code", repository="/code",
        code_root=plan.code_root or "/launcher", secrets=("A_TOKEN",), secrets_dir="/secrets" if in_files else None,
        environment=plan.environment or {"NAME": ""},
    )  # fmt: skip


START = """\
{{# A job script of your own: cluster.template=FILE. What no block below replaces is the launcher's own. #}}
{{% extends "{name}" %}}

{{% block directives %}}
{{{{ super() }}}}
{{% endblock %}}

{{% block before %}}
# Here, on the first node, everything is set up, and the ranks have not begun.
{{% endblock %}}

{{% block after %}}
# Here they have ended, with exit code "$code".
{{% endblock %}}
"""
