"""The training scripts of the rows. Each writes what it sees to a file, as lines of JSON (`say`).

After each line a byte goes to the named pipe `news` beside the file, which wakes up a bench that waits for a line.

In a rehearsal the device is the CPU and the backend is gloo, so that the scripts can be tried without a GPU.
"""

PRELUDE = """
import contextlib, json, os, signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

REHEARSAL = os.environ.get("GPU_REHEARSAL") == "1"
GENERATION, RANK = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
LOCAL_RANK = int(os.environ["LOCAL_RANK"])
DEVICE = torch.device("cpu") if REHEARSAL else torch.device("cuda", LOCAL_RANK)  # makes no CUDA context
BACKEND = "gloo" if REHEARSAL else "nccl"
STAMPS = os.open(os.environ["GPU_STAMPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def say(word, **more):
    t_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    entry = {"word": word, "pid": os.getpid(), "rank": RANK, "generation": GENERATION, "t_ns": t_ns, **more}
    os.write(STAMPS, (json.dumps(entry) + "\\n").encode())
    with contextlib.suppress(OSError):  # the bench does not wait, or not any more
        news = os.open(os.path.dirname(os.environ["GPU_STAMPS"]) + "/news", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(news, b".")
        finally:
            os.close(news)

def uses():
    "Return the memory in use and the processes on this worker's device, from NVML."
    from flowdist.runtime.gpus.devices import find_gpus
    from flowdist.runtime.gpus.driver import open_devices
    devices = open_devices(os.environ)
    use = devices.use(find_gpus(os.environ)[0].uuid)
    devices.close()
    return use
"""
GROUP = """
dist.init_process_group(BACKEND)
if not REHEARSAL:
    torch.cuda.set_device(DEVICE)
for step in range(10):
    ones = torch.ones(1024, device=DEVICE)
    dist.all_reduce(ones)
    if step == 5 and GENERATION == 0 and RANK == 0:
        os.kill(os.getpid(), signal.SIGKILL)
say("sum", value=ones.sum().item() / 1024, size=dist.get_world_size(), backend=dist.get_backend())
dist.destroy_process_group()
"""
DDP = """
dist.init_process_group(BACKEND)
if not REHEARSAL:
    torch.cuda.set_device(DEVICE)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(256, 256).to(DEVICE))
optimizer = torch.optim.AdamW(model.parameters())
step = 0
while not (step >= 5 and GENERATION >= int(os.environ["GPU_KILLS"])):
    optimizer.zero_grad()
    model(torch.randn(32, 256, device=DEVICE)).square().mean().backward()
    optimizer.step()
    if not REHEARSAL:
        torch.cuda.synchronize()
    step += 1
    if step <= 5:
        say("step", step=step)
    time.sleep(0.02)
dist.destroy_process_group()
"""
ELASTIC = """
from flowdist import worker
if not REHEARSAL:
    DEVICE = torch.device("cuda", 0)

def train(state):
    batch = torch.linspace(-1, 1, 64 * 32, device=DEVICE).reshape(32, 64)
    while state.step < 200:
        state.optimizer.zero_grad()
        state.model(batch).square().mean().backward()
        for parameter in state.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        state.optimizer.step()
        state.step += 1
        if state.step % 5 == 0:
            state.commit()
        worker.progress(state.step)
        time.sleep(0.01)
    total = sum(parameter.detach().double().sum().item() for parameter in state.model.parameters())
    say("final", value=total, device=DEVICE.type, step=state.step)

torch.manual_seed(0)
model = torch.nn.Linear(64, 64).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
worker.elastic(train, worker.ElasticState(model=model, optimizer=optimizer, step=0), backend="gloo")
"""
WARM = """
initialized = torch.cuda.is_initialized()
began = time.monotonic()
total = (torch.ones(1024, device=DEVICE) + 1).sum().item()
took_ms = 1000 * (time.monotonic() - began)
pids = [] if REHEARSAL else list(uses().pids)
say("first", before=initialized, ms=took_ms, total=total, parent=os.getppid(), pids=pids, imported_in=IMPORTED_IN)
if GENERATION == 0:
    os.kill(os.getpid(), signal.SIGKILL)
"""
WARM_HEAD = """
import posix, torch
IMPORTED_IN = posix.getpid()  # os.getpid would be the split
"""
TRAINER_HEAD = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
"""
TRAINER = """
class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 16

    def __getitem__(self, i):
        words = torch.arange(i, i + 32) % 96
        return {"input_ids": words, "labels": words}

class Stamps(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        if not REHEARSAL:
            torch.cuda.synchronize()
        if state.global_step <= 5:
            say("step", step=state.global_step)
        control.should_training_stop = state.global_step >= 5 and GENERATION >= int(os.environ["GPU_KILLS"])
        time.sleep(0.02)

model = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=32, n_embd=64, n_layer=2, n_head=2))
wanted = TrainingArguments("output", max_steps=1 << 20, save_strategy="no", report_to="none", disable_tqdm=True,
                           use_cpu=REHEARSAL, logging_strategy="no", per_device_train_batch_size=4)
Trainer(model, wanted, train_dataset=Words(), callbacks=[Stamps()]).train()
"""
SAME_HEAD = """
import torch
AVAILABLE = torch.cuda.is_available()  # initialises the driver, which no fork may share
torch.manual_seed(7)
DRAWN = torch.rand(3, device="cuda" if AVAILABLE else "cpu").tolist()
"""
SAME = """
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)).to(DEVICE)
called = torch.compile(model) if "--compile" in sys.argv else model
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for step in range(20):
    optimizer.zero_grad()
    loss = (called(torch.randn(32, 64, device=DEVICE)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 10 and GENERATION < int(os.environ["GPU_KILLS"]):
        os.kill(os.getpid(), signal.SIGKILL)
say("same", drawn=DRAWN, available=AVAILABLE, losses=losses)
"""
SHARES = """
from flowdist import worker
fraction, refused = float(os.environ["FLOWDIST_GPU_FRACTION"]), None
if not REHEARSAL:
    torch.cuda.set_per_process_memory_fraction(fraction)
    total = torch.cuda.get_device_properties(0).total_memory
    kept = torch.empty(int(total * 0.1), dtype=torch.uint8, device="cuda")
    try:
        torch.empty(int(total * 0.7), dtype=torch.uint8, device="cuda")
        refused = False
    except torch.OutOfMemoryError:
        refused = True
say("share", fraction=fraction, refused=refused, backend=worker.backend(), device=os.environ["CUDA_VISIBLE_DEVICES"])
"""
MEMORY = """
if GENERATION == 0:
    taken = torch.empty(2 << 30 if not REHEARSAL else 1, dtype=torch.uint8, device=DEVICE)
    taken.fill_(1)
    say("taken")
    time.sleep(300)
say("begun", used=0 if REHEARSAL else uses().used)
"""
FAULT = """
values = torch.zeros(4, device=DEVICE)
if GENERATION == 0:
    say("fault")
    print(values[torch.tensor([9], device=DEVICE)].sum().item())  # asserts on the device
say("usable", value=(values + 1).sum().item())
"""
