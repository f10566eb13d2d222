"""The workloads that ranks run: point-to-point transfers, collectives and training, each a `main(config, env)`.

Collectives:

- `collective`: measures and verifies collective operations over many sizes: the workload `collective`
- `collective_operations`: for each operation, its buffers on a rank, its torch call, and its expected result
- `measurement`: shared by p2p and collective: test values, comparisons, bandwidths, timing by the slowest rank

Point-to-point transfers:

- `p2p`: `workload=p2p`: runs, times and verifies the chosen patterns; output, metrics, comparison with a baseline
- `benchmark_keys`: what the keys of benchmarks name: operations, patterns, types, groups of ranks, sizes; free of torch
- `p2p_patterns`: the transfers: between two ranks, and the patterns of all ranks
- `p2p_matrix`: measures the link between each two nodes, finds slow links and the suspects, and prints them

Training:

- `ddp`: `workload=ddp_mnist`: the model and the training loop
- `image_data`: the image data sets of ddp_mnist: finds, verifies and downloads their files
- `training`: parts of a training loop that do not depend on the model, and image data sets as tensors
- `fsdp`: `workload=fsdp_lm`: a GPT-like language model over bytes, sharded by FSDP2, and the training loop
- `text_data`: the text files of fsdp_lm: finds and reads them, and checks the settings against their length
- `invariant`: averages gradients over ranks: in buckets, or bitwise the same at any world size
- `function`: `workload=function`: calls the user's function in every rank

Shared:

- `hooks`: the submission hooks: what the login node checks and completes in the workloads' settings; free of torch
- `across_ranks`: values and errors of one rank on all ranks: gathers, compares and raises them; prints lines
- `hardware_limits`: the speed of a TCP stream and of a copy in memory, and how much memory is left
- `benchmark_results`: writes and reads the results of a benchmark; compares them with those of an earlier run
"""
