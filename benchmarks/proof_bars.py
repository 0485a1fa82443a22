"""Does the verifier of proofs hold? Spoofs, honest proofs, mutations, costs, edits of a ledger.

python benchmarks/proof_bars.py [PART ...] [--challenges 100] [--only NAME ...]; parts: spoofs, central,
honest, creep, audit, costs, mutations, ledger (all: about an hour on one core). LeNet-5 on MNIST. Bars: each
spoof accepted in at most 5 % of 100 challenges at the default setting, and within a point of accuracy where a
quarter of the clients plays it; 0 of 200 honest proofs rejected; verification at most 1.6 times the share of
steps done again + 10 % of training; a recorder at most 10 % at k = S; no mutation crashes, at most 200 MB of
memory beyond the file's size, those accepted lie in intervals that were not drawn; 1,000 of 1,000 edits
found. Seeds from 1000 up were not used for any choice.
"""

import argparse
from pathlib import Path

import torch
from ledger_edits import ledger
from proof import costs
from proof_central import central
from proof_clients import ONLY, creep, honest, spoofs
from proof_federation import audit
from proof_mutations import mutations

PARTS = {
    "spoofs": spoofs,
    "central": central,
    "honest": honest,
    "creep": creep,
    "audit": audit,
    "costs": costs,
    "mutations": mutations,
    "ledger": ledger,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--challenges", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--only", nargs="*", default=[], help="of the spoofs")
    parser.add_argument("--figure", type=Path, help="where to draw the table of central proofs")
    asked = parser.parse_args()
    ONLY += asked.only
    for name in asked.parts:
        if name == "central":
            central(asked.seed, asked.challenges, asked.figure, asked.only)
        else:
            PARTS[name](asked.seed, asked.challenges)
