"""What the workloads bring to their submission (`workload.hook`). Free of torch: the login node imports them."""
