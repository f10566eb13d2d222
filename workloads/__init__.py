"""The workloads that ranks run: point-to-point transfers, collectives and training, each a `main(config, env)`.

Collectives:

- `collective`: `workload=collective`: runs the chosen operations; output, metrics, comparison with a baseline
- `operations`: each collective operation: its buffers, its torch call, its expected result
- `sweep`: one operation over all sizes: whether it fits into memory and the backend has it; the rows of results.json
- `timing`: the runs of one size: warm-up, number of iterations, timing, verification
- `redops`: input of each rank and exact result of reductions
- `formulas`: algbw, busbw, and the spread of times
- `tables`: the lines of the printed table

Point-to-point transfers:

- `p2p`: `workload=p2p`: runs the chosen patterns; output, metrics, comparison with a baseline
- `patterns`: checks of the workload's config
- `pairs`: the patterns of two ranks: pingpong, bandwidth, bidirectional
- `exchanges`: the patterns of all ranks: send, isend, batched, ring, fanout
- `transfers`: times and verifies one pattern at one size; the rows of results.json
- `matrix`: measures the link between each two nodes, again if it is slow; comparison with a baseline
- `links`: decides in which order links are measured, which ones are slow, and which nodes are suspects
- `matrix_text`: the printed lines about the matrix: slow links, suspects, how to exclude them
- `heat`: the heat map of the matrix for a terminal

Training:

- `ddp`: `workload=ddp_mnist`: the model and the training loop
- `datasets`: the image data sets of ddp_mnist: finds, verifies and downloads their files
- `data`: loads a data set of ddp_mnist as tensors
- `fsdp`: `workload=fsdp_lm`: the training loop
- `gpt`: the model of fsdp_lm, sharded by FSDP2
- `texts`: the text files of fsdp_lm: finds and reads them, and checks the settings against their length
- `text`: loads a text of fsdp_lm as tokens, and cuts the text into windows
- `training`: parts that both trainings share: learning rate, losses, evaluation, seeds, threads
- `buckets`: averages gradients in buckets, without DistributedDataParallel
- `invariant`: `train.invariant`: sums gradients so that weights are bitwise the same at any number of ranks
- `function`: `workload=function`: calls the user's function in every rank

Shared:

- `bench`: test values, comparison, timing and tables of both benchmarks
- `ranks`: helpers of all workloads: gather, print, raise an error of one rank on all ranks
- `names`: names of operations, patterns, groups, types in a config; which backends have an operation
- `sizes`: parses sizes of messages, and time budgets
- `groups`: parses groups of ranks
- `roof`: measures the hardware's speed without a communication library: a TCP stream, a copy in memory
- `memory`: how much memory a rank can still allocate
- `results`: writes and reads results.json and results.csv; compares two of them
- `baselines`: reads the results of an earlier run on rank 0, for all ranks
"""
