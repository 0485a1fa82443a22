import pytest

from fedsim.engines.ray import Ray
from fedsim.errors import FedsimError


def test_a_machine_too_small_for_one_client_is_said_before_ray_starts() -> None:
    with pytest.raises(FedsimError, match=r"cpus_per_client=9999, but this machine has .* Remedy"):
        Ray(cpus_per_client=9999).play(None)  # type: ignore[arg-type]
    with pytest.raises(FedsimError, match="cpus_per_client > 0"):
        Ray(cpus_per_client=0)
