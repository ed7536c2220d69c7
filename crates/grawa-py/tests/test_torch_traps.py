"""What PyTorch does around a step, and what a run makes of it: one worker alone, with norms that are compared with the true ones."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import grawa  # noqa: E402
from grawa.shared_parameters import SharedParameters  # noqa: E402

LOCAL = "local-lgrawa:period=4"


@pytest.fixture(autouse=True)
def left() -> Iterator[None]:
    yield
    import grawa.torch_run as torch_run

    if torch_run._joined is not None and (run := torch_run._joined()) is not None:
        run.leave()


def net() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def batch() -> tuple[Any, Any]:
    torch.manual_seed(2)
    return torch.randn(16, 4), torch.randint(2, (16,))


def loss_of(model: Any) -> Any:
    x, y = batch()
    return torch.nn.functional.cross_entropy(model(x).float(), y)


def join(model: Any, optimizer: Any, method: str = LOCAL, **options: Any) -> Any:
    run = grawa.join(model, optimizer, method, budget="1000step", batch=16, examples=160, **options)
    run.start()
    return run


class noted:
    """The norms that the session is given from now on. They are looked at after each step, before a round takes them."""

    def __init__(self, run: Any) -> None:
        self.found: list[list[float]] = []
        hand_over = run._hand_over_steps
        self._run = run

        def record() -> None:
            self.found += [norms.tolist() for _, norms in run._steps]
            hand_over()

        run._hand_over_steps = record

    def all(self) -> list[list[float]]:
        return self.found + [norms.tolist() for _, norms in self._run._steps]

    def __getitem__(self, at: int) -> list[float]:
        return self.all()[at]

    def __len__(self) -> int:
        return len(self.all())


def true_norms(model: Any) -> list[float]:
    model = copy.deepcopy(model)
    gradients = torch.autograd.grad(loss_of(model), list(model.parameters()))
    return [float(g.norm()) for g in gradients]


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_nesterov_writes_over_gradients(options: dict[str, Any]) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, **options)
    found = noted(join(model, optimizer))
    for _ in range(3):
        expected = true_norms(model)
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        assert found[-1] == pytest.approx(expected, rel=1e-5)


def test_closures() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = join(model, optimizer)
    found = noted(run)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for call in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure)):
        expected, loss = true_norms(model), float(loss_of(model))
        assert float(call()) == pytest.approx(loss)
        assert found[-1] == pytest.approx(expected, rel=1e-5)


def test_lbfgs_counts_one_step() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    run = join(model, optimizer)
    found = noted(run)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    expected = true_norms(model)
    optimizer.step(closure)
    assert len(found) == 1 and found[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler(fused: bool) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = join(model, optimizer)
    found = noted(run)
    expected = true_norms(model)
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert found[-1] == pytest.approx(expected, rel=1e-4)
    # A step that overflows is skipped, and does not count.
    steps = run.progress.steps
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    next(model.parameters()).grad.fill_(math.inf)
    scaler.step(optimizer)
    scaler.update()
    assert run.progress.steps == steps and len(found) == 1


def test_parameters_are_written_in_place() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    addresses = [p.data_ptr() for p in model.parameters()]
    run = join(model, optimizer, "mean:period=2,pull=1")
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert run.progress.steps == 6 and run.last_round["round"] == 3
    assert [p.data_ptr() for p in model.parameters()] == addresses
    # Not views of one long vector: saving one writes one.
    file = io.BytesIO()
    torch.save(model[0].bias, file)
    assert len(file.getvalue()) < 4000


def test_autograd_sees_what_a_round_writes() -> None:
    """A round writes to the addresses of the parameters; autograd must not go on with tensors that it saved before."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = join(model, optimizer, "mean:period=1,pull=1,prox=0")
    versions, loss = [p._version for p in model.parameters()], loss_of(model)
    # Without gradients the optimizer writes nothing.
    optimizer.step()
    assert run.last_round["round"] == 1
    assert all(p._version > before for p, before in zip(model.parameters(), versions))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("change", [lambda m: m.to(torch.bfloat16), lambda m: m.to(memory_format=torch.channels_last)])
