"""Files that torch, numpy, pickle and json save are read entry by entry, and each single change is named.

A file is compared with itself, with another save of an equal value, and with a save in which one entry is changed.
"""

from __future__ import annotations

import collections
import copy
import datetime
import enum
import io
import json
import pathlib
import pickle
import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowdist.prove.contents import entries, first_difference

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


class Meter:
    """An average that a user keeps."""

    def __init__(self) -> None:
        self.total, self.seen = 0.0, [1, 2]


class Twin(Meter):
    """A class with the attributes of another."""


class Slotted:
    __slots__ = ("low", "values")

    def __init__(self) -> None:
        self.low, self.values = 1, {"a": 2}


class Buffer(list):
    """A list of a user, with an attribute."""


class Tagged(list):
    """A list that pickles its state as it likes."""

    def __getstate__(self) -> object:
        return ("tagged", self.tag)

    def __setstate__(self, state: Any) -> None:
        self.tag = state[1]


class Owner:
    """An object that pickles itself as a tuple."""

    def __init__(self, *secret: int) -> None:
        self.secret = secret

    def __getstate__(self) -> object:
        return ("owner", self.secret)

    def __setstate__(self, state: Any) -> None:
        self.secret = state[1]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Trap:
    """What a hostile file would run."""

    def __reduce__(self) -> Any:
        return pathlib.Path.touch, (pathlib.Path("executed"),)


@pytest.fixture
def save(tmp_path: Path):
    """Return a function that saves a value with torch in a file of its own."""
    count = iter(range(1_000_000))

    def saved(value: object, **options: Any) -> Path:
        path = tmp_path / f"{next(count)}.pt"
        torch.save(value, path, **options)
        return path

    return saved


