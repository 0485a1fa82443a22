import pytest
import torch

from fedsim.core.errors import FedsimError
from fedsim.core.federation import PARTITIONS
from fedsim.data.partition import partition

LABELS = torch.arange(1000).sort().values * 10 // 1000  # sorted by class: the hardest case for IID


def shares(kind: str, clients: int = 8, seed: int = 1, alpha: float = 0.3) -> tuple[torch.Tensor, ...]:
    return partition(LABELS, clients=clients, kind=kind, alpha=alpha, classes_per_client=2, seed=seed)


@pytest.mark.parametrize("kind", PARTITIONS)
def test_shares_do_not_overlap_and_depend_on_the_seed_alone(kind: str) -> None:
    owned = torch.cat(shares(kind))
    assert len(owned.unique()) == len(owned)
    assert all(torch.equal(a, b) for a, b in zip(shares(kind), shares(kind), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(shares(kind), shares(kind, seed=2), strict=True))


def test_iid_gives_every_client_every_class_although_the_data_are_sorted() -> None:
    for share in shares("iid"):
        assert len(share) == 125
        assert (LABELS[share].bincount(minlength=10) > 0).all()


@pytest.mark.parametrize("clients", [1, 7, 999])
def test_iid_is_what_flowers_partitioner_makes_of_shuffled_data(clients: int) -> None:
    from datasets import Dataset
    from flwr_datasets.partitioner import IidPartitioner

    flowers = IidPartitioner(num_partitions=clients)
    flowers.dataset = Dataset.from_dict({"index": torch.cat(shares("iid", clients=1)).tolist()})
    theirs = [flowers.load_partition(client)["index"][:] for client in range(clients)]
    assert [share.tolist() for share in shares("iid", clients=clients)] == theirs


def test_pathological_gives_every_client_two_classes() -> None:
    assert all(len(LABELS[share].unique()) == 2 for share in shares("pathological"))


def test_dirichlet_is_more_uneven_with_a_smaller_alpha() -> None:
    def unevenness(alpha: float) -> float:
        tables = [LABELS[s].bincount(minlength=10) / len(s) for s in shares("dirichlet", alpha=alpha)]
        return float(torch.stack(tables).std(0).mean())

    assert unevenness(0.1) > 2 * unevenness(10.0)


def test_more_clients_than_images_is_refused() -> None:
    with pytest.raises(FedsimError, match="1001 clients cannot share 1000"):
        shares("iid", clients=1001)
