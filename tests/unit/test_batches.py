import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.core.errors import FedsimError
from fedsim.core.federation import LAYOUTS
from fedsim.data.batches import batch_indices, poisson_places

LABELS = torch.arange(200) % 5  # 40 of each class
OWNED = torch.arange(0, 200, 2)  # 20 of each class


def batch(layout: str, size: int, step: int = 0, *, replacement: bool = False, owned: torch.Tensor = OWNED):
    return batch_indices(
        LABELS, owned, batch_size=size, layout=layout, replacement=replacement, seed=7, client=3, step=step
    )


def counts(indices: torch.Tensor) -> list[int]:
    return sorted(LABELS[indices].bincount(minlength=5).tolist())


def test_layouts_have_the_counts_that_they_promise() -> None:
    assert counts(batch("uniform", 12)) == [2, 2, 2, 3, 3]
    assert counts(batch("one_per_class", 3)) == [0, 0, 1, 1, 1]
    assert counts(batch("repeated", 12)) == [0, 0, 0, 0, 12]
    assert counts(batch("extreme", 12)) == [0, 0, 1, 1, 10]


@given(st.sampled_from(LAYOUTS), st.integers(3, 5), st.integers(0, 50), st.booleans())
def test_a_batch_is_owned_of_full_size_and_repeatable(layout, size, step, replacement) -> None:
    drawn = batch(layout, size, step, replacement=replacement)
    assert len(drawn) == size
    assert set(drawn.tolist()) <= set(OWNED.tolist())
    assert torch.equal(drawn, batch(layout, size, step, replacement=replacement))
    if not replacement:
        assert len(set(drawn.tolist())) == size


def test_an_epoch_without_replacement_visits_every_image_once() -> None:
    seen = torch.cat([batch("natural", 25, step) for step in range(4)])
    assert sorted(seen.tolist()) == OWNED.tolist()
    assert not torch.equal(
        batch("natural", 25, 0), batch("natural", 25, 4)
    )  # the next epoch is shuffled anew


def test_a_client_with_few_images_uses_them_all() -> None:
    few = OWNED[:7]
    assert sorted(batch("natural", 24, owned=few).tolist()) == few.tolist()


@pytest.mark.parametrize(
    ("layout", "size"), [("one_per_class", 6), ("repeated", 21), ("extreme", 23), ("extreme", 2)]
)
def test_an_impossible_layout_says_what_it_needs(layout: str, size: int) -> None:
    with pytest.raises(FedsimError, match=r"federation\.labels"):
        batch(layout, size)


def test_poisson_batches_take_each_example_by_itself() -> None:
    sizes = [len(poisson_places(200, 40, 5, 0, step)) for step in range(100)]
    assert len(set(sizes)) > 5
    assert sum(sizes) / 100 == pytest.approx(40, abs=3)
    joined = torch.bincount(
        torch.cat([poisson_places(200, 40, 5, 0, step) for step in range(100)]), minlength=200
    )
    assert joined.min() > 5  # of 20 expected: nobody is left out
    with pytest.raises(FedsimError, match="drew no example"):
        [poisson_places(1000, 1, 5, 0, step) for step in range(50)]