def trained() -> tuple[Any, Any]:
    """Return a small model and its optimizer after a step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def checkpoint() -> dict[str, Any]:
    """Return what a training script saves."""
    model, optimizer = trained()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    weight = model[0].weight.detach()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "random": random.Random(1).getstate(),
        "numpy": np.random.RandomState(1).get_state(),
        "torch": torch.Generator().manual_seed(1).get_state(),
        "generator": np.random.default_rng(1),
        "ema": {"0.weight": weight.clone(), "0.bias": torch.zeros(2, dtype=torch.bfloat16)},
        "tied": [weight, weight],
        "view": torch.arange(24.0).view(4, 6)[1:3, ::2],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(2).to_sparse(),
        "conjugate": torch.tensor([1j]).conj(),
        "float8": torch.ones(4).to(torch.float8_e4m3fn),
        "uint16": torch.ones(4, dtype=torch.uint16),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(3),
        "storage": torch.ones(3).untyped_storage(),
        "meter": Meter(),
        "best": np.float64(0.5),
        "array": np.arange(6).reshape(2, 3),
        "objects": np.array([1, "a", None], dtype=object),
        "record": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        "seen": {"b", "a", 3},
        "frozen": frozenset({1, 2}),
        "counts": collections.Counter("aab"),
        "lists": collections.defaultdict(list, {1: [2]}),
        "time": datetime.datetime(2020, 1, 2),
        "size": torch.Size([1, 2]),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "color": Color.RED,
        "path": pathlib.PurePosixPath("a/b"),
        "plain": [1, -(2**80), 1.5, float("nan"), True, None, "é", b"x", bytearray(b"y"), 1j, slice(1, 2), range(3)],
        "nothing": [{}, [], (), set()],
        (1, "a"): {2: {None: {1.5: {b"k": 1}}}},
    }


def changes() -> dict[str, Any]:
    """Return what changes one entry of a checkpoint, by the name of the entry."""
    return {
        "['model']['0.weight']": lambda c: c["model"]["0.weight"].view(-1)[-1:].add_(1),
        "['model']['1.num_batches_tracked']": lambda c: c["model"]["1.num_batches_tracked"].add_(1),
        "['model']._metadata['1']['version']": lambda c: c["model"]._metadata["1"].update(version=1),
        "['optimizer']['state'][0]['exp_avg']": lambda c: c["optimizer"]["state"][0]["exp_avg"][0, 0].add_(1),
        "['optimizer']['state'][3]['step']": lambda c: c["optimizer"]["state"][3]["step"].add_(1),
        "['optimizer']['param_groups'][0]['betas'][1]": lambda c: c["optimizer"]["param_groups"][0].update(
            betas=(0.9, 0.9991)
        ),
        "['schedule']['last_epoch']": lambda c: c["schedule"].update(last_epoch=7),
        "['random'][1][0]": lambda c: c.update(random=(3, (7, *c["random"][1][1:]), None)),
        "['numpy'][1]": lambda c: c["numpy"][1].__setitem__(623, 1),
        "['numpy'][2]": lambda c: c.update(numpy=(*c["numpy"][:2], 5, *c["numpy"][3:])),
        "['torch']": lambda c: c["torch"][5000:].add_(1),
        "['generator']": lambda c: c["generator"].random(),
        "['ema']['0.bias']": lambda c: c["ema"]["0.bias"][1].add_(1),
        "['tied'][1]": lambda c: c["tied"].__setitem__(1, c["tied"][1] + 1),
        "['tied'][0]": lambda c: c["tied"].__setitem__(slice(None), [c["tied"][0] + 1, c["tied"][1]]),
        "['view']": lambda c: c["view"][1, 2].add_(1),
        "['parameter']": lambda c: c["parameter"].requires_grad_(False),
        "['sparse']": lambda c: c["sparse"].values()[1:].add_(1),
        "['conjugate']": lambda c: c.update(conjugate=c["conjugate"].resolve_conj().conj().resolve_conj()),
        "['float8']": lambda c: c["float8"].view(torch.uint8)[3:].add_(1),
        "['uint16']": lambda c: c["uint16"].view(torch.int16)[3:].add_(1),
        "['empty']": lambda c: c.update(empty=torch.zeros(3, 0)),
        "['scalar']": lambda c: c.update(scalar=torch.tensor(3, dtype=torch.int32)),
        "['storage']": lambda c: c["storage"].__setitem__(11, 9),
        "['meter'].seen[1]": lambda c: c["meter"].seen.__setitem__(1, 3),
        "['best']": lambda c: c.update(best=np.float32(0.5)),
        "['array']": lambda c: c["array"].__setitem__((1, 2), 0),
        "['objects']": lambda c: c["objects"].__setitem__(1, "b"),
        "['record']": lambda c: c["record"]["b"].__setitem__(0, 3),
        "['seen']": lambda c: c["seen"].add(4),
        "['frozen']": lambda c: c.update(frozen=frozenset({1, 3})),
        "['counts']": lambda c: c["counts"].update("b"),
        "['lists'][1][0]": lambda c: c["lists"][1].__setitem__(0, 3),
        "['time']": lambda c: c.update(time=datetime.datetime(2020, 1, 3)),
        "['size']": lambda c: c.update(size=torch.Size([2, 1])),
        "['dtype']": lambda c: c.update(dtype=torch.bfloat16),
        "['device']": lambda c: c.update(device=torch.device("meta")),
        "['color']": lambda c: c.update(color=Color.BLUE),
        "['path']": lambda c: c.update(path=pathlib.PurePosixPath("a/c")),
        **{f"['plain'][{i}]": lambda c, i=i: c["plain"].__setitem__(i, OTHERS[i]) for i in range(len(OTHERS))},
        **{f"['nothing'][{i}]": lambda c, i=i: c["nothing"].__setitem__(i, [(), {}, [], {1}][i]) for i in range(4)},
        "[(1, 'a')][2][None][1.5][b'k']": lambda c: c[(1, "a")][2][None][1.5].update({b"k": True}),
        "['new']": lambda c: c.update(new=[]),
        "['time'] ": lambda c: c.pop("time"),
    }


OTHERS = [1.0, 2**80, 1.25, 0.0, 1, 0, "e", bytearray(b"x"), b"y", 2j, slice(1, 3), range(4)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "whole.pt"
    torch.save(checkpoint(), path)
    return path


def test_a_checkpoint_is_the_same_in_every_save_of_it(whole, save):
    again = save(checkpoint())
    assert first_difference(whole, again) == ""
    assert entries(whole) == entries(again)


@pytest.mark.parametrize("name", list(changes()))
def test_a_single_change_is_named(name, whole, save):
    value = checkpoint()
    changes()[name](value)
    assert first_difference(whole, save(value)) == name.strip()
    assert first_difference(save(value), whole) == name.strip()


def test_exactly_the_leaves_of_a_state_dict_are_named(save):
    optimizer = trained()[1]
    path = save({"optimizer": optimizer.state_dict(), "best": 0.5})
    of_group = list(optimizer.state_dict()["param_groups"][0])
    names = {f"['optimizer']['state'][{i}]['{key}']" for i in range(4) for key in ("step", "exp_avg", "exp_avg_sq")}
    names |= {f"['optimizer']['param_groups'][0]['{key}']" for key in of_group if key not in ("betas", "params")}
    names |= {f"['optimizer']['param_groups'][0]['betas'][{i}]" for i in range(2)}
    names |= {f"['optimizer']['param_groups'][0]['params'][{i}]" for i in range(4)}
    assert set(entries(path)) == {*names, "['best']"}


def test_a_value_in_nothing_has_a_name(save):
    assert set(entries(save(torch.ones(2)))) == {"its value"}
    assert first_difference(save(torch.ones(2)), save(torch.zeros(2))) == "its value"


def test_storages_may_be_saved_in_another_order(save):
    a, b = torch.arange(4.0), torch.arange(8.0)
    one, other = save({"a": a, "b": b, "c": a[1:3]}), save({"c": a[1:3], "b": b, "a": a})
    assert one.read_bytes() != other.read_bytes()
    assert first_difference(one, other) == ""


def test_of_a_shared_storage_only_the_elements_shown_count(save):
    changed = torch.arange(24.0).view(4, 6)
    changed[:, 1], changed[0] = -1, -2
    views = [torch.arange(24.0).view(4, 6)[1:3, ::2], changed[1:3, ::2]]
    assert first_difference(*(save([view]) for view in views)) == ""
    assert first_difference(*(save([view[:, 1:]]) for view in views)) == ""
    assert first_difference(*(save([view.T]) for view in (views[0], views[1] + 0))) == "[0]"  # other strides


def views(tensor: Any) -> list[Any]:
    """Return views of a tensor of 4 dimensions."""
    return [
        tensor, tensor.mT, tensor[1], tensor[:, 1], tensor[..., 1], tensor[::2, :, ::3], tensor.permute(2, 0, 3, 1),
        tensor[:, :1].expand(-1, 5, -1, -1), tensor.unfold(2, 3, 1), tensor[:, 1:, 2:, 1:], tensor.diagonal(0, 0, 2),
        tensor[0, 0, 0, 0], tensor[:0], tensor.as_strided((2, 2), (3, 3), 1),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int8", "bool", "complex64", "uint32"])
def test_each_element_that_a_view_shows_counts_and_no_other(dtype, save):
    whole = torch.zeros(3 * 2 * 4 * 3).to(getattr(torch, dtype)).view(3, 2, 4, 3)
    width = whole.element_size()
    for index, view in enumerate(views(whole)):
        one = save(view)
        shown = {int(i) for i in views(torch.arange(72).view(3, 2, 4, 3))[index].flatten()}
        for element in (*range(0, 72, 5), *range(min(shown, default=0), min(71, 9 + min(shown, default=0)))):
            changed = whole.clone()
            changed.view(-1).view(torch.uint8)[element * width + element % width] = 1
            overlaps = index == 8  # its gaps may count too
            if not overlaps or element in shown:
                named = "its value" if element in shown else ""
                assert first_difference(one, save(views(changed)[index])) == named, (index, element)


def test_a_user_s_objects_are_trees_of_their_state(save):
    buffer, slotted, other = Buffer([1, 2]), Slotted(), Slotted()
    buffer.limit, other.values = 5, {"a": 3}
    assert set(entries(save([Meter()]))) == {"[0].total", "[0].seen[0]", "[0].seen[1]"}
    assert set(entries(save([buffer]))) == {"[0][0]", "[0][1]", "[0].limit"}
    assert first_difference(save([slotted]), save([other])) == "[0].values['a']"
    assert first_difference(save([Owner(1)]), save([Owner(2)])) == "[0]"
    tagged = Tagged([1])
    tagged.tag = 5
    assert set(entries(save([tagged]))) == {"[0][0]", "[0].__getstate__()[0]", "[0].__getstate__()[1]"}


def test_the_class_of_an_object_counts(save):
    assert first_difference(save([Meter()]), save([Twin()])) == "[0].total"
    assert first_difference(save([[1]]), save([(1,)])) == "[0][0]"
    assert first_difference(save({"a": {1: 2}}), save({"a": collections.OrderedDict({1: 2})})) == "['a'][1]"


def test_a_whole_module_is_read(save):
    model, _ = trained()
    one = save(model)
    with torch.no_grad():
        model[1].bias.add_(1)
    assert first_difference(one, save(model)) == "._modules['1']._parameters['bias']"


def test_tensors_with_attributes_are_read(save):
    class_of = [torch.ones(6)[2:4], torch.ones(6)[2:4]]
    for tensor, tag in zip(class_of, (1, 2), strict=True):
        tensor.tag = tag
    assert first_difference(save([class_of[0]]), save([class_of[1]])) == "[0]"
    parameter = torch.nn.Parameter(torch.ones(2))
    one = save([parameter])
    parameter.tag = 1
    assert first_difference(one, save([parameter])) == "[0]"


def test_unusual_keys_have_names(save):
    keys = {torch.float32: 1, Color.RED: 2, (1, (2,)): 3, 1: 4, "1": 5, "it's": 6}
    names = list(entries(save(keys)))
    assert names[0] == "[torch.float32]"
    assert names[1].endswith("test_contents.Color(1)]")
    assert names[3:] == ["[1]", "['1']", '["it\'s"]']
    assert first_difference(save(keys), save({**keys, (1, (2,)): 9})) == names[2]


def test_the_order_of_a_dict_does_not_count(save):
    assert first_difference(save({"a": 1, "b": [{1: 2, 3: 4}]}), save({"b": [{3: 4, 1: 2}], "a": 1})) == ""


def test_cycles_end(save):
    def cycle(value: object) -> object:
        meter, items = Meter(), [value]
        items.append({"meter": meter, "items": items})
        meter.seen = items
        return items

    assert first_difference(save(cycle(1)), save(cycle(1))) == ""
    assert first_difference(save(cycle(1)), save(cycle(2))) == "[0]"


def test_a_tree_that_is_much_larger_than_its_file_is_refused(save):
    value: list[Any] = []
    for _ in range(40):
        value = [value, value]
    assert entries(save(value)) is None


def test_deep_trees_end(tmp_path):
    for deep in (b"]" * 50_000 + b"a" * 49_999, b")" + b"\x85" * 300_000, b"})" + b"\x85" * 300_000 + b"Ns"):
        (tmp_path / "deep").write_bytes(b"\x80\x04" + deep + b".")
        assert entries(tmp_path / "deep") is None or deep.endswith(b"s")


def test_nothing_of_a_file_is_executed(save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    assert entries(save({"trap": Trap()})) is not None
    (tmp_path / "evil").write_bytes(b"\x80\x02cthis\nitself\n)R.")
    assert entries(tmp_path / "evil") is not None
    (tmp_path / "evil").write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x04\0\0\0zlib\x86R.")
    assert entries(tmp_path / "evil") is None
    assert not (tmp_path / "executed").exists()
    assert set(sys.modules) - before == set()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles_are_read(protocol, tmp_path):
    value = {"a": [1, {2}, frozenset({3}), Meter(), bytearray(b"x"), np.arange(3)], "d": datetime.date(2020, 1, 1)}
    other = copy.deepcopy(value)
    other["a"][3].seen[0] = 7
    for name, content in (("one", value), ("other", other)):
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol))
    assert first_difference(tmp_path / "one", tmp_path / "other") == "['a'][3].seen[0]"
    assert "['a'][1]" in entries(tmp_path / "one")


def test_of_torch_s_old_format_the_bytes_are_compared(save):
    assert entries(save(torch.ones(2), _use_new_zipfile_serialization=False)) is None
    one, other = (save(torch.full((2,), x), _use_new_zipfile_serialization=False) for x in (1.0, 2.0))
    assert first_difference(one, other) == "its content"


def test_of_files_put_one_behind_the_other_the_bytes_are_compared(tmp_path):
    stream = io.BytesIO()
    for value in (torch.ones(2), torch.zeros(2)):
        torch.save(value, stream)
    (tmp_path / "__0_0.distcp").write_bytes(stream.getvalue())
    assert entries(tmp_path / "__0_0.distcp") is None
    torch.save(torch.ones(2), tmp_path / "tail.distcp")
    with (tmp_path / "tail.distcp").open("ab") as file:
        file.write(b"more")
    assert entries(tmp_path / "tail.distcp") is None


def test_files_without_checksums_are_read(save):
    one = save([torch.ones(2)])
    torch.serialization.set_crc32_options(False)
    try:
        other = save([torch.ones(2)])
    finally:
        torch.serialization.set_crc32_options(True)
    assert first_difference(one, other) == ""


def safetensors(path: Path, tensors: dict[str, bytes], **metadata: str) -> Path:
    """Write a file as the safetensors library does."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))
    return path


