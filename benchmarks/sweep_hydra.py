"""A Hydra app with the launcher's configs that does nothing: hydra-submitit-launcher submits it in benchmarks.sweep."""

import hydra

from launcher.paths import resource
from launcher.submission import resume

resume.register()


@hydra.main(version_base="1.3", config_path=str(resource("conf")), config_name="config")
def main(config: object) -> None:
    pass


if __name__ == "__main__":
    main()
