"""The hooks of the workloads (`workload.hook`), for their submission. Free of torch: the login node imports them.

- `benchmarks`: the hook of p2p and collective: their baseline
- `benchmark_checks`: their checks: names, sizes, groups
- `ddp_mnist`: the hook of ddp_mnist: its data set, its data sets for `launcher data`
- `fsdp_lm`: the hook of fsdp_lm: its text
- `training`: checks of all trainings
"""
