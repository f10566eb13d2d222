"""Builds the plan of a config, and validates `resume.how` for its scheduler."""

from __future__ import annotations

from launcher.config import profiles
from launcher.config.schema import Cluster, Config, ResumeHow
from launcher.errors import ConfigError
from launcher.schedulers import registry
from launcher.schedulers.base import Queue, Scheduler
from launcher.spec.build import Site, build
from launcher.spec.plan import JobPlan


def make_plan(config: Config, site: Site) -> JobPlan:
    """Builds the plan of a config; raises ConfigError, which names the key, the value and the fix."""
    scheduler = scheduler_of(config.cluster)
    _check_resume(scheduler, config.resume.how)
    return build(config, site, scheduler)


def scheduler_of(cluster: Cluster) -> Scheduler:
    """Returns the scheduler of a profile; raises ConfigError if it does not exist."""
    try:
        return registry.scheduler(cluster.scheduler)
    except ConfigError as error:
        named = cluster.name, cluster.scheduler
        files = [str(each.path) for each in profiles.profiles() if (each.name, each.scheduler) == named]
        raise ConfigError(": ".join([*files, str(error)])) from None


def _check_resume(scheduler: Scheduler, how: ResumeHow) -> None:
    if how is ResumeHow.requeue and not scheduler.requeues:
        able = [each.name for each in registry.schedulers() if each.requeues]
        why = scheduler.no_requeue if isinstance(scheduler, Queue) else ""
        raise ConfigError(
            f"resume.how=requeue is only for {' and '.join(able)}, and the cluster is {scheduler.name}: use auto"
            + (f" ({why})" if why else "")
        )
    if how in (ResumeHow.chain, ResumeHow.resubmit) and not scheduler.queued:
        raise ConfigError(f"resume.how={how.value} needs a scheduler that takes jobs, not {scheduler.name}: use auto")
