"""What a group needs to continue, in the run's folder under ``grawa launch``: the newest state and the one before, each with a checksum.
Earlier versions wrote the state alone."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
import zlib

NAME = "session.checkpoint"
BEFORE = "session.checkpoint.before"
_HEAD = b"grawa session checkpoint 1\n"


def keep_checkpoint(folder: str, state: bytes) -> None:
    """Replaces the newest state; it becomes the one before. At every moment one of the two is whole, also if the machine fails."""
    # A name of its own for each process: two may take themselves for the first one, for a moment.
    newest, new = os.path.join(folder, NAME), os.path.join(folder, f"{NAME}.new-{os.getpid()}")
    with open(new, "wb") as file:
        file.write(_HEAD + zlib.crc32(state).to_bytes(4, "little") + len(state).to_bytes(8, "little") + state)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        os.replace(newest, os.path.join(folder, BEFORE))
    os.replace(new, newest)
    if os.name == "posix":
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def kept_checkpoint(folder: str | None) -> bytes | None:
    """The newest state that is whole; none if there is no file. One that is damaged is named, and one of an earlier version."""
    if not folder:
        return None
    damaged = []
    for name in (NAME, BEFORE):
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            continue
        state, why = _state_of(content)
        if state is None and _is_bare_state(content):
            warnings.warn(
                f"{path} was written by an earlier version of grawa, without a checksum: the run continues from it, and damage to its numbers "
                "would not be noticed",
                stacklevel=2,
            )
            state = content
        if state is not None:
            if damaged:
                warnings.warn(f"{'; '.join(damaged)}: the run continues from the state before, {path}", stacklevel=2)
            return state
        damaged.append(f"{path} {why}")
    if damaged:
        raise ValueError(
            f"{'; '.join(damaged)}: there is no whole state to continue from; start a new run with another --out"
        )
    return None


def _state_of(content: bytes) -> tuple[bytes | None, str]:
    """The state in a file, or why there is none."""
    at = len(_HEAD)
    if not content:
        return None, "is empty"
    if content[:at] != _HEAD[: len(content)]:
        return None, f"does not begin with {_HEAD.decode().strip()!r}: it is another file, or of another version of grawa"
    if len(content) < at + 12:
        return None, f"has {len(content)} bytes, too few for its head"
    checksum, length = int.from_bytes(content[at : at + 4], "little"), int.from_bytes(content[at + 4 : at + 12], "little")
    state = content[at + 12 :]
    if len(state) != length:
        return None, f"has {len(state)} bytes of a state of {length}"
    if zlib.crc32(state) != checksum:
        return None, "is damaged: its checksum does not fit"
    return state, ""


def _is_bare_state(content: bytes) -> bool:
    """Whether these bytes are the state alone, from the first to the last: the run, its operation, what all remember (as JSON), and the
    numbers of the centre, each list with its length before it."""
    try:
        _, at = _number(content, 0)
        _, at = _number(content, at)
        length, at = _number(content, at)
        remembered = json.loads(content[at : at + length])
        count, at = _number(content, at + length)
    except (IndexError, ValueError):
        return False
    return isinstance(remembered, dict) and "counts" in remembered and len(content) - at == 4 * count


def _number(content: bytes, at: int) -> tuple[int, int]:
    """A whole number of seven bits in each byte, and where the next thing begins."""
    number = 0
    for place in range(10):
        number |= (content[at + place] & 0x7F) << 7 * place
        if content[at + place] < 0x80:
            return number, at + place + 1
    raise ValueError("64 bits take ten bytes at most")
