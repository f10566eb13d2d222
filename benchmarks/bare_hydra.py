"""A minimal Hydra app: `benchmarks.login_node` compares the launcher's start-up time with it."""

import hydra


@hydra.main(version_base="1.3", config_path=None)
def main(config: object) -> None:
    pass


if __name__ == "__main__":
    main()
