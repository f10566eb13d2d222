"""The code that runs in a rank: the process group, the workload or the user's program, and the report of how it ended.

It may import rendezvous, schedulers, runs and the layers below them, but not agent. `user_script.py` runs in whatever
interpreter a program needs, so it imports the standard library only.

- `main`: main function of a rank: sets up the process, calls the workload or executes the user's program
- `process_group`: joins the process group of the ranks, tells their places and who is missing, sends objects with a MAC
- `devices`: the device of a rank: GPU or CPU, its accelerator's calls, its threads; the network that NCCL uses
- `user_script`: runs a user's script as `python` would, and reports how it failed; standard library only
- `shared_with_agent`: between a rank and its agent: the gate before it joins, and the report of its metrics or error
- `heartbeat`: the heartbeats of ranks, in memory that they share with their agent
- `stop_agreement`: on which step all ranks stop or save: the agreement through their agents
- `hang_diagnosis`: which ranks hang, and where: their stacks, and NCCL's flight recorder
- `stop`: stop requests in ranks; the settings of the run that trainings in its ranks need
- `tracking`: writes what rank 0 reports to the run directory and, by queues, to MLflow, TensorBoard, Weights & Biases
- `debugger`: the debugger of a rank: breakpoints, and the console through which `attach --debug` reaches it
"""
