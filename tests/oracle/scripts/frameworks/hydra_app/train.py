"""hydra makes a folder for each run and changes into it; values are overridden by words."""

import os

import hydra
from omegaconf import OmegaConf

import probe


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    from hydra.core.hydra_config import HydraConfig

    probe.note("configured", config=OmegaConf.to_container(config, resolve=True))
    probe.first_step(
        rate=config.model.rate,
        cwd=os.getcwd(),
        job=HydraConfig.get().job.name,
        folder=HydraConfig.get().runtime.output_dir,
    )


if __name__ == "__main__":
    main()
