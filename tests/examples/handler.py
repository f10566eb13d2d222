"""A script with a SIGTERM handler of its own: it finishes its step, saves, and leaves with exit code 75."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

STEPS = int(os.environ.get("STEPS", "1000"))
told = torch.zeros(1)


def handle(number, frame):
    told[0] = 1


def main():
    signal.signal(getattr(signal, os.environ.get("WANTED", "SIGTERM")), handle)
    dist.init_process_group("gloo")
    path = os.path.join(os.environ["LAUNCHER_CHECKPOINT_DIR"], "steps.pt")
    state = torch.load(path, weights_only=True) if os.path.exists(path) else {"step": 0, "begun": []}
    state["begun"].append(state["step"])
    while state["step"] < STEPS:
        time.sleep(float(os.environ.get("STEP_TIME", "0.1")))
        state["step"] += 1
        if dist.get_rank() == 0 and state["step"] == state["begun"][-1] + 1:
            print("starts", flush=True)
        stop = told.clone()
        dist.all_reduce(stop, dist.ReduceOp.MAX)
        if stop:
            if dist.get_rank() == 0:
                torch.save(state, path)
                print(f"saved at step {state['step']}", flush=True)
            dist.barrier()
            sys.exit(75)
    if dist.get_rank() == 0:
        print(f"begun at {state['begun']}, attempt {os.environ['LAUNCHER_ATTEMPT']}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
