"""A prior learnt from public pictures: images that a denoiser leaves as they are."""

import copy

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.matching.priors import Penalty, Prior, Term
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.settings import number
from fedsim.core.types import Task
from fedsim.models.learnt_prior import LearntPrior, read_prior


class Learnt(Prior):
    """A denoiser's residual: what it would change of an image with noise, at levels that fall.

    Grey images are shown to a denoiser of colours as equal channels.

    Papers: Romano et al., The Little Engine That Could: Regularization by Denoising (SIAM 2017); Mardani
    et al., A Variational Perspective on Solving Inverse Problems with Diffusion Models (ICLR 2024).
    """

    def __init__(
        self,
        *,
        weight: float = 0.1,
        file: str | None = None,
        noise: float = 0.5,
        least_noise: float = 0.03,
        seed: int = 0,
    ) -> None:
        """Set the weight, the file of `fedsim prior train`, and the first and last noise in grey levels of 1.

        file: None for the prior in the package, learnt from public pictures of CIFAR-10.
        """
        self.weight = number("attack.priors.weight", weight, least=0)
        self.noise = number("attack.priors.noise", noise, above=0)
        self.least_noise = number("attack.priors.least_noise", least_noise, above=0)
        self.learnt: LearntPrior = read_prior(file)
        self.seed = seed

    def on(self, model: nn.Module, task: Task) -> Penalty:
        """Return the mean squared residual; its derivative takes what the denoiser returns as given."""
        channels = self.learnt.network.channels
        if task.inputs is not None or task.input_shape[0] not in (1, channels):
            raise FedsimError(
                f"attack.priors: the prior was learnt from images of {channels} channels "
                f"({self.learnt.name}), and the task's inputs have shape {task.input_shape}. Remedy: "
                "`fedsim prior train data=...` on public images of this form, and its file in attack.priors."
            )
        sample = next(model.parameters())
        network, random = copy.deepcopy(self.learnt.network).to(sample), generator(self.seed, "learnt prior")
        mean, std = (torch.tensor(values).view(-1, 1, 1).to(sample) for values in (task.mean, task.std))

        def penalty(images: Tensor, done: float = 1.0) -> Term:
            level = self.noise * (self.least_noise / self.noise) ** done
            with torch.no_grad():
                pixels = (images * std + mean).flatten(0, 1)
                noise = torch.randn(pixels.shape, generator=random).to(pixels)
                colours = (pixels + level * noise).expand(-1, channels, -1, -1)
                denoised = network(colours, pixels.new_full((len(pixels),), level))
                if len(denoised[0]) > len(pixels[0]):
                    denoised = denoised.mean(dim=1, keepdim=True)
                gap = (pixels - denoised).view_as(images)
                factor = self.weight / gap.numel()
                return factor * float(gap.square().sum()), images, 2 * factor * std * gap

        return penalty
