"""A real Slurm that keeps a site's rules: partitions, QOS, accounts, whole nodes, and a submission filter in Lua."""

from __future__ import annotations

import itertools

from launcher.units import parse_time
from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.slurm_config import Site
from tests.twins.rules import Pool, Rules

# What `wants` names, as the filter sees it, and what the user is told.
WANTS = {
    "account": ("job.account == nil", "ESLURM_INVALID_ACCOUNT", "an account is required: use --account"),
    "qos": ("job.qos == nil", "ERROR", "a QOS is required: use --qos"),
    "gpus": ("gpus(job) == 0", "ERROR", "a GPU job must ask for at least one GPU"),
}
MANY = 1_000_000  # nodes
FILTER = """\
function gpus(job)
  local asked = (job.tres_per_node or "") .. "," .. (job.tres_per_job or "")
  return tonumber(string.match(asked, "gpu:(%d+)") or string.match(asked, "gpu:[^:,]+:(%d+)") or 0)
end

function nodes(job)
  return job.min_nodes ~= slurm.NO_VAL and job.min_nodes or 1
end

function cpus(job)
  local each = job.cpus_per_task ~= slurm.NO_VAL16 and job.cpus_per_task or 1
  return job.num_tasks ~= slurm.NO_VAL and job.num_tasks * each or nodes(job) * each
end

function partition(job, partitions)
  for name, one in pairs(partitions) do
    if job.partition == nil and one.flag_default == 1 then return name end
  end
  return job.partition
end

function refuse(code, words)
  slurm.log_user(words)
  return code
end

function slurm_job_submit(job, partitions, uid)
@RULES@
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
"""


def site(rules: Rules) -> Site:
    """What the daemons are told."""
    node = rules.node
    features = f" Feature={node.features}" if node.features else ""
    settings = ["EnforcePartLimits=ALL"]
    if rules.accounts:
        settings.append("AccountingStorageEnforce=associations,limits,qos")
    return Site(
        node=f"CPUs={node.cpus} RealMemory={node.mem}{features}",
        gpus=node.gpus,
        gpu_type=node.gpu_type,
        partitions=tuple(_partition(name, pool, rules) for name, pool in rules.pools.items()),
        settings=tuple(settings),
        filter=FILTER.replace("@RULES@", "\n".join(_checks(rules))),
        aliases=(rules.suffix,) if rules.suffix else (),
    )


def _partition(name: str, pool: Pool, rules: Rules) -> str:
    words = [name, "Nodes=node[1-4]", f"MaxTime={(parse_time(pool.time) // 60) if pool.time else 'INFINITE'}"]
    words += [f"MaxNodes={pool.nodes}"] * (pool.nodes is not None) + [f"MinNodes={pool.min_nodes or 0}"]
    words += ["Default=YES"] * pool.default + ["OverSubscribe=EXCLUSIVE"] * rules.node.whole
    return " ".join(words)


def _checks(rules: Rules) -> list[str]:
    lines = [f'  if {when} then return refuse(slurm.{code}, "{words}") end'
             for when, code, words in (WANTS[name] for name in rules.wants)]  # fmt: skip
    if least := rules.cpus_per_gpu:
        lines += [
            f"  if cpus(job) < nodes(job) * gpus(job) * {least} then",
            f'    return refuse(slurm.ERROR, "Required cpus: " .. nodes(job) * gpus(job) * {least})',
            "  end",
        ]
    for name, pool in rules.pools.items():
        limit = " or ".join(
            f"nodes(job) >= {least} and nodes(job) < {more} and job.time_limit > {parse_time(pool.times[least]) // 60}"
            for least, more in itertools.pairwise([*pool.times, MANY])
        )
        if limit:
            lines.append(f'  if partition(job, partitions) == "{name}" and ({limit}) then')
            lines.append("    return slurm.ESLURM_INVALID_TIME_LIMIT")
            lines.append("  end")
    if rules.node.whole and "gpus" not in rules.wants:  # a job has its nodes' GPUs, whether it asks for them or not
        lines.append(f'  if gpus(job) == 0 then job.tres_per_node = "gres:gpu:{rules.node.gpus}" end')
    return lines


class Twin(SlurmCluster):
    """The site's Slurm. A context manager."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(site=site(rules), accounting=bool(rules.accounts))
        self.rules = rules

    def start(self) -> Twin:
        super().start()
        rules = self.rules
        if rules.accounts:
            manage = ("sacctmgr", "--immediate", "add")
            for name, time in rules.qos.items():
                if name != "normal":  # which Slurm makes
                    self.run(*manage, "qos", name)
                if time:
                    limit = ("set", f"MaxWall={parse_time(time) // 60}", "Flags=DenyOnLimit")
                    self.run("sacctmgr", "--immediate", "modify", "qos", name, *limit)
            for account in rules.accounts:
                self.run(*manage, "account", account, "Cluster=test")
                usable = ",".join(rules.qos) or "normal"
                first = f"DefaultQOS={usable.partition(',')[0]}"
                self.run(*manage, "user", "root", f"Account={account}", f"QOS={usable}", first)
        return self

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.conf)}
