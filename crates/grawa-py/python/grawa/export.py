"""A PyTorch model as a network for grawa's own engine.

``export`` traces a model with ``torch.fx`` and writes ``net.json``, which ``model.graph = "net.json"`` in a recipe
trains, and ``net.safetensors`` with its weights, which training starts from. Names of tensors, batch norm and dropout
stay as they are in PyTorch. What grawa's engine does not have is refused, with the operation and its place.

PyTorch is imported when ``export`` is called, not before.
"""

from __future__ import annotations

import json
import operator
import os
import struct
from math import prod
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    import torch

__all__ = ["ExportError", "export"]

VERSION = 1
INPUT = "input"


class ExportError(ValueError):
    """The model has an operation that grawa's engine does not have; the message says which and where."""


def export(
    model: torch.nn.Module,
    example: torch.Tensor,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    weights: bool = True,
) -> None:
    """Writes a model as ``path``, a ``.json`` file, and its weights beside it, as ``.safetensors``.

    ``example`` is a batch of images, of shape (batch, channels, height, width): the engine trains on images of that
    shape. The model is exported as it is trained, also if it is in evaluation mode now; it is not changed. ``name`` is
    the network's name in grawa's output, by default the model's class. Without ``weights`` training starts from
    PyTorch's default initialisation, drawn from the seed of the recipe. Existing files are replaced.

    Raises ``ExportError`` for what grawa's engine does not have.

    >>> grawa.export(torchvision.models.resnet18(num_classes=10), torch.zeros(1, 3, 32, 32), "net.json")
    """
    path = os.fspath(path)
    stem, suffix = os.path.splitext(path)
    if suffix != ".json":
        raise ValueError(f"the file is called {path!r}; expected a name that ends in .json")
    if example.dim() != 4:
        found = tuple(example.shape)
        raise ValueError(f"the example has shape {found}; expected (batch, channels, height, width)")
    traced = _trace(model, example)
    walk = _Walk(model, traced)
    walk.run()
    _compare(model, traced, example)
    network = {"version": VERSION, "name": name or type(model).__name__, "input": list(example.shape[1:])}
    lines = ",\n".join(json.dumps(node) for node in walk.nodes)
    head = json.dumps(network)[:-1]
    _write(path, f'{head}, "nodes": [\n{lines}\n]}}\n'.encode())
    if weights:
        content = _safetensors(walk.tensors)
        # Loaded by its path, as the oracle does, this file has no native part, which computes the checksum.
        if __package__:
            from .checksum import with_checksum

            content = with_checksum(content)
        _write(f"{stem}.safetensors", content)


def _trace(model: torch.nn.Module, example: torch.Tensor) -> torch.fx.GraphModule:
    """The model's operations as in training, each with the shape of its result."""
    import torch
    from torch.fx.passes.shape_prop import ShapeProp

    tracer = torch.fx.Tracer()
    tracer.record_stack_traces = True
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        try:
            traced = torch.fx.GraphModule(model, tracer.trace(model))
        except Exception as error:
            raise ExportError(f"torch.fx cannot trace {type(model).__name__}: {error}") from error
        # Evaluation changes no running statistics.
        model.eval()
        with torch.no_grad(), torch.random.fork_rng():
            try:
                ShapeProp(traced).propagate(example.clone())
            except Exception as error:
                raise ExportError(f"{type(model).__name__} does not run on the example: {error}") from error
    finally:
        for module, mode in modes:
            module.training = mode
    return traced


def _compare(model: torch.nn.Module, traced: torch.fx.GraphModule, example: torch.Tensor) -> None:
    """Checks that tracing lost nothing: torch.fx takes ``x += y`` for ``x = x + y``, and x may have another name."""
    import torch

    modes = [(module, module.training) for module in model.modules()]
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    results = []
    try:
        with torch.no_grad(), torch.random.fork_rng():
            for run in (model, traced):
                run.train()
                # The same images and the same dropout; a batch norm needs two images.
                torch.manual_seed(0)
                images = torch.randn(max(2, len(example)), *example.shape[1:], dtype=example.dtype)
                results.append(run(images.to(example.device)))
                for buffer, values in before:
                    buffer.copy_(values)
    finally:
        for module, mode in modes:
            module.training = mode
    left, right = results
    if not (left.is_meta or torch.allclose(left, right, rtol=1e-3, atol=1e-5, equal_nan=True)):
        raise ExportError(
            f"{type(model).__name__}: its operations as torch.fx traces them give other results than the model; "
            "something is overwritten in place and read under another name, or computed from values; write x = x + y "
            "instead of x += y"
        )