def test_safetensors_are_read(tmp_path):
    one = safetensors(tmp_path / "one", {"a": b"xyz", "b.weight": b""}, format="pt")
    other = safetensors(tmp_path / "other", {"b.weight": b"", "a": b"xyz"}, format="pt")
    assert first_difference(one, other) == ""
    assert set(entries(one)) == {"['__metadata__']['format']", "['a']", "['b.weight']"}
    assert (
        first_difference(one, safetensors(tmp_path / "third", {"a": b"xyZ", "b.weight": b""}, format="pt")) == "['a']"
    )
    assert set(entries(safetensors(tmp_path / "none", {"a": b""}))) == {"['a']"}


def test_the_library_s_safetensors_are_read(tmp_path):
    library = pytest.importorskip("safetensors.torch")
    library.save_file({"a": torch.ones(2), "b": torch.zeros(3, dtype=torch.bfloat16)}, tmp_path / "one")
    library.save_file({"a": torch.ones(2), "b": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "other")
    assert first_difference(tmp_path / "one", tmp_path / "other") == "['b']"


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_arrays_of_numpy_are_read(write, tmp_path):
    write(tmp_path / "one.npz", a=np.arange(3), b=np.ones(2))
    write(tmp_path / "other.npz", a=np.arange(3), b=np.zeros(2))
    assert set(entries(tmp_path / "one.npz")) == {"['a']", "['b']"}
    assert first_difference(tmp_path / "one.npz", tmp_path / "other.npz") == "['b']"
    np.save(tmp_path / "one.npy", np.arange(3))
    assert set(entries(tmp_path / "one.npy")) == {"its value"}


def test_json_is_read_leaf_by_leaf(tmp_path):
    (tmp_path / "one").write_text('{"a": [1, 2.0, {"b": null}], "c": {}, "n": NaN}')
    (tmp_path / "same").write_text('{"n": NaN, "c": {},\n "a": [1, 2.00, {"b": null}]}')
    (tmp_path / "other").write_text('{"a": [1, 2, {"b": null}], "c": {}, "n": NaN}')
    assert set(entries(tmp_path / "one")) == {"['a'][0]", "['a'][1]", "['a'][2]['b']", "['c']", "['n']"}
    assert first_difference(tmp_path / "one", tmp_path / "same") == ""
    assert first_difference(tmp_path / "one", tmp_path / "other") == "['a'][1]"


def test_of_any_other_file_the_bytes_are_compared(tmp_path):
    for number, content in enumerate([b"", b"text", b'{"a": 1}\n{"a": 2}', b"{not json}"]):
        path, other = tmp_path / f"{number}", tmp_path / f"{number}-other"
        path.write_bytes(content)
        other.write_bytes(content)
        assert entries(path) is None
        assert first_difference(path, other) == ""
        other.write_bytes(content + b" x")
        assert first_difference(path, other) == "its content"
    assert entries(tmp_path) is None
    assert entries(tmp_path / "missing") is None


def damageable(folder: Path) -> dict[str, bytes]:
    """Return a file of each kind."""
    value = {"a": [1, {2}, Meter(), "text"], "b": {"c": (1.5, None)}}
    np.savez(folder / "a.npz", a=np.arange(3))
    torch.save({**value, "t": torch.arange(6.0)[::2]}, folder / "a.pt")
    safetensors(folder / "a.safetensors", {"a": b"xyz", "b": b"1"}, format="pt")
    (folder / "a.json").write_text(json.dumps(list(value.items()), default=str))
    for protocol in range(2, 6):
        (folder / f"{protocol}.pkl").write_bytes(pickle.dumps(value, protocol))
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


KINDS = ["a.npz", "a.pt", "a.safetensors", "a.json", "2.pkl", "3.pkl", "4.pkl", "5.pkl"]


@pytest.mark.parametrize("name", KINDS)
def test_a_file_that_was_cut_off_is_damaged(name, tmp_path):
    data = damageable(tmp_path)[name]
    assert entries(tmp_path / name) is not None
    for size in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:size])
        assert entries(tmp_path / "cut") is None


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_flipped_bytes_never_raises(name, tmp_path):
    data = damageable(tmp_path)[name]
    draw = random.Random(name)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << draw.randrange(8)
        (tmp_path / "flipped").write_bytes(changed)
        assert isinstance(first_difference(tmp_path / name, tmp_path / "flipped"), str)


