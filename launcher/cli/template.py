"""`template`: prints a job script template to start from, or ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import require_action
from launcher.paths import resource
from launcher.schedulers import registry
from launcher.submission import configs

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    require_action("template", arguments.action)
    config = configs.composed(["workload=collective", f"cluster={arguments.cluster or 'slurm'}"]).config
    name = registry.scheduler(config.cluster.scheduler).template
    if not arguments.whole:
        print(START.format(name=name), end="")
        return 0
    for each in (name, "job.sh.j2"):
        print(f"{{# ---- {each} #}}")
        print((resource("templates") / each).read_text())
    return 0


START = """\
{{# Your own job script: cluster.template=FILE. What the blocks below do not replace is the launcher's. #}}
{{% extends "{name}" %}}

{{% block directives %}}
{{{{ super() }}}}
{{% endblock %}}

{{% block setup %}}
{{{{ super() }}}}
# This runs on the first node, when everything is set up and before the ranks start.
{{% endblock %}}

{{% block run %}}
{{{{ super() }}}}
{{% endblock %}}

{{% block after %}}
# This runs on the first node after the ranks have ended, with exit code "$LAUNCHER_EXIT_CODE".
{{% endblock %}}
"""