def test_parameters_that_are_copied_by_address(change: Any) -> None:
    """Others than contiguous 32-bit floats in main memory are copied by PyTorch, also if they became so after the run began."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.Flatten(), torch.nn.Linear(20, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = join(model, optimizer, "mean:period=1,pull=1,prox=0")
    assert [size for _, size in run._shared.near()] == [p.numel() for p in model.parameters()]
    change(model)
    assert run._shared.near() is None
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert run.last_round["round"] == 1 and all(map(torch.equal, model.parameters(), before))
    model[2].weight.data = torch.zeros(1, 1)
    with pytest.raises(RuntimeError, match=r"the parameter 2.weight was removed or resized"):
        optimizer.step()


def test_storage_that_is_gone() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = join(model, optimizer, "mean:period=1,pull=1,prox=0")
    shared, session = run._shared, run.session
    session.step_unmeasured(0.1)
    session.measured([1.0])
    model[0].weight.data.untyped_storage().resize_(8)
    with pytest.raises(ValueError, match="storage has 8 bytes, too few for 32 numbers"):
        session._round(shared.near())


def test_storage_that_moves_during_a_round() -> None:
    """The result goes to where the parameters are when the round is over, or nowhere."""
    for size, fits in ((128, True), (8, False)):
        model = net()
        run = join(model, torch.optim.SGD(model.parameters(), lr=0.1), "mean:period=1,pull=1,prox=0")
        before, session = model[0].weight.detach().clone(), run.session
        session.step_unmeasured(0.1)
        session.measured([1.0])

        def move() -> None:
            weight = model[0].weight.data
            weight.untyped_storage().resize_(4096)
            weight.fill_(7)
            weight.untyped_storage().resize_(size)

        if fits:
            assert session._round(run._shared.near(), meanwhile=move)
            assert torch.equal(model[0].weight, before)
        else:
            with pytest.raises(grawa.GrawaError, match="moved, resized or replaced while a round was held"):
                session._round(run._shared.near(), meanwhile=move)
        run.leave()


def test_a_round_alone_changes_nothing() -> None:
    """With one worker the mean is the worker itself: training with and without a run is the same, bit for bit."""
    models = net(), net()
    for model, joins in zip(models, (True, False)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        if joins:
            join(model, optimizer, "mean:period=2,pull=1,prox=0")
        for _ in range(8):
            optimizer.zero_grad()
            loss_of(model).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
    for mine, plain in zip(models[0].parameters(), models[1].parameters()):
        assert torch.equal(mine, plain)


def test_clipping_is_seen() -> None:
    """Scores are of what the optimizer sees."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = noted(join(model, optimizer))
    loss_of(model).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    assert math.hypot(*found[-1]) == pytest.approx(0.01, rel=1e-3)


def test_schedulers_by_the_clock() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = grawa.join(model, optimizer, "mean:period=4", budget="8step", batch=16, examples=160)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1 - run.progress.share)
    run.start()
    rates = []
    while not run.is_over:
        rates.append(optimizer.param_groups[0]["lr"])
        loss_of(model).backward()
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([1 - n / 8 for n in range(8)])


def test_compiled_models_have_the_same_names() -> None:
    model = net()
    compiled = torch.compile(model, backend="eager")
    assert SharedParameters(compiled).tensors == SharedParameters(model).tensors
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    run = join(compiled, optimizer, "mean:period=2,pull=1")
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(compiled).backward()
        optimizer.step()
    assert run.last_round["round"] == 2


def test_frozen_and_tied_parameters() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
            self.outer = torch.nn.Linear(4, 4)
            self.outer.weight = self.inner.weight
            self.frozen = torch.nn.Linear(4, 4)
            self.frozen.requires_grad_(False)

    shared = SharedParameters(Tied())
    assert [name for name, _ in shared.tensors] == ["inner.weight", "inner.bias", "outer.bias"]
    assert shared.length == 24


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_travel_as_f32(dtype: Any) -> None:
    model = net().to(dtype)
    before = copy.deepcopy(model.state_dict())
    shared = SharedParameters(model)
    flat = shared.gather().clone()
    assert flat.dtype == torch.float32
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    shared.scatter(flat)
    for name, value in model.state_dict().items():
        assert value.dtype == dtype
        assert torch.equal(value.float(), before[name].float())


