"""Every message of a vault: with its agent and with workers as lines of JSON, with other vaults as frames of msgpack.

Workers write their lines without this module, which needs msgspec: see `flowdist.worker.snapshots.vault_link`. Numbers
and names have limits, which the decoders check: what comes from another host has the shape that it claims, or is
refused.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from flowdist.control.protocol.ids import NodeName, WorldName

NUMBER_MAX = (1 << 62) - 1
LINE_MAX = 1 << 20  # bytes: a `Get` names the holders of one shard, and `Buddies` a few nodes
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
Holders = tuple[tuple[NodeName, str], ...]  # nodes, each with the "host:port" of its vault


class Shard(msgspec.Struct, frozen=True):
    """Name of the part of one rank in the snapshot of a world."""

    world: Annotated[WorldName, msgspec.Meta(min_length=1, max_length=255)]
    generation: Number
    step: Number
    rank: Number
    world_size: Positive

    def __str__(self) -> str:
        return f"{self.world} step {self.step} of generation {self.generation}, rank {self.rank} of {self.world_size}"


# From the agent


class Attach(msgspec.Struct, frozen=True, tag=True):
    """First line of an agent, which takes the place of an earlier one. It may be sent again.

    The answer is `Listening`, and a `Held` for each copy on this node.
    """


class Buddies(msgspec.Struct, frozen=True, tag=True):
    """The nodes that get a copy of each shard that workers of this node put for a world, from now on these alone."""

    world: Name
    nodes: Holders


class Release(msgspec.Struct, frozen=True, tag=True):
    """Order to drop this node's copies of one snapshot."""

    world: Name
    generation: Number
    step: Number


# To the agent


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The TCP port at which other vaults reach this one."""

    port: int


class Held(Shard, frozen=True, tag=True):
    """This node has a copy, all of it, with the right digest."""

    bytes: int
    digest: int


class Broken(Shard, frozen=True, tag=True):
    """This node has no good copy any more, of a shard that it held: it was damaged, or is missing."""

    why: str


# Between a worker and the vault of its node


class Put(Shard, frozen=True, tag=True):
    """A worker's request for memory for its shard. The answer is `Answer` with a descriptor, then comes `Done`."""

    bytes: Positive


class Done(msgspec.Struct, frozen=True, tag=True):
    """A worker has written its shard, and will not write to the memory again."""


class Get(Shard, frozen=True, tag=True):
    """A worker's request for a shard, with the nodes that may have it, the best one first."""

    holders: Holders = ()


class Answer(msgspec.Struct, frozen=True):
    """Answer to `Put` and `Get`. A descriptor of the memory comes with it, unless `why` says why there is none."""

    bytes: int = 0
    why: str = ""


# Between vaults


class Store(Shard, frozen=True, tag=True):
    """Offer of a copy. After `Go` come its bytes, and `Stored` is the answer to them."""

    bytes: Positive
    digest: Number


class Fetch(Shard, frozen=True, tag=True):
    """Request for a copy. The answer is `Go`, and then the bytes."""


class Wait(msgspec.Struct, frozen=True, tag=True):
    """Sign of life of a vault that has too many transfers to begin this one. It comes again until the answer does."""


class Go(msgspec.Struct, frozen=True, tag=True):
    """Answer of a vault that has room for a copy, or that sends one, with its size and digest."""

    bytes: int
    digest: int


class Stored(msgspec.Struct, frozen=True, tag=True):
    """Answer of a vault that holds a copy and has checked its digest."""


class No(msgspec.Struct, frozen=True, tag=True):
    """Answer of a vault that does not do what was asked."""

    why: str
    is_bad: bool = False  # what has arrived is damaged


FromAgent = Attach | Buddies | Release
FROM_LOCAL = msgspec.json.Decoder(Attach | Put | Get)
FROM_AGENT: msgspec.json.Decoder[FromAgent] = msgspec.json.Decoder(FromAgent)
FROM_WORKER = msgspec.json.Decoder(Done)
TO_AGENT = msgspec.json.Decoder(Listening | Held | Broken)
FROM_PEER = msgspec.msgpack.Decoder(Store | Fetch)
OF_PEER: msgspec.msgpack.Decoder[Wait | Go | Stored | No] = msgspec.msgpack.Decoder(Wait | Go | Stored | No)

Kind = TypeVar("Kind", bound=Shard)


def name_of(message: Shard) -> Shard:
    """Return the name of the shard that a message is about."""
    return Shard(message.world, message.generation, message.step, message.rank, message.world_size)


def about(kind: type[Kind], shard: Shard, **content: Any) -> Kind:
    """Return a message of a kind about a shard."""
    return kind(**msgspec.structs.asdict(shard), **content)


def line(message: msgspec.Struct) -> bytes:
    """Return a message as one line of JSON."""
    return msgspec.json.encode(message) + b"\n"
