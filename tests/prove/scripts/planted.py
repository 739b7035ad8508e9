"""Bugs to plant in the scripts next to this file. Each is (name, script, kind, replacements, where): a copy of the
script with each old text replaced by its new text is the buggy script. It goes wrong when it is killed at a suitable
moment and started again; WHEN says at which one, where not every kill after a save will do.

`where` stands in exactly one line of the buggy script, the one at fault. Where a line is missing, that is the one that
gives the value the fresh start that it should not keep."""

BUGS = [
    # --- ddp.py
    (
        "ddp-epoch-lost",
        "ddp.py",
        "samples",
        [('step, epoch, pos = ckpt["step"], ckpt["epoch"], ckpt["pos"]', 'step, pos = ckpt["step"], ckpt["pos"]')],
        "step = epoch = pos = 0",
    ),
    (
        "ddp-position-lost",
        "ddp.py",
        "samples",
        [('step, epoch, pos = ckpt["step"], ckpt["epoch"], ckpt["pos"]', 'step, epoch = ckpt["step"], ckpt["epoch"]')],
        "step = epoch = pos = 0",
    ),
    (
        "ddp-set-epoch-only-at-its-start",
        "ddp.py",
        "samples",
        [("        sampler.set_epoch(epoch)\n", "        if pos == 0:\n            sampler.set_epoch(epoch)\n")],
        "if pos == 0:",
    ),
    (
        "ddp-python-random-lost",
        "ddp.py",
        "rng-python",
        [('        random.setstate(ckpt["rng"][rank]["python"])\n', "")],
        "    random.seed(10 + rank)",
    ),
    (
        "ddp-numpy-random-lost",
        "ddp.py",
        "rng-numpy",
        [('        np.random.set_state(ckpt["rng"][rank]["numpy"])\n', "")],
        "np.random.seed(10 + rank)",
    ),
    (
        "ddp-torch-random-of-rank-0-for-all",
        "ddp.py",
        "rank0-only",
        [('torch.set_rng_state(ckpt["rng"][rank]["torch"])', 'torch.set_rng_state(ckpt["rng"][0]["torch"])')],
        'ckpt["rng"][0]["torch"]',
    ),
    (
        "ddp-torch-random-lost",
        "ddp.py",
        "rng-torch",
        [('        torch.set_rng_state(ckpt["rng"][rank]["torch"])\n', "")],
        "torch.manual_seed(10 + rank)",
    ),
    (
        "ddp-schedule-lost",
        "ddp.py",
        "schedule",
        [('        sched.load_state_dict(ckpt["sched"])\n', "")],
        "sched = torch.optim",
    ),
    (
        "ddp-ema-begins-anew",
        "ddp.py",
        "ema",
        [
            (
                '        ema = ckpt["ema"]\n',
                "        ema = {k: v.clone() for k, v in net.state_dict().items()}  # anew\n",
            )
        ],
        "# anew",
    ),
    (
        "ddp-best-lost",
        "ddp.py",
        "best",
        [('        best = ckpt["best"]\n', "")],
        'best = float("inf")',
    ),
    (
        "ddp-written-in-place",
        "ddp.py",
        "torn-save",
        [
            ('    with open(path + ".tmp", "wb") as f:\n', '    with open(path, "wb") as f:\n'),
            ('    os.replace(path + ".tmp", path)\n', ""),
        ],
        'with open(path, "wb")',
    ),
    (
        "ddp-old-removed-before-new",
        "ddp.py",
        "removed-early",
        [
            (
                '    with open(path + ".tmp", "wb") as f:\n',
                '    for old in saved(out):\n        os.unlink(old)\n    with open(path + ".tmp", "wb") as f:\n',
            )
        ],
        "os.unlink(old)",
    ),
    (
        "ddp-momentum-lost",
        "ddp.py",
        "optimizer-state",
        [('opt.load_state_dict(ckpt["opt"])', 'opt.load_state_dict({**ckpt["opt"], "state": {}})')],
        '"state": {}',
    ),
    (
        "ddp-temporary-files-pile-up",
        "ddp.py",
        "leftovers",
        [
            ("import random\n", "import random\nimport tempfile\n"),
            (
                '    with open(path + ".tmp", "wb") as f:\n',
                '    with tempfile.NamedTemporaryFile(dir=out, suffix=".tmp", delete=False) as f:\n',
            ),
            ('    os.replace(path + ".tmp", path)\n', "    os.replace(f.name, path)\n"),
        ],
        "tempfile.NamedTemporaryFile(",
    ),
    (
        "ddp-newest-may-be-half",
        "ddp.py",
        "newest-not-complete",
        [('glob.glob(f"{out}/step_*.pt")', 'glob.glob(f"{out}/step_*")')],
        'glob.glob(f"{out}/step_*")',
    ),
    (
        "ddp-one-step-too-far",
        "ddp.py",
        "off-by-one",
        [('step, epoch, pos = ckpt["step"], ', 'step, epoch, pos = ckpt["step"] + 1, ')],
        'ckpt["step"] + 1',
    ),
    (
        "ddp-weights-not-loaded",
        "ddp.py",
        "weights",
        [
            ("state.update(model=net.state_dict(), ", "state.update(model=model.state_dict(), "),
            ('net.load_state_dict(ckpt["model"])', 'net.load_state_dict(ckpt["model"], strict=False)'),
        ],
        "strict=False",
    ),
    # --- numpy_loop.py
    (
        "numpy-scale-lost",
        "numpy_loop.py",
        "scaler",
        [('        scale, good = rest["scale"], rest["good"]\n', "")],
        "scale, good, lr_drops, worst = 0, 256.0",
    ),
    (
        "numpy-count-of-good-steps-lost",
        "numpy_loop.py",
        "scaler",
        [('scale, good = rest["scale"], rest["good"]', 'scale = rest["scale"]')],
        "scale, good, lr_drops, worst = 0, 256.0",
    ),
    (
        "numpy-noise-lost",
        "numpy_loop.py",
        "rng-numpy",
        [('        noise.bit_generator.state = rest["noise"][rank]\n', "")],
        "np.random.default_rng([8, rank])",
    ),
    (
        "numpy-noise-of-rank-0-for-all",
        "numpy_loop.py",
        "rank0-only",
        [('noise.bit_generator.state = rest["noise"][rank]', 'noise.bit_generator.state = rest["noise"][0]')],
        'rest["noise"][0]',
    ),
    (
        "numpy-two-files-one-after-the-other",
        "numpy_loop.py",
        "torn-save",
        [
            (
                '    os.replace(f"{out}/new", f"{out}/step_{rest[\'step\']:05d}")\n',
                '    os.makedirs(f"{out}/step_00000", exist_ok=True)\n'
                '    for name in ("weights.npz", "rest.pt"):\n'
                '        os.replace(f"{out}/new/{name}", f"{out}/step_00000/{name}")\n',
            )
        ],
        'os.replace(f"{out}/new/{name}"',
    ),
    (
        "numpy-written-under-its-name",
        "numpy_loop.py",
        "newest-not-complete",
        [
            (
                '    os.mkdir(f"{out}/new")\n',
                "    new = f\"{out}/step_{rest['step']:05d}\"\n    os.makedirs(new, exist_ok=True)\n",
            ),
            ('write(f"{out}/new/weights.npz", ', 'write(f"{new}/weights.npz", '),
            ('write(f"{out}/new/rest.pt", ', 'write(f"{new}/rest.pt", '),
            ('    os.replace(f"{out}/new", f"{out}/step_{rest[\'step\']:05d}")\n', ""),
        ],
        "    new = f",
    ),
    (
        "numpy-old-folder-removed-before-new",
        "numpy_loop.py",
        "removed-early",
        [
            (
                '    os.mkdir(f"{out}/new")\n',
                '    for d in saved(out):\n        shutil.rmtree(f"{out}/{d}")\n    os.mkdir(f"{out}/new")\n',
            )
        ],
        'shutil.rmtree(f"{out}/{d}")',
    ),
    (
        "numpy-count-of-drops-lost",
        "numpy_loop.py",
        "schedule",
        [
            (
                'step, worst, lr_drops = rest["step"], rest["worst"], rest["lr_drops"]',
                'step, worst = rest["step"], rest["worst"]',
            )
        ],
        "scale, good, lr_drops, worst = 0, 256.0",
    ),
    (
        "numpy-worst-lost",
        "numpy_loop.py",
        "best",
        [
            (
                'step, worst, lr_drops = rest["step"], rest["worst"], rest["lr_drops"]',
                'step, lr_drops = rest["step"], rest["lr_drops"]',
            )
        ],
        "scale, good, lr_drops, worst = 0, 256.0",
    ),
    (
        "numpy-batches-counted-from-the-start",
        "numpy_loop.py",
        "samples",
        [
            ("    per_epoch = N // (BATCH * world)\n", "    per_epoch = N // (BATCH * world)\n    first = step\n"),
            ("divmod(step, per_epoch)", "divmod(step - first, per_epoch)"),
        ],
        "divmod(step - first, per_epoch)",
    ),
    (
        "numpy-trash-piles-up",
        "numpy_loop.py",
        "leftovers",
        [
            (
                '        os.rename(f"{out}/{old}", f"{out}/old")\n        shutil.rmtree(f"{out}/old")\n',
                '        trash = f"{out}/old.{os.getpid()}"\n'
                '        os.rename(f"{out}/{old}", trash)\n'
                "        shutil.rmtree(trash)\n",
            )
        ],
        "old.{os.getpid()}",
    ),
    (
        "numpy-fresh-optimizer",
        "numpy_loop.py",
        "optimizer-state",
        [('        opt.load_state_dict(rest["opt"])\n', "")],
        "opt = torch.optim.Adam(",
    ),
    # --- fsdp_dcp.py
    (
        "fsdp-torch-random-lost",
        "fsdp_dcp.py",
        "rng-torch",
        [('        torch.set_rng_state(state[f"torch{rank}"])\n', "")],
        "torch.manual_seed(30 + rank)",
    ),
    (
        "fsdp-python-random-lost",
        "fsdp_dcp.py",
        "rng-python",
        [('        random.setstate(pickle.loads(state[f"python{rank}"]))\n', "")],
        "random.seed(30 + rank)",
    ),
    (
        "fsdp-one-random-state-for-all",
        "fsdp_dcp.py",
        "rank0-only",
        [
            ('state |= {f"python{rank}": b"", f"torch{rank}": ', 'state |= {f"python{rank}": b"", "torch": '),
            ('pickle.dumps(random.getstate()), f"torch{rank}": ', 'pickle.dumps(random.getstate()), "torch": '),
            ('torch.set_rng_state(state[f"torch{rank}"])', 'torch.set_rng_state(state["torch"])'),
        ],
        'pickle.dumps(random.getstate()), "torch": ',
    ),
    (
        "fsdp-schedule-lost",
        "fsdp_dcp.py",
        "schedule",
        [('        sched.load_state_dict(state["sched"])\n', "")],
        "sched = torch.optim",
    ),
    (
        "fsdp-samples-from-the-start",
        "fsdp_dcp.py",
        "samples",
        [('step, seen = state["step"], state["seen"]', 'step = state["step"]')],
        "step, seen = 0, 0",
    ),
    (
        "fsdp-rate-of-the-optimizer-lost",
        "fsdp_dcp.py",
        "schedule",  # dcp.load has put the moments in place: the learning rate alone is lost
        [
            ("import get_state_dict, set_state_dict\n", "import get_state_dict, set_model_state_dict\n"),
            (
                'set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["opt"])',
                'set_model_state_dict(model, state["model"])',
            ),
        ],
        'set_model_state_dict(model, state["model"])',
    ),
    (
        "fsdp-written-under-its-name",
        "fsdp_dcp.py",
        "newest-not-complete",
        [
            ('    tmp = f"{out}/step_{step:05d}.tmp"\n', '    tmp = f"{out}/step_{step:05d}"\n'),
            ('        os.replace(tmp, f"{out}/step_{step:05d}")\n', ""),
        ],
        "tmp = f",
    ),
    (
        "fsdp-old-removed-before-new",
        "fsdp_dcp.py",
        "removed-early",
        [
            (
                "    dcp.save(state, checkpoint_id=tmp)\n",
                "    if dist.get_rank() == 0:\n"
                "        for d in saved(out):\n"
                '            shutil.rmtree(f"{out}/{d}")  # makes room\n'
                "    dcp.save(state, checkpoint_id=tmp)\n",
            )
        ],
        "# makes room",
    ),
    # --- fsdp_dcp_async.py
    (
        "async-acknowledged-before-done",
        "fsdp_dcp_async.py",
        "early-ack",
        [
            ("    future.result()\n", ""),
            (
                '        print("saved step", step, flush=True)\n',
                '        print("saved step", step, flush=True)\n    future.result()\n',
            ),
            (
                "dcp.async_save(state, checkpoint_id=path, process_group=writers)\n",
                "dcp.async_save(state, checkpoint_id=path, process_group=writers)\n"
                "            finish(args.out, pending)  # at once\n"
                "            pending = None\n",
            ),
        ],
        "# at once",
    ),
    (
        "async-pointer-before-data",
        "fsdp_dcp_async.py",
        "early-ack",
        [
            (
                "            path = f\"{args.out}/step_{progress['step']}\"\n",
                "            path = f\"{args.out}/step_{progress['step']}\"\n"
                "            if rank == 0:\n"
                '                with open(f"{args.out}/latest.tmp", "w") as f:\n'
                '                    f.write(str(progress["step"]))\n'
                '                os.replace(f"{args.out}/latest.tmp", f"{args.out}/latest")  # the pointer\n',
            )
        ],
        "# the pointer",
    ),
    (
        "async-pointer-written-in-place",
        "fsdp_dcp_async.py",
        "torn-save",
        [
            ('        with open(f"{out}/latest.tmp", "w") as f:\n', '        with open(f"{out}/latest", "w") as f:\n'),
            ('        os.replace(f"{out}/latest.tmp", f"{out}/latest")\n', ""),
        ],
        'with open(f"{out}/latest", "w")',
    ),
    (
        "async-cleaned-before-pointer",
        "fsdp_dcp_async.py",
        "removed-early",
        [
            ("        clean(out, [step])\n", ""),
            (
                '        with open(f"{out}/latest.tmp", "w") as f:\n',
                '        clean(out, [step])\n        with open(f"{out}/latest.tmp", "w") as f:\n',
            ),
        ],
        "clean(out, [step])",
    ),
    (
        "async-best-lost",
        "fsdp_dcp_async.py",
        "best",
        [('progress = state["progress"]', 'progress = {**state["progress"], "best": 1e9}')],
        '**state["progress"], "best": 1e9',
    ),
    (
        "async-batch-lost",
        "fsdp_dcp_async.py",
        "samples",
        [('progress = state["progress"]', 'progress = {**state["progress"], "batch": 0}')],
        '**state["progress"], "batch": 0',
    ),
    (
        "async-schedule-lost",
        "fsdp_dcp_async.py",
        "schedule",
        [('        sched.load_state_dict(state["sched"])\n', "")],
        "sched = torch.optim",
    ),
    (
        "async-newest-folder-wins",
        "fsdp_dcp_async.py",
        "newest-not-complete",
        [
            (
                '    try:\n        with open(f"{out}/latest") as f:\n            return int(f.read())\n'
                "    except FileNotFoundError:\n        return None\n",
                '    return max((int(d[5:]) for d in os.listdir(out) if d.startswith("step_")), default=None)\n',
            )
        ],
        "return max((int(d[5:])",
    ),
    # --- accelerate_loop.py
    (
        "accelerate-no-skip",
        "accelerate_loop.py",
        "samples",
        [("batches = acc.skip_first_batches(loader, done) if done else loader", "batches = loader")],
        "batches = loader",
    ),
    (
        "accelerate-skips-one-too-few",
        "accelerate_loop.py",
        "off-by-one",
        [("acc.skip_first_batches(loader, done)", "acc.skip_first_batches(loader, done - 1)")],
        "done - 1",
    ),
    (
        "accelerate-epoch-not-set",
        "accelerate_loop.py",
        "samples",
        [("        loader.set_epoch(epoch)\n", "")],
        "batches = acc.skip_first_batches",
    ),
    (
        "accelerate-average-lost",
        "accelerate_loop.py",
        "ema",
        [('        self.average = state["average"]\n', "")],
        "self.average = {k: v.clone()",
    ),
    (
        "accelerate-schedule-not-prepared",
        "accelerate_loop.py",
        "schedule",
        [
            (
                "model, opt, loader, sched = acc.prepare(model, opt, loader, sched)",
                "model, opt, loader = acc.prepare(model, opt, loader)",
            )
        ],
        "model, opt, loader = acc.prepare(",
    ),
    (
        "accelerate-saved-under-its-name",
        "accelerate_loop.py",
        "newest-not-complete",
        [
            (
                'acc.save_state(f"{out}/_new", safe_serialization=True)',
                'acc.save_state(f"{out}/step_{step}", safe_serialization=True)',
            ),
            ('os.listdir(f"{out}/_new")', 'os.listdir(f"{out}/step_{step}")'),
            ('open(f"{out}/_new/{name}", "rb")', 'open(f"{out}/step_{step}/{name}", "rb")'),
            ('        os.replace(f"{out}/_new", f"{out}/step_{step}")\n', ""),
        ],
        'acc.save_state(f"{out}/step_{step}"',
    ),
    # --- hf_trainer.py
    (
        "trainer-newest-folder-wins",
        "hf_trainer.py",
        "newest-not-complete",
        [
            (
                'return sorted(n for n in found if os.path.exists(f"{out}/checkpoint-{n}/complete"))',
                "return sorted(found)",
            )
        ],
        "return sorted(found)",
    ),
    (
        "trainer-ignores-data-skip",
        "hf_trainer.py",
        "samples",
        [("use_cpu=True, ", "ignore_data_skip=True, use_cpu=True, ")],
        "ignore_data_skip=True",
    ),
    (
        "trainer-mean-not-loaded",
        "hf_trainer.py",
        "ema",
        [('        if start:\n            self.mean = torch.load(f"{start}/mean.pt")\n', "")],
        "self.mean = {k: v.clone()",
    ),
    (
        "trainer-saves-only-the-model",
        "hf_trainer.py",
        "optimizer-state",
        [("save_total_limit=None, ", "save_total_limit=None, save_only_model=True, ")],
        "save_only_model=True",
    ),
    (
        "trainer-marked-before-all-is-written",
        "hf_trainer.py",
        "early-ack",
        [("callbacks=[Averaged(model, start), Marks()]", "callbacks=[Marks(), Averaged(model, start)]")],
        "callbacks=[Marks(), ",
    ),
    (
        "trainer-keeps-one-only",
        "hf_trainer.py",
        "removed-early",
        [("save_total_limit=None", "save_total_limit=1")],
        "save_total_limit=1",
    ),
    (
        "trainer-does-not-resume",
        "hf_trainer.py",
        "no-resume",
        [("trainer.train(resume_from_checkpoint=start)", "trainer.train()")],
        "trainer.train()",
    ),
    # --- lightning_fit.py
    (
        "lightning-python-random-lost",
        "lightning_fit.py",
        "rng-python",
        [("            random.setstate(self.random[0])\n", "")],
        "random.seed(70 + rank)",
    ),
    (
        "lightning-random-of-rank-0-for-all",
        "lightning_fit.py",
        "rank0-only",
        [('checkpoint["random"][dist.get_rank()]', 'checkpoint["random"][0]')],
        'checkpoint["random"][0]',
    ),
    (
        "lightning-best-lost",
        "lightning_fit.py",
        "best",
        [('        self.best = checkpoint["best"]\n', "")],
        'self.best = float("inf")',
    ),
    (
        "lightning-saved-within-the-epoch",
        "lightning_fit.py",
        "samples",
        [
            (
                "    def on_train_epoch_end(self, trainer, module):\n",
                "    def on_train_batch_end(self, trainer, module, *_):\n"
                "        if trainer.global_step % 4:\n"
                "            return\n",
            )
        ],
        "def on_train_batch_end(",
    ),
    (
        "lightning-max-steps",
        "lightning_fit.py",
        "samples",
        [("max_epochs=epochs", "max_steps=args.steps")],
        "max_steps=args.steps",
    ),
    (
        "lightning-weights-only-taken",
        "lightning_fit.py",
        "no-resume",
        [
            (
                "    trainer.fit(model, loader, ckpt_path=found[-1] if found else None, weights_only=False)\n",
                "    if found:\n"
                '        model.load_state_dict(torch.load(found[-1], weights_only=False)["state_dict"])\n'
                "    trainer.fit(model, loader)\n",
            )
        ],
        "trainer.fit(model, loader)",
    ),
    (
        "lightning-old-removed-before-new",
        "lightning_fit.py",
        "removed-early",
        [
            (
                '        trainer.save_checkpoint(path + ".tmp")\n',
                '        for old in glob.glob(f"{self.out}/step_*.ckpt"):\n'
                "            if trainer.is_global_zero:\n"
                "                os.unlink(old)\n"
                '        trainer.save_checkpoint(path + ".tmp")\n',
            )
        ],
        "os.unlink(old)",
    ),
    (
        "lightning-temporary-files-pile-up",
        "lightning_fit.py",
        "leftovers",
        [
            ('trainer.save_checkpoint(path + ".tmp")', 'trainer.save_checkpoint(tmp := f"{path}.{os.getpid()}")'),
            ('with open(path + ".tmp", "rb") as f:', 'with open(tmp, "rb") as f:'),
            ('os.replace(path + ".tmp", path)', "os.replace(tmp, path)"),
        ],
        "{os.getpid()}",
    ),
    # --- stateful_loader.py
    (
        "loader-state-not-loaded",
        "stateful_loader.py",
        "samples",
        [('        loader.load_state_dict(state["ranks"][rank]["loader"])\n', "")],
        "loader = StatefulDataLoader(",
    ),
    (
        "loader-epoch-lost",
        "stateful_loader.py",
        "samples",
        [
            (
                'step, epoch, recent = state["step"], state["epoch"], state["recent"]',
                'step, recent = state["step"], state["recent"]',
            )
        ],
        "path, step, epoch, recent = f",
    ),
    (
        "loader-random-of-rank-0-for-all",
        "stateful_loader.py",
        "rank0-only",
        [('torch.set_rng_state(state["ranks"][rank]["torch"])', 'torch.set_rng_state(state["ranks"][0]["torch"])')],
        'state["ranks"][0]["torch"]',
    ),
    (
        "loader-plateau-lost",
        "stateful_loader.py",
        "schedule",
        [('        plateau.load_state_dict(state["plateau"])\n', "")],
        "plateau = torch.optim",
    ),
    (
        "loader-window-of-losses-lost",
        "stateful_loader.py",
        "schedule",
        [
            (
                'step, epoch, recent = state["step"], state["epoch"], state["recent"]',
                'step, epoch = state["step"], state["epoch"]',
            )
        ],
        "path, step, epoch, recent = f",
    ),
    (
        "loader-momentum-lost",
        "stateful_loader.py",
        "optimizer-state",
        [('opt.load_state_dict(state["opt"])', 'opt.load_state_dict({**state["opt"], "state": {}})')],
        '"state": {}',
    ),
    (
        "loader-written-in-place",
        "stateful_loader.py",
        "torn-save",
        [
            ('    with open(path + ".part", "wb") as f:\n', '    with open(path, "wb") as f:\n'),
            ('    os.replace(path + ".part", path)\n', ""),
        ],
        'with open(path, "wb")',
    ),
    (
        "loader-removed-then-renamed",
        "stateful_loader.py",
        "removed-early",
        [
            (
                '    os.replace(path + ".part", path)\n',
                '    if os.path.exists(path):\n        os.remove(path)\n    os.rename(path + ".part", path)\n',
            )
        ],
        "os.remove(path)",
    ),
    (
        "loader-one-step-twice",
        "stateful_loader.py",
        "off-by-one",
        [("state = dict(step=step, ", "state = dict(step=step - 1, ")],
        "dict(step=step - 1, ",
    ),
    (
        "loader-looks-for-another-name",
        "stateful_loader.py",
        "no-resume",
        [
            (
                "    if os.path.exists(path):\n        state",
                '    if os.path.exists(f"{args.out}/latest.pt"):\n        state',
            )
        ],
        'os.path.exists(f"{args.out}/latest.pt")',
    ),
]

