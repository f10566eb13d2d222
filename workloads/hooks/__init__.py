"""The submission hooks of the workloads (`workload.hook`): they check and complete a config on the login node.

The hooks do not import torch, which takes a second.

- `benchmarks`: the hook of the benchmarks: checks their settings before a submission, and describes their results
- `ddp_mnist`: the hook of ddp_mnist: finds the data set; the data sets that `launcher data` lists
- `fsdp_lm`: the hook of fsdp_lm: finds the text
- `training`: checks of ddp_mnist and fsdp_lm: ranges of settings (lr, epochs, ...), a sample for each rank
"""
