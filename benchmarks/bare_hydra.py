"""The least that a Hydra app can be: what the launcher is measured against on the login node."""

import hydra


@hydra.main(version_base="1.3", config_path=None)
def main(config: object) -> None:
    pass


if __name__ == "__main__":
    main()
