"""The code that runs in a rank: the process group, the workload or the user's program, and the report of how it ended.

It may import rendezvous, schedulers, runs and the layers below them, but not agent. `script.py` runs in whatever
interpreter a program needs, so it imports the standard library only.

- `main`: main function of a rank: sets up the process, calls the workload, decides which errors are final
- `process_group`: the public API in a rank: `init` makes the process group; `progress`, `report`, `evaluated`
- `settings`: the settings that ranks read from the plan, with the run directory and the deadline
- `devices`: which accelerators a rank sees (CUDA_VISIBLE_DEVICES, ...), and which one it computes on
- `accelerator`: functions of torch that differ between CUDA, ROCm, XPU and the CPU
- `threads`: number of threads of torch in a rank: the default, and never more than its own cores
- `joining`: compares the ranks before they start: versions of torch and NCCL, types of device, backends
- `program`: executes the user's own program as a rank: its command line and environment
- `script`: runs a script as `python` would, and reports how it failed; standard library only
- `rank_report`: between a rank and its agent: the gate before it joins, and the report of its metrics or error
- `heartbeat`: heartbeats, in memory that a rank shares with its agent
- `hangs`: detects hangs from steps, output and CPU time; finds the rank to blame from the ranks' stacks
- `flight_recorder`: finds the ranks that block a collective on GPUs, from NCCL's flight recorder
- `step_timing`: measures the time that each rank works in a step, to find stragglers
- `stopping`: `stopping()`: whether to save and exit; `boundary()` for trainers' callbacks
- `stop`: the reasons to stop or save (signals, deadline, RUN/stop), and the agreement of all ranks at a step boundary
- `stop_agreement`: the protocol by which all ranks stop after the same step, through their agents
- `stop_memory`: layout of the shared memory of that protocol
- `global_batch`: `GlobalBatchSampler`: which samples each rank takes at each step
- `rank_objects`: gather, all_gather and broadcast of Python objects, authenticated with a MAC
- `reporter`: writes rank 0's progress, evaluations and metrics to the run directory and to trackers
- `tracking`: the queue between the training and its trackers; what happens when a tracker fails
- `tracker`: the interface of a tracker, and the data that it gets
- `tracking_tensorboard`: the tracker that writes to TensorBoard
- `tracking_mlflow`: the tracker that writes to MLflow
- `tracking_wandb`: the tracker that writes to Weights & Biases
- `nccl_report`: reads from NCCL's log which network it uses, and compares it with `cluster.expects`
- `node_exclusion`: text on how the next run can exclude nodes that a workload has found to be slow
- `debugger`: `breakpoint()` in a rank
- `debug_console`: the debugger's connection to a terminal
"""