class _Walk:
    """Translates the operations of a traced model one by one."""

    def __init__(self, model: torch.nn.Module, traced: torch.fx.GraphModule) -> None:
        import torch
        import torch.nn.functional as F

        self.model, self.graph = model, traced.graph
        self.modules = dict(model.named_modules())
        self.nodes: list[dict[str, Any]] = []
        self.tensors: dict[str, torch.Tensor] = {}
        # The names of the nodes that hold an operation's result.
        self.names: dict[torch.fx.Node, str] = {}
        # Results that are vectors to the engine: it has no images any more after a global average or linear layer.
        self.vectors: set[str] = set()
        # What memory a result is in, and how often that had been written when the result was made.
        self.memory: dict[torch.fx.Node, tuple[torch.fx.Node, int]] = {}
        self.writes: dict[torch.fx.Node, int] = {}
        self.learnt = {name for name, module in self.modules.items() if any(True for _ in module.parameters())}
        self.owners: dict[int, str] = {}
        self.functions: dict[Any, Callable[..., None]] = {
            operator.add: self.add,
            torch.add: self.add,
            operator.iadd: self.add_in_place,
            F.relu: self.relu,
            torch.relu: self.relu,
            F.relu_: self.relu_in_place,
            torch.relu_: self.relu_in_place,
            F.max_pool2d: self.max_pool,
            torch.max_pool2d: self.max_pool,
            F.avg_pool2d: self.average_pool,
            F.adaptive_avg_pool2d: self.adaptive_average,
            torch.mean: self.mean,
            F.dropout: self.dropout,
            torch.cat: self.cat,
            torch.concat: self.cat,
            torch.flatten: self.reshape,
            torch.reshape: self.reshape,
            torch.squeeze: self.reshape,
            operator.getitem: self.subsample,
            F.pad: self.pad,
        }
        self.methods: dict[str, Callable[..., None]] = {
            "add": self.add,
            "add_": self.add_in_place,
            "relu": self.relu,
            "relu_": self.relu_in_place,
            "mean": self.mean,
            "flatten": self.reshape,
            "view": self.reshape,
            "reshape": self.reshape,
            "squeeze": self.reshape,
            "contiguous": self.reshape,
        }
        nn = torch.nn
        self.layers: dict[type, Callable[[torch.fx.Node, Any, torch.fx.Node], None]] = {
            nn.Conv2d: self.conv,
            nn.BatchNorm2d: self.batch_norm,
            nn.GroupNorm: self.group_norm,
            nn.Linear: self.linear,
            nn.ReLU: lambda node, m, x: self.relu(node, x, m.inplace),
            nn.MaxPool2d: lambda node, m, x: self.max_pool(
                node, x, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices
            ),
            nn.AvgPool2d: lambda node, m, x: self.average_pool(
                node, x, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override
            ),
            nn.AdaptiveAvgPool2d: lambda node, m, x: self.adaptive_average(node, x, m.output_size),
            nn.Dropout: lambda node, m, x: self.dropout(node, x, m.p, True, m.inplace),
            nn.Flatten: lambda node, m, x: self.reshape(node, x),
            nn.Identity: lambda node, m, x: self.same(node, x),
        }

    def run(self) -> None:
        """Translates all operations that the output depends on."""
        (output,) = [node for node in self.graph.nodes if node.op == "output"]
        live, todo = set(), [output]
        while todo:
            node = todo.pop()
            if node not in live:
                live.add(node)
                todo += node.all_input_nodes
        for node in self.graph.nodes:
            if node.op == "placeholder":
                if node in live and self.names:
                    self.refuse(node, "the model takes several inputs", "the engine feeds it one batch of images")
                if node in live:
                    self.names[node] = INPUT
                    self.memory[node] = (node, 0)
            elif node.op == "output":
                self.output(node)
            elif node in live or self.is_in_place(node):
                self.call(node)

    def call(self, node: torch.fx.Node) -> None:
        if node.op == "get_attr":
            self.refuse(node, f"the tensor {node.target} is used directly", "the engine has weights in layers only")
        if not any(x in self.names for x in node.all_input_nodes):
            return  # Arithmetic with sizes.
        if node.op == "call_module":
            module = self.modules[node.target]
            layer = self.layers.get(type(module))
            if layer is None:
                self.refuse(node, f"{type(module).__name__}", _COVERED)
            if len(node.args) != 1 or node.kwargs:
                self.refuse(node, f"{type(module).__name__} of {len(node.args)} arguments", "expected one")
            return layer(node, module, node.args[0])
        if node.target == "size" or node.target == "dim" or node.target is getattr:
            return
        known = self.functions if node.op == "call_function" else self.methods
        function = known.get(node.target)
        if function is None:
            self.refuse(node, _name(node), _COVERED)
        try:
            function(node, *node.args, **node.kwargs)
        except TypeError as error:
            self.refuse(node, f"{_name(node)}: {error}", "grawa.export does not know this way to call it")

    # What the layers and functions of PyTorch are on the engine. Arguments have PyTorch's names.

    def conv(self, node: torch.fx.Node, m: torch.nn.Conv2d, x: torch.fx.Node) -> None:
        if m.groups != 1:
            self.refuse(node, f"groups={m.groups}", "grawa's engine has convolutions with groups=1")
        if _pair(m.dilation) != (1, 1):
            self.refuse(node, f"dilation={m.dilation}", "grawa's engine has convolutions with dilation=1")
        if m.padding_mode != "zeros":
            self.refuse(node, f"padding_mode={m.padding_mode!r}", "grawa's engine pads with zeros")
        kernel, stride = self.square(node, "kernel_size", m.kernel_size), self.square(node, "stride", m.stride)
        if m.padding == "same" and kernel % 2 == 0:
            self.refuse(node, f"padding='same' with kernel_size={kernel}", "the engine pads both sides alike")
        padding = {"same": kernel // 2, "valid": 0}[m.padding] if isinstance(m.padding, str) else m.padding
        pad, bias = self.square(node, "padding", padding), m.bias is not None
        conv = {"out": m.out_channels, "kernel": kernel, "stride": stride, "pad": pad, "bias": bias}
        self.learn(node, m, x, {"conv": conv})

    def batch_norm(self, node: torch.fx.Node, m: torch.nn.BatchNorm2d, x: torch.fx.Node) -> None:
        if not m.affine or not m.track_running_stats or m.momentum != 0.1:
            found = f"affine={m.affine}, track_running_stats={m.track_running_stats}, momentum={m.momentum}"
            self.refuse(node, found, "grawa's engine has batch norm with both, and momentum=0.1")
        self.learn(node, m, x, {"batch_norm": {"epsilon": m.eps}})

    def group_norm(self, node: torch.fx.Node, m: torch.nn.GroupNorm, x: torch.fx.Node) -> None:
        if not m.affine or m.eps != 1e-5:
            self.refuse(node, f"affine={m.affine}, eps={m.eps}", "grawa's engine has affine group norm with eps=1e-05")
        self.learn(node, m, x, {"group_norm": {"groups": m.num_groups}})

    def linear(self, node: torch.fx.Node, m: torch.nn.Linear, x: torch.fx.Node) -> None:
        if m.bias is None:
            self.refuse(node, "bias=False", "grawa's engine has linear layers with a bias")
        if len(self.shape(x)) != 2:
            self.refuse(node, f"a linear layer on shape {self.shape(x)}", "flatten it first")
        self.learn(node, m, x, {"linear": {"out": m.out_features}})

    def relu(self, node: torch.fx.Node, input: torch.fx.Node, inplace: bool = False) -> None:
        self.emit(node, "relu", [input], writes=inplace)

    def relu_in_place(self, node: torch.fx.Node, input: torch.fx.Node) -> None:
        self.relu(node, input, inplace=True)

    def add(self, node: torch.fx.Node, input: Any, other: Any, *, alpha: float = 1, writes: bool = False) -> None:
        for x in (input, other):
            if x not in self.names or self.shape(x) != self.shape(node):
                found = tuple(self.shape(x)) if x in self.names else x
                self.refuse(node, f"an addition of {found}", "the engine adds two results of one shape")
        if alpha != 1:
            self.refuse(node, f"alpha={alpha}", "the engine adds with alpha=1")
        self.emit(node, "add", [input, other], writes=writes)

    def add_in_place(self, node: torch.fx.Node, input: Any, other: Any, *, alpha: float = 1) -> None:
        self.add(node, input, other, alpha=alpha, writes=True)

    def cat(self, node: torch.fx.Node, tensors: Any, dim: int = 0) -> None:
        if dim not in (1, 1 - len(self.shape(node))) or len(self.shape(node)) != 4:
            self.refuse(node, f"cat along dim={dim} to {self.shape(node)}", "the engine joins the channels of images")
        self.emit(node, "concat", list(tensors))

    def max_pool(
        self,
        node: torch.fx.Node,
        input: torch.fx.Node,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> None:
        if _pair(dilation) != (1, 1) or return_indices:
            self.refuse(node, f"dilation={dilation}, return_indices={return_indices}", "the engine pools without")
        self.pool(node, "max_pool", input, kernel_size, stride, padding, ceil_mode)

    def average_pool(
        self,
        node: torch.fx.Node,
        input: torch.fx.Node,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        if _pair(padding) != (0, 0) and count_include_pad or divisor_override:
            found = f"count_include_pad={count_include_pad}, divisor_override={divisor_override}"
            self.refuse(node, found, "the engine's means leave padding out; set count_include_pad=False")
        self.pool(node, "average_pool", input, kernel_size, stride, padding, ceil_mode)

    def pool(
        self, node: torch.fx.Node, op: str, x: torch.fx.Node, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool
    ) -> None:
        kernel = self.square(node, "kernel_size", kernel_size)
        stride = kernel if stride is None or stride == [] else self.square(node, "stride", stride)
        pad = self.square(node, "padding", padding)
        self.emit(node, {op: {"kernel": kernel, "stride": stride, "pad": pad, "ceil": bool(ceil_mode)}}, [x])

    def adaptive_average(self, node: torch.fx.Node, input: torch.fx.Node, output_size: Any) -> None:
        (height, width), (to_height, to_width) = self.shape(input)[2:], self.shape(node)[2:]
        if (to_height, to_width) == (1, 1):
            return self.emit(node, "global_average", [input])
        if (to_height, to_width) == (height, width):
            return self.same(node, input)
        side = height // to_height
        if side < 1 or (side * to_height, side * to_width) != (height, width):
            found = f"adaptive average pooling from {height}×{width} to {to_height}×{to_width}"
            why = "the engine has windows of one size: export with larger images, or pool to 1×1"
            self.refuse(node, found, why)
        self.emit(node, {"average_pool": {"kernel": side, "stride": side, "pad": 0, "ceil": False}}, [input])

    def mean(self, node: torch.fx.Node, input: torch.fx.Node, dim: Any = None, keepdim: bool = False) -> None:
        sides = len(self.shape(input))
        if sides != 4 or {d % sides for d in (dim if isinstance(dim, (list, tuple)) else [dim or 0])} != {2, 3}:
            self.refuse(node, f"a mean over dim={dim}", "the engine has means of whole channels, dim=(2, 3)")
        self.emit(node, "global_average", [input])

    def dropout(
        self, node: torch.fx.Node, input: torch.fx.Node, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> None:
        if not training or p == 0:
            return self.same(node, input)
        if p >= 1:
            self.refuse(node, f"dropout of p={p}", "the engine drops with a probability below 1")
        self.emit(node, {"dropout": {"probability": p}}, [input], writes=inplace)

    def reshape(self, node: torch.fx.Node, input: torch.fx.Node, *_: Any, **__: Any) -> None:
        found, to = self.shape(input), self.shape(node)
        if to != found and to != (found[0], prod(found[1:])):
            self.refuse(node, f"{_name(node)} from {found} to {to}", "the engine only flattens whole images")
        self.same(node, input)

    def subsample(self, node: torch.fx.Node, input: torch.fx.Node, index: Any) -> None:
        parts = list(index) if isinstance(index, tuple) else [index]
        steps = [part.step or 1 for part in parts if isinstance(part, slice) and part.start is part.stop is None]
        if len(steps) != 4 or len(parts) != 4 or steps[:2] != [1, 1] or steps[2] != steps[3] or len(self.shape(node)) != 4:
            self.refuse(node, f"the index {index}", "the engine has [:, :, ::stride, ::stride]")
        self.emit(node, {"subsample": {"stride": steps[2]}}, [input])

    def pad(self, node: torch.fx.Node, input: torch.fx.Node, pad: Any, mode: str = "constant", value: Any = None) -> None:
        pad = list(pad) + [0] * (6 - len(pad))
        if mode != "constant" or value or any(pad[:4]) or len(pad) > 6 or min(pad) < 0 or len(self.shape(input)) != 4:
            self.refuse(node, f"pad={pad}, mode={mode!r}, value={value}", "the engine adds channels of zeros")
        self.emit(node, {"pad_channels": {"before": pad[4], "after": pad[5]}}, [input])

    def output(self, node: torch.fx.Node) -> None:
        (x,) = node.args
        if x not in self.names or len(self.shape(x)) != 2:
            found = self.shape(x) if x in self.names else f"{x}"
            self.refuse(node, f"the result is {found}", "expected one tensor of logits, (batch, classes)")
        last = self.read(node, x)
        if last == INPUT or last != self.nodes[-1]["name"]:
            self.refuse(node, f"the result is that of {last}", "expected that of the last operation")
        if last not in self.vectors:
            # Images of one pixel; the engine's logits are vectors. It refuses larger images.
            self.nodes.append({"name": self.unique(node.name), "inputs": [last], "op": "global_average"})

    # How results are named, found and checked.

    def learn(self, node: torch.fx.Node, module: torch.nn.Module, x: torch.fx.Node, op: Any) -> None:
        """Adds a layer with weights, under its module's name."""
        name = str(node.target)
        if f"{name}.weight" in self.tensors:
            self.refuse(node, "the layer is called twice", "grawa's engine has no shared weights")
        for own, tensor in module.named_parameters():
            owner = self.owners.setdefault(id(tensor), f"{name}.{own}")
            if owner != f"{name}.{own}":
                self.refuse(node, f"{own} is that of {owner}", "grawa's engine has no shared weights")
            if not tensor.requires_grad:
                self.refuse(node, f"{own} is frozen", "grawa's engine trains every weight; set requires_grad=True")
        if name == INPUT:
            self.refuse(node, f"the layer is called {INPUT!r}", "that is the name of the images; rename it")
        for own, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                self.tensors[f"{name}.{own}"] = tensor
        self.emit(node, op, [x], name)

    def emit(self, node: torch.fx.Node, op: Any, inputs: list[Any], name: str = "", writes: bool = False) -> None:
        names = [self.read(node, x) for x in inputs]
        kind = op if isinstance(op, str) else next(iter(op))
        if kind not in _ON_VECTORS and any(x in self.vectors for x in names):
            found = f"{kind.replace('_', ' ')} of the result of a global average or linear layer"
            self.refuse(node, found, "grawa's engine has it for images only")
        name = name or self.unique(node.name)
        if kind in ("linear", "global_average") or any(x in self.vectors for x in names):
            self.vectors.add(name)
        self.nodes.append({"name": name, "inputs": names, "op": op})
        self.names[node] = name
        self.memory[node] = (node, 0)
        if writes:
            memory, _ = self.memory[inputs[0]]
            self.writes[memory] = self.writes.get(memory, 0) + 1
            self.memory[node] = (memory, self.writes[memory])

    def same(self, node: torch.fx.Node, x: torch.fx.Node) -> None:
        """The result is its input, in the same memory."""
        self.names[node], self.memory[node] = self.read(node, x), self.memory[x]

    def read(self, node: torch.fx.Node, x: Any) -> str:
        """The name of an operation's result, which must still be in its memory."""
        if x not in self.names:
            self.refuse(node, f"an input {x}", "the engine takes results of operations it has")
        memory, written = self.memory[x]
        if self.writes.get(memory, 0) != written:
            why = "the engine writes nothing in place; use inplace=False before it"
            self.refuse(node, f"it reads {x}, which was overwritten in place", why)
        return self.names[x]

    def is_in_place(self, node: torch.fx.Node) -> bool:
        """Whether an operation whose result is not used still changes another."""
        if node.op == "call_module":
            return getattr(self.modules[node.target], "inplace", False)
        return str(_name(node)).endswith("_") or node.target is operator.iadd or node.kwargs.get("inplace", False)

    def unique(self, name: str) -> str:
        while name in self.learnt or name == INPUT:
            name += "_"
        return name

    def shape(self, node: torch.fx.Node) -> tuple[int, ...]:
        found = node.meta.get("tensor_meta")
        if not hasattr(found, "shape"):
            self.refuse(node, f"{_name(node)} gives no single tensor", _COVERED)
        return tuple(found.shape)

    def square(self, node: torch.fx.Node, what: str, found: Any) -> int:
        height, width = _pair(found)
        if height != width:
            self.refuse(node, f"{what}={found}", f"grawa's engine has the same {what} for rows and columns")
        return height

    def refuse(self, node: torch.fx.Node, found: str, why: str) -> None:
        """Raises the error for an operation, with its place in the model and in its source."""
        if node.op == "call_module":
            place = str(node.target)
        else:
            inside = list(node.meta.get("nn_module_stack", {}).values())
            place = (inside[-1][0] if inside else "") or type(self.model).__name__
        raise ExportError(f"{place}: {found}; {why}{_source(node)}")


_COVERED = (
    "grawa's engine has Conv2d, BatchNorm2d, GroupNorm, ReLU, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, Linear, Dropout, "
    "Flatten, additions and concatenations; train this model with grawa.join"
)
# The operations that the engine has on vectors too.
_ON_VECTORS = ("linear", "relu", "add", "dropout", "group_norm")


def _pair(found: Any) -> tuple[Any, Any]:
    if isinstance(found, (tuple, list)):
        return (found[0], found[-1])
    return (found, found)


def _name(node: torch.fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


def _source(node: torch.fx.Node) -> str:
    """The line of the model that the operation stands in."""
    lines = [line.strip() for line in (node.stack_trace or "").splitlines()]
    frames = [at for at, line in enumerate(lines) if line.startswith("File ") and f"{os.sep}torch{os.sep}" not in line]
    if not frames:
        return ""
    at = frames[-1]
    code = f": {lines[at + 1]}" if at + 1 < len(lines) else ""
    file, line = lines[at].split(",")[:2]
    return f" ({os.path.basename(file.split(chr(34))[1])},{line}{code})"


def _safetensors(tensors: dict[str, torch.Tensor]) -> bytes:
    """The bytes of a safetensors file: the length of a JSON header, the header, the numbers."""
    header: dict[str, Any] = {}
    parts = []
    end = 0
    for name, tensor in tensors.items():
        kind, form = ("F32", "<f4") if tensor.is_floating_point() else ("I64", "<i8")
        part = tensor.detach().cpu().double().numpy().astype(form).tobytes()
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [end, end + len(part)]}
        end += len(part)
        parts.append(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def _write(path: str, content: bytes) -> None:
    """Writes a file as a whole or not at all."""
    aside = f"{path}.partial-{os.getpid()}"
    try:
        with open(aside, "wb") as file:
            file.write(content)
        os.replace(aside, path)
    except BaseException:
        if os.path.exists(aside):
            os.remove(aside)
        raise
