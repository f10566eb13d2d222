"""`template`: prints a job script template to start from, and checks the user's own for errors and missing parts."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.cli.options import require_action
from launcher.cli.text import print_columns
from launcher.errors import ConfigError
from launcher.paths import resource
from launcher.schedulers import job_script, registry
from launcher.schedulers.planning import make_plan
from launcher.script import lost_parts
from launcher.spec.sections import Code
from launcher.submission import configs
from launcher.submission.inputs import Inputs
from launcher.submission.prepare import site_of

if TYPE_CHECKING:
    from argparse import Namespace

    from launcher.spec.plan import JobPlan


def run(arguments: Namespace) -> int:
    require_action("template", arguments.action)
    if arguments.action == "show":
        if arguments.path is not None:
            raise ConfigError("`template show` takes no PATH: it prints ours; --cluster NAME selects the scheduler")
        return _show(arguments.cluster or "slurm", whole=arguments.whole)
    return _lint(arguments.cluster or "slurm", arguments.path)


def _show(cluster: str, *, whole: bool) -> int:
    scheduler = registry.scheduler(_plan(cluster, None).cluster.scheduler)
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
    plan = _plan(cluster, path)
    if plan.cluster.template is None:
        raise ConfigError(f"cluster={cluster} has no template (cluster.template): name one, `template lint PATH`")
    missing = lost_parts.of_plan(with_all_parts(plan), partial(job_script.script, token="token"))  # noqa: S106
    if not missing:
        print(f"{plan.cluster.template}: no errors, and no part of ours is missing")
        return 0
    print(f"{plan.cluster.template}: no errors. These parts of ours are missing")
    print_columns([("PART", "THEN"), *((each.part, each.then) for each in missing)])
    return 1


def _plan(cluster: str, template: str | None) -> JobPlan:
    """Returns a plan with which a template can be rendered. Keys that the profile requires get made-up values.

    Args:
        cluster: name of the profile.
        template: path of the template; None: the profile's own.
    """
    config = configs.composed(["workload=collective", f"cluster={cluster}", "run_id=lint", "nodes=2"]).config
    missing: dict[str, Any] = {
        key: "made-up"
        for key in config.cluster.required
        if hasattr(config.cluster, key) and not getattr(config.cluster, key)
    }
    profile = dataclasses.replace(config.cluster, **missing, required=[])
    profile = dataclasses.replace(profile, template=template or profile.template)
    config = Inputs().with_template(dataclasses.replace(config, cluster=profile))
    return make_plan(config, site_of(config, "lint", None))


def with_all_parts(plan: JobPlan) -> JobPlan:
    """Returns the plan with every optional setting filled in, so that a script from our template has all its parts."""
    in_files = registry.scheduler(plan.cluster.scheduler).secrets_in_files
    return dataclasses.replace(
        plan,
        after=("ok:/runs/other",),
        env=dataclasses.replace(plan.env, setup=plan.env.setup or (":",)),
        code=Code("/runs/lint/code", "/code"),
        code_root=plan.code_root or "/launcher",
        secret_variables=("A_TOKEN",),
        secrets_dir="/secrets" if in_files else None,
        cluster=dataclasses.replace(plan.cluster, environment=plan.cluster.environment or {"NAME": ""}),
    )


START = """\
{{# Your own job script: cluster.template=FILE. Blocks that are not replaced below are those of the launcher. #}}
{{% extends "{name}" %}}

{{% block directives %}}
{{{{ super() }}}}
{{% endblock %}}

{{% block before %}}
# This runs on the first node, when everything is set up and before the ranks start.
{{% endblock %}}

{{% block after %}}
# This runs on the first node after the ranks have ended, with exit code "$code".
{{% endblock %}}
"""
