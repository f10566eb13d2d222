"""A Hydra app that does nothing: hydra-submitit-launcher submits it in `benchmarks.pilots`."""

import hydra


@hydra.main(version_base="1.3", config_path=None)
def main(config: object) -> None:
    pass


if __name__ == "__main__":
    main()
