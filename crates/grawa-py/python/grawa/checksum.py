"""The checksum in the metadata of model files: grawa refuses one whose content does not agree with it."""

from __future__ import annotations

import json
import struct

from . import _native

NAME = "crc32c"


def with_checksum(content: bytes) -> bytes:
    """The bytes of a safetensors file with its checksum: that of the names, types, shapes and numbers of all tensors, and of the other
    metadata, each in the order of the names. `crates/grawa-nn/src/tensors.rs` computes the same."""
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    words = {key: value for key, value in header.pop("__metadata__", {}).items() if key != NAME}
    pieces = []
    for name, tensor in sorted(header.items()):
        start, end = (8 + length + at for at in tensor["data_offsets"])
        kind = f"{tensor['dtype'].lower()} of shape {tensor['shape']}"
        pieces += [name.encode(), kind.encode(), content[start:end]]
    for key, value in sorted(words.items()):
        pieces += [key.encode(), value.encode()]
    words[NAME] = f"{_native._crc32c(pieces):08x}"
    text = json.dumps({"__metadata__": words, **header}).encode()
    # Tensors begin at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, content[8 + length :]])
