"""What goes wrong without a sign is noticed: training that is not seen, states that are not used, batches that are the same everywhere, and
files that are damaged. Needs NumPy only, but for the tests of loaders."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from group import PATIENT, SAME_BATCHES, launch, said

import grawa
from grawa.checkpoint_file import BEFORE, NAME, keep_checkpoint, kept_checkpoint

ALIKE = """
import json, os, sys, warnings
import numpy as np, grawa
case, rank = sys.argv[1], int(os.environ["GRAWA_LOCAL_RANK"])
x = np.zeros(9, dtype=np.float32)
session = grawa.Session(x, method="mean:period=3,pull=PULL,prox=0", budget="40step")
seed = {"alike": 0, "two of three": min(rank, 1), "differ": rank, "no rate": 0, "late": rank}[case]
draw = np.random.default_rng(seed)
rate = np.float32(0.0 if case == "no rate" else 0.1)
faults = []
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    while session.due != "end":
        if session.due == "step":
            x -= rate * draw.standard_normal(9).astype(np.float32)
            session.step(1.0)
        elif session.due == "round":
            held = session.round(x)
            faults += held["faults"] if held else []
        else:
            session.evaluated_model(x)
session.finish()
print("found", json.dumps([str(one.message) for one in found]), flush=True)
"""


@pytest.mark.parametrize(("case", "count"), [("alike", 1), ("two of three", 1), ("differ", 0), ("no rate", 0)])
@pytest.mark.parametrize("pull", ["1", "0.5"])
def test_workers_that_are_alike(tmp_path: Path, case: str, count: int, pull: str) -> None:
    import json

    output = launch(tmp_path, ALIKE.replace("PULL", pull), case, workers=3, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    found = [json.loads(text) for text in said(output, "found")]
    assert [len(one) for one in found] == [count] * 3, output.stdout
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert events.count("the same parameters after their steps, bit for bit") == count
    if count:
        assert {one[0] for one in found} == {SAME_BATCHES if case == "alike" else SAME_BATCHES.replace("0 and 1", "1 and 2")}


def test_processes_of_torchrun_that_would_train_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros(3, dtype=np.float32)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    grawa.Session(x, method="mean", budget="8step").leave()
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match=r"4 processes were started by torchrun .* comm='torch'"):
        grawa.Session(x, method="mean", budget="8step")


def test_a_checkpoint_of_two_copies(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert kept_checkpoint(None) is None and kept_checkpoint(folder) is None
    keep_checkpoint(folder, b"one")
    assert kept_checkpoint(folder) == b"one"
    keep_checkpoint(folder, b"two")
    assert kept_checkpoint(folder) == b"two" and sorted(os.listdir(folder)) == [NAME, BEFORE]
    whole = (tmp_path / NAME).read_bytes()
    # Every bit, and every length.
    flips = [bytes([*whole[:at], whole[at] ^ 1 << bit, *whole[at + 1 :]]) for at in range(len(whole)) for bit in range(8)]
    for damaged in [*flips, *(whole[:length] for length in range(len(whole))), whole + b"x", b"two"]:
        (tmp_path / NAME).write_bytes(damaged)
        with pytest.warns(UserWarning, match=f"{NAME} .*the run continues from the state before, .*{BEFORE}"):
            assert kept_checkpoint(folder) == b"one"
    (tmp_path / NAME).write_bytes(b"")
    (tmp_path / BEFORE).write_bytes(whole[:20])
    with pytest.raises(ValueError, match=f"{NAME} is empty; .*{BEFORE} has 20 bytes, too few.*start a new run"):
        kept_checkpoint(folder)
    # The machine failed between the two steps of a replacement.
    os.remove(tmp_path / NAME)
    (tmp_path / BEFORE).write_bytes(whole)
    assert kept_checkpoint(folder) == b"two"


# A state as a45ef8e wrote it, which is the whole file: the run and its operation, what all remember, and a centre of two numbers.
REMEMBERED = (
    b'{"at":{"steps":30,"total":60,"rounds":7,"rate":0.1,"is_rising":false},"elapsed":{"secs":0,"nanos":32817082},'
    b'"memories":[[{"rounds":7,"averages":{}}]],"history":[],"counts":{"taken":{"0":30,"1":30},"dealt":0,"among":2,'
    b'"since":{"0":0,"1":0}},"diverged":false}'
)
EARLIER = b"\xe5\x8e\x8b\xd8\xdc\xbd\xed\xb0\xd9\x01\x11" + bytes([len(REMEMBERED) & 127 | 128, len(REMEMBERED) >> 7]) + REMEMBERED + (
    b"\x02\x00\x00\x80\x3f\x00\x00\x00\xc0"
)  # fmt: skip


def test_a_checkpoint_of_an_earlier_version(tmp_path: Path) -> None:
    folder, newest = str(tmp_path), tmp_path / NAME
    newest.write_bytes(EARLIER)
    with pytest.warns(UserWarning, match=f"{NAME} was written by an earlier version of grawa, without a checksum"):
        assert kept_checkpoint(folder) == EARLIER
    # It becomes the one before, and is used where the new one is damaged.
    keep_checkpoint(folder, EARLIER)
    assert (tmp_path / BEFORE).read_bytes() == EARLIER
    whole = newest.read_bytes()
    for at in range(len(whole)):
        newest.write_bytes(bytes([*whole[:at], whole[at] ^ 1, *whole[at + 1 :]]))
        with pytest.warns(UserWarning) as found:
            assert kept_checkpoint(folder) == EARLIER
        assert [f"{BEFORE} was written by" in str(one.message) for one in found] == [True, False]
    os.remove(tmp_path / BEFORE)
    # Other bytes are no state: cut, longer, or anything.
    draw = np.random.default_rng(0)
    others = [*(EARLIER[:length] for length in range(1, len(EARLIER))), EARLIER + b"x", *(draw.bytes(n) for n in range(1, 500)), b"\xff" * 99]
    for other in others:
        newest.write_bytes(other)
        with pytest.raises(ValueError, match="it is another file, or of another version of grawa|bytes, too few for its head"):
            kept_checkpoint(folder)


# With PyTorch.


def points(length: int = 40) -> Any:
    torch = pytest.importorskip("torch")
    return torch.utils.data.TensorDataset(torch.randn(length, 4), torch.zeros(length, dtype=torch.long))


def join(**options: Any) -> Any:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 2)
    return grawa.join(model, torch.optim.SGD(model.parameters(), lr=0.1), "mean:period=2,pull=1,prox=0", **options)


def train(run: Any, x: Any) -> None:
    run.model(x).sum().backward()
    run.optimizer.step()
    run.optimizer.zero_grad()


def test_an_optimizer_that_never_steps() -> None:
    with join() as run, pytest.warns(UserWarning, match=r"12 batches were read, and the SGD that was given to grawa.join took no step"):
        for _ in run.epochs(1):
            for number, _ in enumerate(run.loader(points(), batch_size=4)):
                if number == 14:
                    run.leave()
                    break


def test_a_run_that_is_left_or_evaluated_without_a_step() -> None:
    for averages in (False, True):
        run = join()
        next(run.epochs(1))
        batches = iter(run.loader(points(), batch_size=4))
        next(batches)
        if averages:
            # The first batch may be read before the model is evaluated for the first time.
            next(batches)
        with pytest.warns(UserWarning, match=f"{1 + averages} batches were read, and the SGD"):
            if averages:
                with run.averaged():
                    pass
            else:
                run.leave()
        run.leave()


OWN_LOOPS = ["shard", "sampler", "by hand", "by hand, saved", "by hand, averaged", "another model", "epochs"]


@pytest.mark.parametrize("case", OWN_LOOPS)
def test_an_optimizer_that_never_steps_in_a_loop_of_ones_own(case: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with pytest.warns(UserWarning, match="the run has begun, and the SGD that was given to grawa.join took no step") as found:
        with join(budget="4step", batch=4, examples=40) as run:
            run.start()
            other = torch.optim.SGD(run.model.parameters(), lr=0.1)
            if case == "sampler":
                sampler = run.sampler(points(), 4)
                for _ in zip(range(2), torch.utils.data.DataLoader(points(), batch_sampler=sampler)):
                    sampler.is_next()
            elif case == "epochs":
                for _ in zip(range(2), run.epochs()):
                    pass
            else:
                for _ in range(2):
                    if case == "shard":
                        assert len(run.shard) == 3
                    if case == "another model":
                        # Nothing can be seen of what is trained; but that it is evaluated.
                        with run.averaged():
                            pass
                    if case.startswith("by hand"):
                        run.model(torch.ones(4)).sum().backward()
                        other.step()
            if case == "by hand, saved":
                run.save(tmp_path / "model.pt")
            if case == "by hand, averaged":
                with run.averaged():
                    pass
            assert len(found) == (case in ("by hand, saved", "by hand, averaged", "another model"))
        assert len(found) == 1 and run._has_left


def test_no_step_because_of_an_error_is_no_notice() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError), join(budget="4step", batch=4, examples=40) as run:
            run.start()
            assert len(run.shard) == 3
            1 / 0  # noqa: B018


@pytest.mark.parametrize("accumulate", [1, 4])
def test_no_false_alarm(accumulate: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with join() as run:
            for _ in run.epochs(3):
                for number, (x, _) in enumerate(run.loader(points(), batch_size=2, accumulate=accumulate)):
                    if (number + 1) % accumulate == 0:
                        train(run, x)
                with run.averaged():
                    pass
        # Before the first batch nothing can have been seen.
        with join(budget="4step", batch=1, examples=8) as run:
            run.start()
            with run.averaged():
                pass
        # A model is evaluated before the first step, also with its batch at hand, and is saved.
        with join() as run:
            for _ in run.epochs(1):
                for number, (x, _) in enumerate(run.loader(points(), batch_size=2, accumulate=accumulate)):
                    if number == accumulate - 1:
                        with run.averaged():
                            pass
                    if (number + 1) % accumulate == 0:
                        train(run, x)
        with join(budget="4step", batch=1, examples=8) as run:
            run.start()
            while not run.is_over:
                assert len(run.shard) == 3
                if run.progress.steps == 0:
                    with run.averaged():
                        pass
                    run.save(tmp_path / "model.pt")
                train(run, torch.ones(4))


def test_how_long_a_loader_is() -> None:
    with join() as run:
        loader = run.loader(points(41), batch_size=4)
        with pytest.raises(TypeError, match=r"depends on the number of workers: call run.epochs"):
            len(loader)
        epochs = run.epochs(1)
        assert len(loader) == 11
        for _ in epochs:
            assert len(loader) == 11
            assert sum(1 for x, _ in loader if train(run, x) is None) in (11, 12)
        assert len(loader) == 11
    # The budget is known when run.epochs is called.
    with join(budget="1epoch") as run, pytest.raises(ValueError, match=r"both run.epochs\(2\) and the budget '1epoch'"):
        run.epochs(2)


def test_passes_without_end() -> None:
    def cycle(loader: Any) -> Any:
        while True:
            yield from loader

    with join() as run:
        epochs, loader = run.epochs(1), run.loader(points(), batch_size=4)
        batches = cycle(loader)
        while not run.is_over:
            train(run, next(batches)[0])
        # A loop over a number of epochs ends by itself.
        with pytest.warns(UserWarning, match="was asked for another pass 1000 times: end your loop") as noted:
            assert [list(loader) for _ in range(5000)] == [[]] * 5000 and list(epochs) == []
        assert len(noted) == 1
        with pytest.raises(RuntimeError, match="the run is over, and its loader was asked for another pass"):
            next(batches)


def test_what_a_loader_is_given_by_mistake() -> None:
    torch = pytest.importorskip("torch")

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter([])

    with join() as run:
        with pytest.raises(TypeError, match=r"this is a DataLoader, .* give its dataset"):
            run.loader(torch.utils.data.DataLoader(points()), batch_size=4)
        for stream in (Stream(), (n for n in range(9)), {1, 2}):
            with pytest.raises(TypeError, match="deals examples by their numbers"):
                run.loader(stream, batch_size=4)
        with pytest.raises(TypeError, match="sampler is not an option"):
            run.loader(points(), batch_size=4, sampler=[1, 2])
        with pytest.warns(UserWarning, match="shuffle=True is not needed"):
            first = run.loader(points(), batch_size=4, shuffle=True)
        assert run.loader(first.dataset, batch_size=4, shuffle=False, drop_last=False, sampler=None) is first


def test_a_state_that_is_not_used() -> None:
    with join(budget="8step", batch=1, examples=8) as run:
        run.load_state_dict({"method": run.method, "progress": (4, 0.5, 1.0, 0.5), "checkpoint": None})
        with pytest.raises(RuntimeError, match=r"is of step 4, and this group begins at step 0"):
            run.start()
    # The group compares methods, whatever their texts; earlier versions wrote "mean" for another one.
    for text in ("mean:pull=1,period=2", "mean:period=2,pull=0.5,prox=0.01", "mean"):
        with join(budget="8step", batch=1, examples=8) as run:
            run.load_state_dict({"method": text, "progress": (0, 0.0, 0.0, 0.0), "checkpoint": None})
            run.start()
    # One of the beginning loses nothing.
    with join(budget="8step", batch=1, examples=8) as run:
        run.load_state_dict(run.state_dict())
        run.start()


FREE = """
import json, os, sys, time
import torch, grawa
torch.set_num_threads(1)
options = eval(sys.argv[1])
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 240
    def __getitem__(self, n): return torch.ones(2), n
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
read = []
with grawa.join(model, optimizer, "mean:period=4,pull=1,prox=0", pace="free", wait=60) as run:
    for _ in run.epochs(4):
        for x, numbers in run.loader(Numbers(), batch_size=4, **options):
            time.sleep(0.03 if os.environ["GRAWA_LOCAL_RANK"] == "1" else 0.005)
            read.append((run.shard, numbers.tolist()))
            model(x).sum().backward(); optimizer.step()
print("read", json.dumps(read), flush=True)
"""


@pytest.mark.parametrize("options", ["{}", "{'num_workers': 1}"])
def test_a_free_pace_deals_each_batch_once(tmp_path: Path, options: str) -> None:
    import json

    pytest.importorskip("torch")
    output = launch(tmp_path, FREE, options, workers=3)
    assert output.returncode == 0, output.stdout + output.stderr
    workers = [json.loads(text) for text in said(output, "read")]
    batches = sorted(place[2] for read in workers for place, _ in read)
    assert all(place[:2] == [0, 1] for read in workers for place, _ in read)
    assert len({len(read) for read in workers}) > 1, "all were equally fast: nothing is tested"
    # None twice; those that are missing are some of the last cycle.
    assert len(batches) == len(set(batches)) and len(batches) >= 240
    missing = set(range(len(batches))) - set(batches)
    assert all(number >= len(batches) - 60 for number in missing), missing
    # So each example is read as often as the others, but for the last ones.
    counts = np.bincount([n for read in workers for _, numbers in read for n in numbers], minlength=240)
    assert counts.max() - counts.min() <= 2 and abs(counts.mean() - len(batches) * 4 / 240) < 1e-9
