"""What can be checked on a machine with GPUs only: `make gpu-check`."""
