"""The workloads that ranks run: point-to-point transfers, collectives and training, each a `main(config, env)`."""
