"""Models that a run would average wrongly are refused: sharded ones, and those that something else averages already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no Gloo", allow_module_level=True)

import grawa  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402


@pytest.fixture(autouse=True)
def alone_in_a_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    import grawa.torch_run as torch_run

    if torch_run._joined is not None and (run := torch_run._joined()) is not None:
        run.leave()
    dist.destroy_process_group()


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))


def fsdp(module: Any, **options: Any) -> Any:
    return FSDP(module, device_id=torch.device("cpu"), **options)


def join(model: Any, **options: Any) -> Any:
    return grawa.join(model, torch.optim.SGD(model.parameters(), lr=0.1), "mean:period=2", budget="10step", batch=1, examples=8, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fsdp(net()),
        lambda: fsdp(net(), use_orig_params=True),
        lambda: torch.nn.Sequential(fsdp(net()), torch.nn.Linear(2, 2)),
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(fsdp(net(), use_orig_params=True))),
        lambda: fsdp(net(), use_orig_params=True).module,
        lambda: fsdp(net()).module,
    ],
    ids=["whole", "original", "part", "deep", "inside-original", "inside"],
)
@pytest.mark.parametrize("comm", ["grawa", "torch"])
def test_fsdp(make: Any, comm: str) -> None:
    with pytest.raises(TypeError, match="FSDP"):
        join(make(), comm=comm)


@pytest.mark.parametrize("make", [lambda: DDP(net()), lambda: torch.nn.Sequential(DDP(net())), lambda: torch.compile(DDP(net()), backend="eager")])
@pytest.mark.parametrize("comm", ["grawa", "torch"])
def test_ddp(make: Any, comm: str) -> None:
    with pytest.raises(TypeError, match="DistributedDataParallel, which averages gradients at every step"):
        join(make(), comm=comm)


@pytest.mark.parametrize("wraps_first", [True, False])
def test_the_plain_model_is_joined_and_ddp_trains_it(wraps_first: bool) -> None:
    model = net()
    wrapped = DDP(model) if wraps_first else None
    run = join(model)
    run.start()
    wrapped = wrapped or DDP(model)
    wrapped(torch.ones(1, 4)).sum().backward()
    with pytest.raises(RuntimeError, match="inside a wrapper, which trains it too: it is wrapped in DistributedDataParallel"):
        run.optimizer.step()


def test_a_wrapper_of_another_model_or_one_that_is_gone() -> None:
    other = DDP(net())
    model = net()
    wrapped = DDP(model)
    wrapped.itself = [wrapped]  # Only the collector finds that it is gone.
    del wrapped
    run = join(model)
    run.start()
    model(torch.ones(1, 4)).sum().backward()
    run.optimizer.step()
    assert run.progress.steps == 1 and other is not None


def test_replicas_inside_one_process_are_fine() -> None:
    run = join(torch.nn.DataParallel(net()))
    run.start()
    run.model(torch.ones(1, 4)).sum().backward()
    run.optimizer.step()
    assert run.progress.steps == 1


def test_a_model_without_forward() -> None:
    parts = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)])
    with pytest.raises(TypeError, match="a ModuleList has no forward, which batch norm's recalibration calls: give buffers='average'"):
        join(parts)
    for buffers in ("average", "keep"):
        join(parts, buffers=buffers).leave()
    join(torch.nn.ModuleList([torch.nn.Linear(2, 2)])).leave()
