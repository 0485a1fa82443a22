"""`fedsim prior`: what pictures look like, learnt from public ones, for attacks."""

import click

from fedsim.commands.settings import settings


@click.group("prior", short_help="learn a prior for attacks from public images")
def command() -> None:
    """Learn from public images what pictures look like, for attacks: they fill in what gradients leave."""


@command.command("train", short_help="train a denoiser, and write it with what it was learnt from")
@settings
def train(overrides: tuple[str, ...]) -> None:
    """Train a denoiser on images that no client owns, and write it as safetensors: data=... prior.file=FILE.

    With it stand the data's name, split and digest, and the images' fingerprints: runs whose clients own
    one of them refuse the prior. Attacks take it as file= of their prior. Some minutes on one core.
    """
    import torch

    from fedsim.config.build import dataset_of
    from fedsim.config.checks import check_prior, check_top_level
    from fedsim.config.compose import composed, with_defaults
    from fedsim.data.public import public_images
    from fedsim.lab.prior_training import train_prior, write_prior

    config = composed(with_defaults(overrides, ["name=prior"])).config
    check_top_level(config)
    file, size, split, width, steps, batch_size = check_prior(config)
    torch.set_num_threads(config.threads)
    data = dataset_of(config)
    images = public_images(data=data, size=size, split=split, seed=config.seed).images
    network, denoised = train_prior(images, width=width, steps=steps, batch_size=batch_size, seed=config.seed)
    name = str(config.choices.data)
    write_prior(file, network, images, denoised, data=name, split=split, seed=config.seed, steps=steps)
    print(f"learnt from {len(images)} {split} images of {name}; on others, PSNR in dB by noise:")
    print(", ".join(f"{level}: {value}" for level, value in denoised.items()))
    print(file.resolve())
