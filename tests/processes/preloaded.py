"""What ranks and the modules of their tests import: the server of `workload_ranks` loads it before it forks them."""

import gc

import hypothesis
import pytest
import torch._dynamo
import torch.distributed
import torch.nn.parallel

import launcher.agent.preflight
import launcher.checkpoint.checkpointer
import launcher.integrations.trainers
import launcher.worker.main
import tests.launch
import workloads.collective
import workloads.ddp
import workloads.fsdp
import workloads.p2p

LOADED = (hypothesis, pytest, torch, launcher, tests, workloads)
gc.freeze()  # else each rank's collections would copy the pages of all that
