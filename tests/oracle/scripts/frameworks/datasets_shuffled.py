"""datasets with pyarrow: a table is shuffled with a seed, mapped, split among ranks, and read as tensors."""

import os

import probe

probe.note("first line")
import datasets

probe.note("imported")
from datasets.distributed import split_dataset_by_node

table = datasets.Dataset.from_dict({"number": list(range(20)), "text": [f"word {n}" for n in range(20)]})
table = table.shuffle(seed=4).map(
    lambda row: {"double": row["number"] * 2}, load_from_cache_file=False, keep_in_memory=True
)
probe.note("mapped")
own = split_dataset_by_node(table, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
probe.first_step(rows=own["double"][:], first=own[0])
