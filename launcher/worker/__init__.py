"""The code that runs in a rank: the process group, the workload or the user's program, and the report of how it ended.

It may import rendezvous, schedulers, runs and what is below them, and nothing of agent. `script.py` runs in whatever
interpreter a program needs, and imports the standard library only.

- `main`: the main function of a rank: which signals it ignores, calls the workload, records the result
- `process_group`: `init`, `progress`, `report`, `evaluated`: the public API in a rank
- `settings`: what ranks need of the plan, the run directory and the deadline
- `devices`: which accelerators a rank sees, and the device that it uses
- `accelerator`: what differs between CUDA, ROCm, XPU and the CPU
- `threads`: number of threads of torch in a rank: the default, and never more than its own cores
- `joining`: what all ranks must have in common: versions of torch and NCCL, kinds of device, backend
- `program`: a rank that is the user's own program: its command and variables
- `script`: runs a script as `python` would, and reports how it failed; standard library only
- `preload`: names of the modules that an agent imports for its ranks (`agent.attempt` does)
- `rank_report`: gate and error report between a rank and its agent
- `heartbeat`: heartbeats, in memory that a rank shares with its agent
- `hangs`: which ranks hang, from stacks, CPU time and steps
- `flight_recorder`: which ranks block a collective on GPUs, from NCCL's flight recorder
- `step_timing`: how long each rank works in a step
- `stopping`: `stopping()`: whether to save and exit
- `stop`: all reasons to stop or save, and their agreement at a step boundary
- `stop_agreement`: the protocol by which all ranks stop after the same step
- `stop_memory`: the shared memory of that protocol
- `global_batch`: `GlobalBatchSampler`: which samples each rank takes
- `rank_objects`: objects sent between ranks, with a MAC
- `reporter`: what rank 0 reports, into the run directory and to trackers
- `tracking`: a queue between the training and its trackers; failures of a tracker
- `tracker`: the interface of a tracker
- `tracking_tensorboard`: TensorBoard
- `tracking_mlflow`: MLflow
- `tracking_wandb`: Weights & Biases
- `nccl_report`: which network NCCL uses, against what the site expects
- `debugger`: `breakpoint()` in a rank
- `debug_console`: the debugger's connection to a terminal
"""
