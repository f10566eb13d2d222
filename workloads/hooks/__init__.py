"""The hooks of the workloads (`workload.hook`), for their submission. Free of torch: the login node imports them."""
