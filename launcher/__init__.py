"""Submit PyTorch jobs to Slurm and PBS from one Hydra config, and follow them until they are done."""

__version__ = "0.1.0"
