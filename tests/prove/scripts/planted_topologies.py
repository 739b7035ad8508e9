"""Bugs to plant in the topologies of the folder `ps` and of examples/char_gpt, in the form of planted.py: a script is
named with its folder, and the others of its topology stay as they are."""

WORKER, SERVER, GPT = "ps/ps_worker.py", "ps/ps_server.py", "char_gpt/train.py"

BUGS = [
    # --- ps_worker.py
    (
        "ps-position-lost",
        WORKER,
        "samples",
        [('        pos = state["pos"]\n', "")],
        'step, pos, best = 0, 0, float("inf")',
    ),
    (
        "ps-order-lost",
        WORKER,
        "samples",
        [('        order = state["order"]\n', "")],
        "order = list(range(rank, N, world))",
    ),
    (
        "ps-python-random-lost",
        WORKER,
        "rng-python",
        [('        random.setstate(state["python"])\n', "")],
        "random.seed(10 + rank)",
    ),
    (
        "ps-torch-random-lost",
        WORKER,
        "rng-torch",
        [('        torch.set_rng_state(state["torch"])\n', "")],
        "torch.manual_seed(20 + rank)",
    ),
    (
        "ps-noise-lost",
        WORKER,
        "rng-numpy",
        [('        noise.bit_generator.state = state["noise"]\n', "")],
        "np.random.default_rng([30, rank])",
    ),
    (
        "ps-state-of-trainer-0-for-all",
        WORKER,
        "rank0-only",
        [
            (
                '    write(new / f"trainer{rank}.pt", lambda f: torch.save(state, f))\n',
                '    if rank == 0:\n        write(new / f"trainer{rank}.pt", lambda f: torch.save(state, f))\n',
            ),
            ('torch.load(found[-1] / f"trainer{rank}.pt", ', 'torch.load(found[-1] / "trainer0.pt", '),
        ],
        'found[-1] / "trainer0.pt"',
    ),
    (
        "ps-best-lost",
        WORKER,
        "best",
        [('        best = state["best"]\n', "")],
        'step, pos, best = 0, 0, float("inf")',
    ),
    (
        "ps-one-step-too-far",
        WORKER,
        "off-by-one",
        [('        step = state["step"]\n', '        step = state["step"] + 1\n')],
        'state["step"] + 1',
    ),
    (
        "ps-written-under-its-name",
        WORKER,
        "newest-not-complete",
        [
            ('    new = OUT / "new"\n', '    new = OUT / f"step_{step:05d}"\n'),
            ('        new.replace(OUT / f"step_{step:05d}")\n', ""),
        ],
        "    new = OUT / f",
    ),
    (
        "ps-old-removed-before-new",
        WORKER,
        "removed-early",
        [
            (
                '    new = OUT / "new"\n',
                '    new = OUT / "new"\n'
                "    if rank == 0:\n"
                "        for old in saved():\n"
                "            shutil.rmtree(old)  # makes room\n",
            )
        ],
        "# makes room",
    ),
    (
        "ps-files-put-in-place-one-by-one",
        WORKER,
        "torn-save",
        [
            (
                '        new.replace(OUT / f"step_{step:05d}")\n',
                '        (OUT / "step_00000").mkdir(exist_ok=True)\n'
                "        for file in sorted(new.iterdir()):\n"
                '            file.replace(OUT / "step_00000" / file.name)\n',
            )
        ],
        'file.replace(OUT / "step_00000" / file.name)',
    ),
    (
        "ps-unfinished-folders-pile-up",
        WORKER,
        "leftovers",
        [('    new = OUT / "new"\n', '    new = OUT / f"new.{worker.info().generation}"\n')],
        "new.{worker.info().generation}",
    ),
    # --- ps_server.py
    (
        "ps-momentum-lost",
        SERVER,
        "optimizer-state",
        [('            self.momentum = {name: f[f"momentum_{name}"] for name in self.weights}\n', "")],
        "np.zeros_like(value) for name",
    ),
    (
        "ps-average-lost",
        SERVER,
        "ema",
        [('            self.average = {name: f[f"average_{name}"] for name in self.weights}\n', "")],
        "self.average = {name: value.copy()",
    ),
    (
        "ps-rate-lost",
        SERVER,
        "schedule",
        [('        self.rate = rest["rate"]\n', "")],
        "self.index, self.step, self.rate = index, 0, 0.05",
    ),
    (
        "ps-server-counts-from-0",
        SERVER,
        "schedule",
        [('        self.step = rest["step"]\n', "")],
        "self.index, self.step, self.rate = index, 0, 0.05",
    ),
    (
        "ps-noise-of-the-servers-lost",
        SERVER,
        "rng-numpy",
        [('        self.noise.bit_generator.state = rest["noise"]\n', "")],
        "np.random.default_rng([2, index])",
    ),
    (
        "ps-weights-not-loaded",
        SERVER,
        "weights",
        [('            self.weights = {name: f[f"weights_{name}"] for name in self.weights}\n', "")],
        "self.weights = {name: first[name]",
    ),
    (
        "ps-only-the-first-server-saves",
        SERVER,
        "rank0-only",
        [
            (
                "            shard.save(Path(asked[0][1]))\n",
                "            if shard.index == 0:\n                shard.save(Path(asked[0][1]))\n",
            ),
            ("        if folder is not None:\n", "        if folder is not None and index == 0:\n"),
        ],
        "if shard.index == 0:",
    ),
    (
        "ps-survivor-stays-where-it-is",
        SERVER,
        "weights",
        [
            (
                "    while True:\n        links, folder = gather(",
                "    shard = None\n    while True:\n        links, folder = gather(",
            ),
            (
                "        shard = Shard(index, servers)\n        if folder is not None:\n",
                "        fresh = shard is None\n"
                "        shard = Shard(index, servers) if fresh else shard\n"
                "        if folder is not None and fresh:\n",
            ),
        ],
        "fresh = shard is None",
    ),
    (
        "ps-server-answers-before-it-has-saved",
        SERVER,
        "early-ack",
        [
            ("import os\n", "import os\nimport threading\n"),
            (
                "class Shard:\n",
                "def finish(f, rest, arrays):\n"
                "    with f:\n"
                "        np.savez(f, rest=rest, **arrays)\n"
                "        f.flush()\n"
                "        os.fsync(f.fileno())\n"
                "\n\n"
                "class Shard:\n",
            ),
            (
                '        write(folder / f"ps{self.index}.npz", lambda f: np.savez(f, rest=np.array(rest), **arrays))\n',
                "        arrays = {name: value.copy() for name, value in arrays.items()}\n"
                '        f = (folder / f"ps{self.index}.npz").open("wb")\n'
                "        threading.Thread(target=finish, args=(f, np.array(rest), arrays)).start()\n",
            ),
        ],
        "threading.Thread(target=finish",
    ),
    # --- char_gpt_fixed/train.py
    (
        "gpt-fresh-optimizer",
        GPT,
        "optimizer-state",
        [('    optimizer.load_state_dict(saved["optimizer"])\n', "")],
        "optimizer = torch.optim.AdamW(",
    ),
    (
        "gpt-optimizer-of-rank-0-only",
        GPT,
        "rank0-only",
        [
            (
                '    optimizer.load_state_dict(saved["optimizer"])\n',
                "    if dist.get_rank() == 0:  # DDP sends it to the others\n"
                '        optimizer.load_state_dict(saved["optimizer"])\n',
            )
        ],
        "# DDP sends it to the others",
    ),
    (
        "gpt-one-step-twice",
        GPT,
        "off-by-one",
        [
            (
                '"optimizer": optimizer.state_dict(), "step": step}',
                '"optimizer": optimizer.state_dict(), "step": step - 1}',
            )
        ],
        '"step": step - 1}',
    ),
    (
        "gpt-batches-from-one-generator",
        GPT,
        "samples",
        [
            (
                "        self.train, self.held_out = everything[:split], everything[split:]\n",
                "        self.train, self.held_out = everything[:split], everything[split:]\n"
                "        self.order = torch.Generator().manual_seed(0)\n",
            ),
            ("generator=torch.Generator().manual_seed(step))", "generator=self.order)"),
        ],
        "self.order = torch.Generator()",
    ),
    (
        "gpt-schedule-not-saved",
        GPT,
        "schedule",
        [
            (
                "    step = resume(model, optimizer, device)\n",
                "    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)\n"
                "    step = resume(model, optimizer, device)\n",
            ),
            ("        optimizer.step()\n", "        optimizer.step()\n        schedule.step()\n"),
        ],
        "CosineAnnealingLR(",
    ),
    (
        "gpt-random-numbers-of-dropout-lost",
        GPT,
        "rng-torch",
        [
            (
                "        return x + self.mlp(self.norm2(x))\n",
                "        return x + nn.functional.dropout(self.mlp(self.norm2(x)), 0.1, self.training)\n",
            )
        ],
        "torch.manual_seed(0)",
    ),
    (
        "gpt-committed-before-it-is-written",
        GPT,
        "early-ack",
        [
            ('    temporary = path.with_suffix(".tmp")\n', ""),
            (
                '    with temporary.open("wb") as file:\n',
                '    with path.open("wb") as file:\n        worker.commit(path, step=step)\n',
            ),
            ("    temporary.replace(path)\n", ""),
            ("    if worker.commit(path, step=step):\n        tidy()\n", "    tidy()\n"),
        ],
        "worker.commit(path, step=step)",
    ),
    (
        "gpt-newest-file-wins",
        GPT,
        "newest-not-complete",
        [
            (
                "    path: Path | None = worker.latest() if worker.is_managed() or restarted else None\n",
                '    files = (worker.checkpoint_dir() / "char_gpt").glob("step-*")\n'
                "    path = max(files, key=lambda file: file.stat().st_mtime, default=None)\n",
            )
        ],
        "path = max(files",
    ),
    (
        "gpt-old-removed-before-new",
        GPT,
        "removed-early",
        [
            (
                '    temporary = path.with_suffix(".tmp")\n',
                '    temporary = path.with_suffix(".tmp")\n'
                "    if (before := worker.latest()) is not None:\n"
                "        before.unlink(missing_ok=True)  # makes room\n",
            )
        ],
        "# makes room",
    ),
    (
        "gpt-one-file-in-place",
        GPT,
        "torn-save",
        [
            (
                '    path = folder / f"step-{step}-of-generation-{worker.info().generation}.pt"\n',
                '    path = folder / "step-last.pt"\n',
            ),
            ('    temporary = path.with_suffix(".tmp")\n', ""),
            ('    with temporary.open("wb") as file:\n', '    with path.open("wb") as file:\n'),
            ("    temporary.replace(path)\n", ""),
        ],
        'with path.open("wb") as file:',
    ),
    (
        "gpt-uncommitted-files-pile-up",  # the bug of the example itself
        GPT,
        "leftovers",
        [
            ("    if rank == 0:\n        tidy()  # every rank has loaded: DDP has waited for it\n", ""),
            (
                "    if worker.commit(path, step=step):\n        tidy()\n",
                "    before = worker.latest()\n"
                "    if worker.commit(path, step=step) and before is not None and before != path:\n"
                "        before.unlink(missing_ok=True)\n",
            ),
        ],
        "before.unlink(missing_ok=True)",
    ),
    (
        "gpt-asks-for-a-replica",
        GPT,
        "no-resume",
        [
            (
                "worker.latest() if worker.is_managed() or restarted",
                'worker.latest("trainer/0") if worker.is_managed() or restarted',
            )
        ],
        'worker.latest("trainer/0")',
    ),
]

WHEN = {
    "ps-written-under-its-name": "from the making of the folder to the last file of a trainer or a server",
    "ps-old-removed-before-new": "from the removal to the rename; it then begins anew, the end is the same",
    "ps-files-put-in-place-one-by-one": "of trainer 0, between its first and its last replace",
    "ps-unfinished-folders-pile-up": "from the making of the folder to the rename; the weights are right",
    "ps-server-counts-from-0": "all that resume at step 8 or 16: 8 % 5 and 16 % 5 are not 0",
    "ps-survivor-stays-where-it-is": "of a trainer or of one server, a step or more after a save; not of all",
    "ps-server-answers-before-it-has-saved": "of a server, or of all, from the rename to the end of the thread's write",
    "gpt-committed-before-it-is-written": "from the commit to the end of the write",
    "gpt-newest-file-wins": "from the open of the temporary file to the end of the write",
    "gpt-old-removed-before-new": "from the removal to the commit",
    "gpt-one-file-in-place": "from the open for write to the end of the write, from the second save on",
    "gpt-uncommitted-files-pile-up": "from the open of the file to the last removal; the weights are right",
    "gpt-asks-for-a-replica": "any; it begins anew and ends the same, but the work is done twice",
}
