"""``grawa.export``: what it writes, and what it refuses and where. Numbers are compared by ``oracle/import_nets.py``."""

import importlib.util
import json
import pathlib
import struct
import subprocess

import pytest

from group import command

torch = pytest.importorskip("torch", reason="grawa.export needs PyTorch")
nn, F = torch.nn, torch.nn.functional

# By its path: the module needs nothing of the built package.
FILE = pathlib.Path(__file__).parent.parent / "python/grawa/export.py"
spec = importlib.util.spec_from_file_location("grawa_export", FILE)
export = importlib.util.module_from_spec(spec)
spec.loader.exec_module(export)


class Model(nn.Module):
    """A convolution, then what a test wants, then a head."""

    def __init__(self, middle=lambda self, x: x, **layers):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.middle = middle
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = self.middle(self, self.conv(x))
        return self.fc(x.mean((2, 3)))


def written(model, tmp_path, side=6, **more):
    export.export(model, torch.zeros(2, 3, side, side), tmp_path / "net.json", **more)
    return json.loads((tmp_path / "net.json").read_text())


def refused(model, tmp_path, side=6):
    with pytest.raises(export.ExportError) as error:
        written(model, tmp_path, side)
    assert list(tmp_path.iterdir()) == []
    return str(error.value)


def test_files(tmp_path):
    model = Model(lambda self, x: F.relu(self.bn(x)), bn=nn.BatchNorm2d(4)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    net = written(model, tmp_path, name="mine")
    assert [net["version"], net["name"], net["input"]] == [1, "mine", [3, 6, 6]]
    assert [node["name"] for node in net["nodes"]] == ["conv", "bn", "relu", "mean", "fc"]
    assert net["nodes"][1] == {"name": "bn", "inputs": ["conv"], "op": {"batch_norm": {"epsilon": 1e-05}}}
    # The model is as it was.
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    # The weights, read by hand.
    content = (tmp_path / "net.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    floats = {name for name, tensor in before.items() if tensor.is_floating_point()}
    assert set(header) == floats and length % 8 == 0
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        found = torch.frombuffer(bytearray(content[8 + length + start : 8 + length + end]), dtype=torch.float32)
        assert torch.equal(found.reshape(entry["shape"]), before[name])


def test_a_flipped_bit_is_refused(tmp_path):
    """In the weights that are exported, and in a model that a run has saved."""
    grawa = pytest.importorskip("grawa")
    pytest.importorskip("safetensors")
    model = Model()
    model.conv, model.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 10)
    file = tmp_path / "net.safetensors"
    grawa.export(model, torch.zeros(2, 1, 8, 8), tmp_path / "net.json")
    exported = file.read_bytes()
    with grawa.join(model, torch.optim.SGD(model.parameters(), lr=0.1), budget="8step", batch=1, examples=8) as run:
        run.save(file)
    saved = file.read_bytes()
    for number, content in enumerate([exported, saved]):
        for at, is_refused in [(None, False), (-1, True), (-300, True)]:
            changed = bytearray(content)
            if at is not None:
                changed[at] ^= 1
            file.write_bytes(changed)
            words = ["train", "--set", "model.graph=net.json", "--budget", "1step", "--out", f"run{number}{at}"]
            result = subprocess.run([command(), *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert (result.returncode != 0) == is_refused, result.stdout + result.stderr
            assert ("net.safetensors is damaged" in result.stderr) == is_refused, result.stderr


def test_weights_are_optional_and_names_checked(tmp_path):
    written(Model(), tmp_path, weights=False)
    assert [path.name for path in tmp_path.iterdir()] == ["net.json"]
    with pytest.raises(ValueError, match="ends in .json"):
        export.export(Model(), torch.zeros(1, 3, 6, 6), tmp_path / "net.onnx")
    with pytest.raises(ValueError, match=r"has shape \(3, 6, 6\)"):
        export.export(Model(), torch.zeros(3, 6, 6), tmp_path / "net.json")


def test_a_model_that_does_not_run_says_so(tmp_path):
    text = refused(Model(lambda self, x: x[:, :2]), tmp_path)
    assert text.startswith("Model does not run on the example: "), text


def test_dropout_is_kept_in_any_mode(tmp_path):
    model = Model(lambda self, x: F.dropout(self.drop(x), 0.25, self.training), drop=nn.Dropout(0.5)).eval()
    ops = [node["op"] for node in written(model, tmp_path)["nodes"]]
    assert ops[1:3] == [{"dropout": {"probability": 0.5}}, {"dropout": {"probability": 0.25}}]


def test_what_does_nothing_is_left_out(tmp_path):
    def middle(self, x):
        self.unused(x)
        return self.same(self.pool(x)).contiguous()

    model = Model(middle, unused=nn.Conv2d(4, 4, 1), same=nn.Identity(), pool=nn.AdaptiveAvgPool2d(6))
    assert [node["name"] for node in written(model, tmp_path)["nodes"]] == ["conv", "mean", "fc"]


@pytest.mark.parametrize(
    ("middle", "layer", "words"),
    [
        (None, nn.Conv2d(4, 4, 3, groups=2), "layer: groups=2; grawa's engine has convolutions with groups=1"),
        (None, nn.Conv2d(4, 4, 3, dilation=2), "layer: dilation=(2, 2);"),
        (None, nn.Conv2d(4, 4, (1, 3)), "layer: kernel_size=(1, 3);"),
        (None, nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), "layer: padding_mode='reflect';"),
        (None, nn.Conv2d(4, 4, 2, padding="same"), "layer: padding='same' with kernel_size=2;"),
        (None, nn.SiLU(), "layer: SiLU; grawa's engine has Conv2d"),
        (None, nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU(), nn.GELU())), "layer.1.1: GELU;"),
        (None, nn.BatchNorm2d(4, momentum=None), "momentum=None; grawa's engine"),
        (None, nn.AvgPool2d(3, 1, 1), "layer: count_include_pad=True"),
        (None, nn.AdaptiveAvgPool2d(4), "layer: adaptive average pooling from 6×6 to 4×4;"),
        (None, nn.Conv2d(4, 4, 1).requires_grad_(False), "layer: weight is frozen;"),
        (lambda self, x: self.layer(self.layer(x)), nn.Conv2d(4, 4, 1), "layer: the layer is called twice;"),
        (lambda self, x: x * 2, None, "Model: mul; grawa's engine"),
        (lambda self, x: x + 1, None, "Model: an addition of 1;"),
        (lambda self, x: x + x.mean((2, 3), keepdim=True), None, "Model: an addition of (2, 4, 1, 1);"),
        (lambda self, x: x[:, :, :2], None, "Model: the index"),
        (lambda self, x: torch.cat(x.chunk(2, 1), 1), None, "Model: chunk;"),
        (lambda self, x: torch.sigmoid(x), None, "sigmoid; grawa's engine"),
        (lambda self, x: self.layer(F.adaptive_avg_pool2d(x, 1)), nn.Conv2d(4, 4, 1), "layer: conv of the result of a global"),
        (lambda self, x: x if x.sum() > 0 else -x, None, "torch.fx cannot trace Model:"),
    ],
)
def test_refused_with_operation_and_place(middle, layer, words, tmp_path):
    layers = {} if layer is None else {"layer": layer}
    text = refused(Model(middle or (lambda self, x: self.layer(x)), **layers), tmp_path)
    assert words in text, text
    if "cannot trace" not in text:
        assert "(test_export.py, line " in text, text


def test_shared_weights_are_refused(tmp_path):
    model = Model(lambda self, x: self.b(self.a(x)), a=nn.Conv2d(4, 4, 1), b=nn.Conv2d(4, 4, 1))
    model.b.weight = model.a.weight
    assert "b: weight is that of a.weight; grawa's engine has no shared weights" in refused(model, tmp_path)


def test_what_is_overwritten_in_place_is_not_read_as_if_it_were_not(tmp_path):
    def both(self, x):
        y = F.relu(x, inplace=True)
        return y + x

    def unused(self, x):
        F.relu_(x)
        return x

    def alias(self, x):
        y = self.same(x)
        x += x
        return x + y

    for middle in (both, unused, alias):
        assert "overwritten in place" in refused(Model(middle, same=nn.Identity()), tmp_path)
    # In a chain nothing else reads it.
    written(Model(lambda self, x: F.relu(self.bn(x), inplace=True), bn=nn.BatchNorm2d(4)), tmp_path)