def test_channels_last_and_other_strides() -> None:
    model = torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
    shared = SharedParameters(model)
    plain = torch.cat([p.detach().contiguous().reshape(-1) for p in model.parameters()])
    assert torch.equal(shared.gather(), plain)
    strides = model.weight.stride()
    shared.scatter(plain * 2)
    assert model.weight.stride() == strides
    assert torch.equal(model.weight.detach().contiguous().reshape(-1), plain[: model.weight.numel()] * 2)


def test_integer_buffers_stay() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = join(model, optimizer, "mean:period=2,pull=1", buffers="keep")
    for _ in range(4):
        loss_of(model).backward()
        optimizer.step()
    assert model[1].num_batches_tracked.item() == 4
    with run.averaged():
        assert model[1].num_batches_tracked.item() == 4


def test_what_cannot_be_shared() -> None:
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="nothing to share"):
        grawa.join(net().requires_grad_(False), optimizer)
    with pytest.raises(TypeError, match="0.weight is on the meta device"):
        grawa.join(net().to("meta"), optimizer)
    with pytest.raises(TypeError, match="0.weight is of type torch.complex64"):
        grawa.join(net().to(torch.complex64), optimizer)
    with pytest.raises(ValueError, match="choose one of recalibrate"):
        grawa.join(net(), optimizer, buffers="mean")


def test_a_parameter_that_is_added() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = join(model, optimizer, "mean:period=2,pull=1")
    model.append(torch.nn.Linear(2, 2))
    loss_of(model).backward()
    optimizer.step()
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match=r"the parameter 3.weight was added"):
        optimizer.step()
    run.leave()


def test_parameters_that_are_removed_resized_or_frozen() -> None:
    model = net()
    shared = SharedParameters(model)
    shared.check()
    weight = model[0].weight
    # A frozen one stays shared, and nothing depends on the order of modules.
    weight.requires_grad_(False)
    shared.check()
    weight.requires_grad_(True)
    kept = weight.data
    weight.data = torch.zeros(1, 1)
    with pytest.raises(RuntimeError, match=r"the parameter 0.weight was removed or resized"):
        shared.check()
    weight.data = kept
    shared.check()
    del model[0]
    with pytest.raises(RuntimeError, match=r"the parameter 0.weight was removed or resized"):
        shared.check()


def test_a_second_join() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = grawa.join(model, optimizer)
    with pytest.raises(RuntimeError, match="joined a run already"):
        grawa.join(model, optimizer)
    first.leave()
    grawa.join(model, optimizer).leave()


def test_what_is_not_known_yet() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = grawa.join(model, optimizer)
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match="the run has not begun"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="use run.epochs"):
        run.start()
    next(run.epochs(2))
    with pytest.raises(RuntimeError, match="use run.loader"):
        run.start()


def test_methods_that_need_more() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = join(model, optimizer, "lsgd:period=2")
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match="call run.loss"):
        optimizer.step()
    run.leave()
    run = join(model, optimizer, "lgrawa:period=1")
    with pytest.raises(RuntimeError, match="give grawa.join a score="):
        optimizer.step()
    run.leave()


def test_scores_leave_gradients_and_statistics_alone() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seeds = []

    def score(draw: Any) -> Any:
        seeds.append(draw.initial_seed())
        return loss_of(model) * 16

    run = join(model, optimizer, "lgrawa:period=1", score=score)
    loss_of(model).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    tracked = model[1].num_batches_tracked.item()
    optimizer.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients))
    assert model[1].num_batches_tracked.item() == tracked and len(seeds) == 1
    assert run.last_round["round"] == 1


def test_recalibrated_statistics() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    from grawa.buffers import recalibrate

    batches = [(torch.randn(64, 4) + 1, None) for _ in range(20)]
    momentum = model[1].momentum
    assert recalibrate(model, batches) == 20
    outputs = torch.stack([model[0](x).detach() for x, _ in batches])
    assert torch.allclose(model[1].running_mean, outputs.mean((0, 1)), atol=1e-5)
    assert torch.allclose(model[1].running_var, outputs.var(1).mean(0), atol=1e-4)
    assert model[1].momentum == momentum and model.training and model[2].training
