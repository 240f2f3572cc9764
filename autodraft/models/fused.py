"""Faster linear layers for stock models on a CPU, swapped in when a model is loaded.

The model's own code stays in charge; only its bfloat16 ``nn.Linear`` modules are replaced:

* Their weights lie in the blocked order that oneDNN multiplies in, so that no call reorders them.
* Linears that read the same tensor (query, key and value; gate and up) are one product, computed
  when the first of them is called.

In float32 neither was measured to win (docs/performance.md). Which linears belong together is
observed in a forward, not looked up: this module knows no model families.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from autodraft.models.memory import MappedFile

logger = logging.getLogger(__name__)

_PACKED_ROWS: Final = 32
"""Rows that the blocked order is laid out for; from 1 to 64 the hint makes no difference."""
_TOLERANCE: Final = 0.02
"""How far a product may lie from the stock one, relative to its largest element."""


class PackedLinear(nn.Module):
    """A linear layer whose bfloat16 weight lies in oneDNN's blocked order."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Pack a weight, [out, in]; it is not kept in its own order."""
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_ROWS)
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return ``states @ weight.T + bias``, [..., out]."""
        product: torch.Tensor = self._multiply(states, self.packed, self.bias, "none", [], "")
        return product


class _Joint:
    """One linear for several that read the same tensor, and what it gave for the last one."""

    def __init__(self, linear: nn.Module, sizes: Sequence[int]) -> None:
        self._linear = linear
        self._sizes = list(sizes)
        self._input: torch.Tensor | None = None
        self._outputs: list[torch.Tensor] = []

    def part(self, states: torch.Tensor, number: int) -> torch.Tensor:
        if states is not self._input:
            self._outputs = list(self._linear(states).split(self._sizes, dim=-1))
            self._input = states
        output = self._outputs[number]
        if number == len(self._sizes) - 1:  # nobody asks again: let the tensors go
            self._input, self._outputs = None, []
        return output


class JointPart(nn.Module):
    """One of several linears that are computed together."""

    def __init__(self, joint: _Joint, number: int, linear: nn.Module | None) -> None:
        """Take part ``number`` of a joint linear; the first part holds its module."""
        super().__init__()
        self.linear = linear
        self._joint = joint
        self._number = number

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return this part's product, [..., out]."""
        return self._joint.part(states, self._number)


@dataclass(frozen=True)
class _Call:
    """One linear of a model, and what it made of its input in a forward."""

    parent: nn.Module
    name: str
    linear: nn.Linear
    states: torch.Tensor
    output: torch.Tensor


def can_pack() -> bool:
    """Tell whether this build of torch packs and multiplies bfloat16 weights with oneDNN."""
    return (
        bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def fuse_linears(model: Any, forward: Callable[[], object], name: str) -> bool:
    """Swap the bfloat16 linears of a model on a CPU for faster ones, where those give the same.

    Args:
        model: A stock model in evaluation mode.
        forward: Runs one forward of the model.
        name: What to call the model in the log.

    Returns:
        Whether any was swapped.
    """
    places = list(_linears(model))
    on_cpu = all(weight.device.type == "cpu" for weight in model.parameters())
    if not places or not on_cpu or not can_pack():
        return False
    swapped = False
    for group in _groups(_observe(places, forward)):
        parts = _parts(group)
        for call, part in zip(group, parts, strict=True):
            setattr(call.parent, call.name, part)
        if not all(_agrees(call, part) for call, part in zip(group, parts, strict=True)):
            logger.warning("%s keeps its stock %s: a packed one differs", name, group[0].name)
            for call in group:
                setattr(call.parent, call.name, call.linear)
        else:
            swapped = True
    return swapped


def let_go_of_checkpoint(model: Any) -> MappedFile | None:
    """Let go of a checkpoint that is mapped into memory, now that most of it has been packed.

    The input embedding stays where it is: of a mapped one only the rows that are read take memory.

    Returns:
        The file that it still lies in; None where that is not mapped.
    """
    embedding = model.get_input_embeddings().weight
    file = MappedFile.around(embedding.data_ptr(), embedding.untyped_storage())
    for weight in model.parameters():
        if weight is not embedding or file is None:
            weight.data = weight.data.clone()
    if file is not None:
        file.drop_pages()
    return file


def _linears(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yield the linears that can be packed, each with its parent and its name there."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16:
                yield parent, name, child


def _observe(
    places: Sequence[tuple[nn.Module, str, nn.Linear]], forward: Callable[[], object]
) -> list[_Call]:
    """Run a forward and return the calls of its linears, in order; none where one ran twice."""
    calls: list[_Call] = []

    def observer(parent: nn.Module, name: str) -> Callable[..., None]:
        def observe(linear: nn.Linear, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            calls.append(_Call(parent, name, linear, inputs[0], output))

        return observe

    handles = [
        linear.register_forward_hook(observer(parent, name)) for parent, name, linear in places
    ]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return calls if len({id(call.linear) for call in calls}) == len(calls) else []


def _groups(calls: Sequence[_Call]) -> list[list[_Call]]:
    """Return neighbouring calls of one parent that read one tensor."""
    groups: list[list[_Call]] = []
    for call in calls:
        if groups and _belong_together(groups[-1][-1], call):
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def _belong_together(one: _Call, other: _Call) -> bool:
    return (
        one.states is other.states
        and one.parent is other.parent
        and (one.linear.bias is None) == (other.linear.bias is None)
    )


def _parts(group: Sequence[_Call]) -> list[nn.Module]:
    """Return what replaces the linears of a group."""
    linears = [call.linear for call in group]
    if len(linears) == 1:
        return [PackedLinear(linears[0].weight, linears[0].bias).eval()]
    biases = [one.bias.detach() for one in linears if one.bias is not None]
    weight = torch.cat([one.weight.detach() for one in linears])
    whole = PackedLinear(weight, torch.cat(biases) if biases else None).eval()
    joint = _Joint(whole, [one.out_features for one in linears])
    return [
        JointPart(joint, number, whole if number == 0 else None).eval()
        for number in range(len(linears))
    ]


def _agrees(call: _Call, replacement: nn.Module) -> bool:
    difference = (replacement(call.states) - call.output).abs().max()
    return bool(difference <= _TOLERANCE * call.output.abs().max())
