"""The pictures of the documentation, from the measured numbers next to them.

python tools/pictures.py measure     # docs/pictures/*.json
python tools/pictures.py draw        # docs/pictures/*.svg, from those
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
STORY = ROOT / "tests" / "fixtures" / "cases" / "stories" / "resumed"
"""A run of TensorFlow 1.15.5: its losses, and its model.h5 after SAVED steps."""
SAVED, MOVED, END = 80, 160, 240
HIGH = 46
"""Of a box, in pixels."""
DEVICES = (1, 2, 4, 8)
BLOCK = ((768, 2304), (768, 768), (768, 3072), (3072, 768), (2304,), (768,), (3072,), (768,))
"""Kernels and biases of one block of GPT-2."""
STYLE = """
svg { font: 13px system-ui, sans-serif } text { fill: #24292f } .card { fill: #ffffff } .grid { stroke: #d8dee4 }
.own { stroke: #8c959f } .a { stroke: #4453c4 } .b { stroke: #c4650a } .c { stroke: #1f8a5b } .lost { stroke: #cf3a3a }
rect.a { fill: #4453c4 } rect.c { fill: #1f8a5b } .title { font-weight: 600; font-size: 15px } path { fill: none }
.name { font-weight: 600; text-anchor: middle; stroke: none } .small { font-size: 12px; text-anchor: middle }
.box { fill: none; stroke: #8c959f }
text.a { fill: #4453c4 } text.b { fill: #a85509 } text.c { fill: #1a7a4d } text.lost { fill: #cf3a3a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .card { fill: #161b22 } .grid { stroke: #30363d }
  .a { stroke: #8c9bff } .b { stroke: #f0a04b } .c { stroke: #4fc38a } .lost { stroke: #ff7b72 }
  rect.a { fill: #8c9bff } rect.c { fill: #4fc38a }
  text.a { fill: #8c9bff } text.b { fill: #f0a04b } text.c { fill: #4fc38a } text.lost { fill: #ff7b72 }
}
"""


def main(what: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    if what == "measure":
        for name, numbers in (("resumed", resumed()), ("zero1", zero1())):
            (PICTURES / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    elif what == "draw":
        for name, svg in drawn().items():
            (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
    else:
        sys.exit(__doc__)


def drawn() -> dict[str, str]:
    """Each picture's SVG."""
    numbers = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in sorted(PICTURES.glob("*.json"))}
    return {
        "resumed": draw_resumed(numbers["resumed"]),
        "zero1": draw_zero1(numbers["zero1"]),
        "packages": draw_packages(),
        "migration": draw_migration(),
        "step": draw_step(),
    }


# What is measured.


def resumed() -> dict[str, Any]:
    """Losses of one run: in TensorFlow 1.15, in Keras 3, on a 2x2 mesh; and with the optimizer's state lost."""
    import keras
    import tensorflow as tf

    import migrate

    _eight_devices(tf)
    recorded = json.loads((STORY / "tf115.json").read_text())
    data = _data()
    with tempfile.TemporaryDirectory() as folder:
        migrate.migrate_checkpoint(STORY / "model.h5", f"{folder}/a.keras", to="keras", strict=True)
        model = keras.saving.load_model(f"{folder}/a.keras")
        in_keras = [float(model.train_on_batch(*data)) for _ in range(SAVED, MOVED)]
        model.save(f"{folder}/b.keras")
        migrate.migrate_checkpoint(f"{folder}/b.keras", f"{folder}/slots", strict=True)
        on_mesh = _on_mesh(f"{folder}/slots", data)
        fresh = keras.saving.load_model(f"{folder}/a.keras")
        fresh.compile(loss="mse", optimizer=type(fresh.optimizer).from_config(fresh.optimizer.get_config()))
        lost = [float(fresh.train_on_batch(*data)) for _ in range(SAVED, END)]
    return {
        "versions": {"tensorflow 1.15": recorded["tensorflow"], "keras 3": keras.__version__, "mesh": tf.__version__},
        **{k: [float(f"{x:.7g}") for x in v] for k, v in
           {"tf115": recorded["losses"], "keras3": in_keras, "mesh": on_mesh, "lost": lost}.items()},
    }  # fmt: skip


def _data() -> tuple[Any, Any]:
    """What train_tf115.py trains on."""
    import numpy as np

    points = np.sin(np.arange(256).reshape(64, 4) * 0.37)
    values = np.sin(points.sum(axis=1, keepdims=True) * 2) + points[:, :1] * points[:, 1:2]
    return points.astype("float32"), values.astype("float32")


def _on_mesh(slots: str, data: tuple[Any, Any]) -> list[float]:
    import numpy as np
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    import optim

    mesh = dtensor.create_mesh([("batch", 2), ("model", 2)], devices=[f"CPU:{i}" for i in range(4)])

    def lay(value: Any, *axes: str) -> Any:
        whole = dtensor.copy_to_mesh(tf.constant(value), dtensor.Layout.replicated(mesh, len(axes)))
        return dtensor.relayout(whole, dtensor.Layout(axes, mesh))

    layouts = {
        "hidden/kernel": ("unsharded", "model"), "hidden/bias": ("model",),
        "output/kernel": ("model", "unsharded"), "output/bias": ("unsharded",),
    }  # fmt: skip
    stored = {v.name.removeprefix("sequential/"): v for v in optim.describe_checkpoint(slots).variables}
    variables = {name: dtensor.DVariable(lay(np.zeros(v.shape, v.dtype), *layouts[name])) for name, v in stored.items()}
    onto = {v.name: variables[name] for name, v in stored.items()}
    optimizer = optim.load_checkpoint(slots, onto, mesh=mesh, slot_placement="zero1")
    x, y = (lay(part, "batch", "unsharded") for part in data)
    trained = list(variables.values())

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.tanh(x @ variables["hidden/kernel"] + variables["hidden/bias"])
            loss = tf.reduce_mean(tf.square(hidden @ variables["output/kernel"] + variables["output/bias"] - y))
        return loss, tape.gradient(loss, trained)

    losses = []
    for _ in range(MOVED, END):
        loss, gradients = step()
        optimizer.apply_gradients(zip(gradients, trained, strict=True))
        losses.append(float(loss.numpy()))
    return losses


def zero1() -> dict[str, Any]:
    """Bytes of Adam's slots on the device that holds most, for one block of GPT-2 on meshes of several sizes."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    import optim

    _eight_devices(tf)
    numbers: dict[str, Any] = {"devices": list(DEVICES), "like_variable": [], "zero1": []}
    for count in DEVICES:
        mesh = dtensor.create_mesh([("batch", count)], devices=[f"CPU:{i}" for i in range(count)])
        for placement in ("like_variable", "zero1"):
            variables = [
                dtensor.DVariable(dtensor.copy_to_mesh(tf.zeros(s), dtensor.Layout.replicated(mesh, len(s))))
                for s in BLOCK
            ]
            optimizer = optim.Adam(mesh=mesh, slot_placement=placement)
            optimizer.build(variables)
            numbers[placement].append(max(optimizer.memory_report().slot_bytes.values()))
    return numbers


def _eight_devices(tf: Any) -> None:
    """Eight logical CPU devices; in a process that has used TensorFlow, they must be there already."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * max(DEVICES))


# What is drawn.


def _frame(title: str, about: str, width: int, height: int, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img">\n<title>{escape(title)}</title>\n<desc>{escape(about)}</desc>\n<style>{STYLE}</style>\n'
        f'<rect class="card" width="{width}" height="{height}" rx="8"/>\n'
        f'<text class="title" x="20" y="28">{escape(title)}</text>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def _box(x: float, y: float, width: float, name: str, about: str = "") -> str:
    """A part of dtopt, and what it is for."""
    middle = x + width / 2
    return (
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{HIGH}" rx="6"/>'
        f'<text class="name" x="{middle:g}" y="{y + (20 if about else 28):g}">{escape(name)}</text>'
        + (f'<text class="small" x="{middle:g}" y="{y + 36:g}">{escape(about)}</text>' if about else "")
    )


def _arrow(*points: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = points[-2:]
    away = math.hypot(x1 - x0, y1 - y0)
    dx, dy = (x1 - x0) / away * 8, (y1 - y0) / away * 8
    path = " L".join(f"{x:g},{y:g}" for x, y in points)
    head = f"M{x1 - dx - dy / 2:g},{y1 - dy + dx / 2:g} L{x1:g},{y1:g} L{x1 - dx + dy / 2:g},{y1 - dy - dx / 2:g}"
    return f'<path class="own" stroke-width="1.5" d="M{path} {head}"/>'


def draw_packages() -> str:
    body = [
        _box(230, 50, 180, "dtopt_cli", "the commands"), _box(60, 140, 240, "migrate", "converts state and programs"),
        _box(340, 140, 240, "bench", "measures"), _box(170, 230, 300, "optim", "optimizers, rules, slot checkpoints"),
        _box(60, 320, 240, "numpy"), _box(340, 320, 240, "TensorFlow", "not with Keras on JAX or PyTorch"),
        _arrow((290, 96), (210, 138)), _arrow((350, 96), (430, 138)), _arrow((210, 186), (280, 228)),
        _arrow((430, 186), (360, 228)), _arrow((280, 276), (210, 318)), _arrow((360, 276), (430, 318)),
    ]  # fmt: skip
    return _frame(
        "The packages, and who may import whom", "Each arrow points from importer to imported.", 640, 386, body
    )


def draw_migration() -> str:
    body = [
        _text(66, 78, "source", "middle"), _box(130, 50, 120, "reader", "one per format"),
        _box(290, 50, 140, "algorithm", "meaning, origins"), _box(470, 50, 120, "writer", "one per target"),
        _text(660, 78, "target", "middle"), _arrow((94, 73), (128, 73)), _arrow((250, 73), (288, 73)),
        _arrow((430, 73), (468, 73)), _arrow((590, 73), (632, 73)),
        _box(200, 140, 330, "proof", "reads both again, compares, takes one step"),
        _arrow((66, 86), (66, 163), (198, 163)), _arrow((660, 86), (660, 163), (532, 163)),
    ]  # fmt: skip
    about = "A source becomes a target in one direction; proof shares no code with what it proves."
    return _frame("From a source to a target", about, 720, 206, body)


def draw_step() -> str:
    body = [
        _text(60, 78, "gradients", "middle"), _box(130, 50, 230, "step", "checked, clipped, accumulated"),
        _box(420, 50, 280, "executor", "portable: DTensor's ops; local: shards"),
        _arrow((98, 73), (128, 73)), _arrow((360, 73), (418, 73)),
        _box(130, 140, 230, "options", "one file each: check, state, action"),
        _box(420, 140, 280, "rule", "pure maths on arrays"), _box(420, 230, 280, "native", "C++ made from the rule"),
        _arrow((245, 96), (245, 138)), _arrow((560, 96), (560, 138)), _arrow((560, 186), (560, 228)),
    ]  # fmt: skip
    about = "A step is a rule with options around it, on one of two executors."
    return _frame("One step of an optimizer", about, 720, 296, body)


def draw_resumed(numbers: dict[str, Any]) -> str:
    """Losses by training step, on a logarithmic axis that holds all of them."""
    left, right, top, bottom = 74, 620, 84, 304
    every = [loss for kind in ("tf115", "keras3", "mesh", "lost") for loss in numbers[kind]]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))

    def across(step: float) -> float:
        return left + step * (right - left) / END

    def down(loss: float) -> float:
        return top + (high - math.log10(loss)) * (bottom - top) / (high - low)

    def line(kind: str, first: int, values: Sequence[float], width: float, more: str = "") -> str:
        points = [f"{across(first + i):.1f},{down(value):.1f}" for i, value in enumerate(values)]
        return f'<path class="{kind}" stroke-width="{width:g}" {more}d="M{" L".join(points)}"/>'

    body = []
    for power in range(low, high + 1):
        y = down(10.0**power)
        body += [
            f'<path class="grid" d="M{left},{y:.1f} H{right}"/>',
            _text(left - 8, y + 4, f"{10.0**power:g}", "end"),
        ]
    for step in range(0, END + 1, SAVED):
        x = across(step)
        body += [f'<path class="grid" d="M{x:.1f},{top} V{bottom}"/>', _text(x, bottom + 18, str(step), "middle")]
    for first, name, kind in ((0, "TensorFlow 1.15", "a"), (SAVED, "Keras 3", "b"), (MOVED, "2x2 mesh", "c")):
        body.append(f'<text class="{kind} name" x="{across(first + SAVED / 2):.1f}" y="{top - 10}">{name}</text>')
    worse = numbers["lost"][-1] / numbers["tf115"][-1]
    body += [
        line("own", SAVED, numbers["tf115"][SAVED:], 8, 'stroke-opacity="0.4" '),
        line("lost", SAVED - 1, [numbers["tf115"][SAVED - 1], *numbers["lost"]], 2),
        line("a", 0, numbers["tf115"][:SAVED], 2.4),
        line("b", SAVED - 1, [numbers["tf115"][SAVED - 1], *numbers["keras3"]], 2.4),
        line("c", MOVED - 1, [numbers["keras3"][-1], *numbers["mesh"]], 2.4),
        f'<text class="lost name" x="{across(MOVED):.1f}" y="{down(0.35):.1f}">without its optimizer state</text>',
        _text((left + right) / 2, bottom + 38, "training step", "middle"),
        f'<g transform="translate(22 {(top + bottom) / 2:g}) rotate(-90)">{_text(0, 0, "training loss", "middle")}</g>',
        f'<path class="own" stroke-width="8" stroke-opacity="0.4" d="M{left},{bottom + 61} h24"/>',
        _text(left + 32, bottom + 65, "what TensorFlow 1.15 itself did next: the same"),
        f'<path class="lost" stroke-width="2" d="M{left},{bottom + 83} h24"/>',
        _text(left + 32, bottom + 87, f"Keras 3 with the weights only: {worse:.1f} times the loss at the end"),
    ]  # fmt: skip
    about = (
        "The loss continues from TensorFlow 1.15 to Keras 3 and to a mesh on the curve of the original run. Without the"
        " optimizer's state it jumps up and stays higher."
    )
    return _frame("One training run in three frameworks", about, 640, bottom + 102, body)


def draw_zero1(numbers: dict[str, Any]) -> str:
    most = max(numbers["like_variable"])
    body = []
    for i, count in enumerate(numbers["devices"]):
        for j, (kind, placement) in enumerate((("a", "like_variable"), ("c", "zero1"))):
            size = numbers[placement][i]
            x, height = 60 + i * 135 + j * 56, size / most * 170
            body.append(
                f'<rect class="{kind}" stroke="none" x="{x}" y="{230 - height:.1f}" width="48" height="{height:.1f}"/>'
            )
            body.append(_text(x + 24, 224 - height, f"{size / 1e6:.1f}", "middle"))
        body.append(_text(112 + i * 135, 250, f"{count} device{'s' if count > 1 else ''}", "middle"))
    body += [
        '<path class="grid" d="M50,230 H590"/>',
        '<rect class="a" stroke="none" x="60" y="268" width="14" height="14"/>', _text(80, 280, "like_variable"),
        '<rect class="c" stroke="none" x="190" y="268" width="14" height="14"/>', _text(210, 280, "zero1"),
        _text(320, 308, "MB of Adam's slots on each device, one block of GPT-2", "middle"),
    ]  # fmt: skip
    about = "like_variable keeps all slots on every device; zero1 divides them by the number of devices."
    return _frame("Memory of slots: zero1 and like_variable", about, 640, 322, body)


if __name__ == "__main__":
    main(*sys.argv[1:] or ("",))