WHEN = {
    "ddp-epoch-lost": "resumed from step 16 or later: the first epoch has 10 steps",
    "ddp-set-epoch-only-at-its-start": "resumed from step 16 or later: the first epoch has 10 steps",
    "ddp-written-in-place": "from the open for write to the end of it",
    "ddp-old-removed-before-new": "from the removal to the rename; it then begins anew, the end is the same",
    "ddp-temporary-files-pile-up": "from the making of the temporary file to the rename; the weights are right",
    "ddp-newest-may-be-half": "a write of the temporary file that did not come to its end",
    "numpy-count-of-good-steps-lost": "saves at which the count is no multiple of 4",
    "numpy-two-files-one-after-the-other": "between the two renames",
    "numpy-written-under-its-name": "from the making of the folder to the end of the second file",
    "numpy-old-folder-removed-before-new": "from the removal to the rename; it may begin anew, the end is the same",
    "numpy-count-of-drops-lost": "resumed from step 14 or later: the first drop is at step 12",
    "numpy-trash-piles-up": "from the rename of the old folder to the end of its removal; the weights are right",
    "fsdp-written-under-its-name": "from the making of the folder to the rename of .metadata",
    "fsdp-old-removed-before-new": "from the removal to the rename; it may begin anew, the end is the same",
    "async-acknowledged-before-done": "from the replacing of `latest` to the rename of .metadata in the thread",
    "async-pointer-before-data": "from the replacing of `latest` to the rename of .metadata in the thread",
    "async-pointer-written-in-place": "from the open of `latest` to its close: it is empty",
    "async-cleaned-before-pointer": "from the removal to the replacing of `latest`, which names a folder that is gone",
    "async-newest-folder-wins": "from the making of the folder to the rename of .metadata",
    "async-best-lost": "resumed from step 18: the best loss lies before it and is not beaten after it",
    "accelerate-epoch-not-set": "resumed from step 14 or later: the first epoch has 10 steps",
    "accelerate-saved-under-its-name": "from the making of the folder to the last file of the last rank",
    "trainer-newest-folder-wins": "from the making of the folder to the last file",
    "trainer-marked-before-all-is-written": "from the rename of `complete` to the end of mean.pt",
    "trainer-keeps-one-only": "from the removal of the old folder to the rename of `complete`",
    "trainer-does-not-resume": "the averaged weights differ; all else ends the same, but the work is done twice",
    "lightning-best-lost": "resumed from step 21: the best loss lies before it and is not beaten after it",
    "lightning-old-removed-before-new": "from the removal to the rename; it then begins anew, the end is the same",
    "lightning-temporary-files-pile-up": "from the write of the temporary file to the rename; the weights are right",
    "loader-epoch-lost": "resumed from step 16 or later: the first epoch has 10 steps",
    "loader-window-of-losses-lost": "it shows in the losses only where the rate is lowered soon after",
    "loader-written-in-place": "from the open for write to the end of it",
    "loader-removed-then-renamed": "between the removal and the rename; it then begins anew, the end is the same",
    "loader-looks-for-another-name": "any; it begins anew and ends the same, but the work is done twice",
}