@given(st.binary(max_size=60), st.sampled_from([b"\x80\x02", b"\x80\x04", b"PK\x03\x04", b"{", b"\x02\0\0\0\0\0\0\0{"]))
def test_no_bytes_make_it_raise(tmp_path_factory, data, start):
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(start + data)
    assert entries(path) is None or entries(path)


TENSORS = st.builds(
    lambda values, dtype: torch.tensor(values).to(dtype),
    st.lists(st.integers(0, 9), max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
)
KEYS = st.text(max_size=3) | st.integers() | st.tuples(st.integers(), st.text(max_size=1))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5) | TENSORS
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3).map(collections.OrderedDict)
    ),
    max_leaves=12,
)


def leaves_of(value: object, name: str = "") -> dict[str, object]:
    """Return the leaves of a tree by their names, as plainly as can be."""
    items: dict[str, object] = {}
    if isinstance(value, dict):
        items = {f"[{key!r}]": child for key, child in value.items()}
    elif isinstance(value, list | tuple):
        items = {f"[{index}]": child for index, child in enumerate(value)}
    if not items:
        return {name or "its value": value}
    return {at: leaf for end, child in items.items() for at, leaf in leaves_of(child, name + end).items()}


def replaced(value: Any, name: str, leaf: object) -> Any:
    """Return a copy of a tree with another leaf of this name."""
    holder = [copy.deepcopy(value)]

    def put(tree: Any, at: str) -> Any:
        if (at or "its value") == name:
            return leaf
        if isinstance(tree, dict):
            return type(tree)((key, put(child, f"{at}[{key!r}]")) for key, child in tree.items())
        if isinstance(tree, list | tuple):
            return type(tree)(put(child, f"{at}[{index}]") for index, child in enumerate(tree))
        return tree

    return put(holder[0], "")


@given(tree=TREES, data=st.data())
def test_the_leaf_that_is_changed_is_the_leaf_that_is_named(tmp_path_factory, tree, data):
    folder = tmp_path_factory.getbasetemp()
    leaves = leaves_of(tree)
    name = data.draw(st.sampled_from(sorted(leaves)))
    torch.save(tree, folder / "tree.pt")
    torch.save(copy.deepcopy(tree), folder / "equal.pt")
    torch.save(replaced(tree, name, Color.BLUE), folder / "changed.pt")
    assert set(entries(folder / "tree.pt")) == set(leaves)
    assert first_difference(folder / "tree.pt", folder / "equal.pt") == ""
    assert first_difference(folder / "tree.pt", folder / "changed.pt") == name
