"""The pictures of the documentation, from measured numbers that lie beside them.

python tools/pictures.py measure     # docs/pictures/*.json
python tools/pictures.py draw        # docs/pictures/*.svg, from those
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
STORY = ROOT / "tests" / "fixtures" / "resumed"
"""A run of TensorFlow 1.15.5: its losses, and its model.h5 after SAVED steps."""
SAVED, MOVED, END = 40, 80, 120
DEVICES = (1, 2, 4, 8)
BLOCK = ((768, 2304), (768, 768), (768, 3072), (3072, 768), (2304,), (768,), (3072,), (768,))
"""Kernels and biases of one block of GPT-2."""
STYLE = """
svg { font: 13px system-ui, sans-serif } text { fill: #24292f } .card { fill: #ffffff } .grid { stroke: #d8dee4 }
.own { stroke: #8c959f } .a { stroke: #4453c4 } .b { stroke: #c4650a } .c { stroke: #1f8a5b } .lost { stroke: #cf3a3a }
rect.a { fill: #4453c4 } rect.c { fill: #1f8a5b } .title { font-weight: 600; font-size: 15px } path { fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .card { fill: #161b22 } .grid { stroke: #30363d }
  .a { stroke: #8c9bff } .b { stroke: #f0a04b } .c { stroke: #4fc38a } .lost { stroke: #ff7b72 }
  rect.a { fill: #8c9bff } rect.c { fill: #4fc38a }
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
    return {"resumed": draw_resumed(numbers["resumed"]), "zero1": draw_zero1(numbers["zero1"])}


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
        fresh.compile(loss="mse", optimizer=keras.optimizers.Adam(0.03, amsgrad=True))
        lost = [float(fresh.train_on_batch(*data)) for _ in range(SAVED, END)]
    return {
        "versions": {"tensorflow 1.15": recorded["tensorflow"], "keras 3": keras.__version__, "mesh": tf.__version__},
        **{k: [round(x, 6) for x in v] for k, v in
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


def draw_resumed(numbers: dict[str, Any]) -> str:
    low, high = 0.35, 0.8

    def line(kind: str, first: int, values: Sequence[float], width: float, more: str = "") -> str:
        points = [
            f"{60 + (first + i) * 540 / END:.1f},{50 + (high - min(max(v, low), high)) * 200 / (high - low):.1f}"
            for i, v in enumerate(values)
        ]
        return f'<path class="{kind}" stroke-width="{width:g}" {more}d="M{" L".join(points)}"/>'

    body = []
    for mark in (0.4, 0.5, 0.6, 0.7, 0.8):
        y = 50 + (high - mark) * 200 / (high - low)
        body += [f'<path class="grid" d="M60,{y:.1f} H600"/>', _text(52, y + 4, f"{mark:g}", "end")]
    for step in range(0, END + 1, SAVED):
        x = 60 + step * 540 / END
        body += [f'<path class="grid" d="M{x:.1f},50 V250"/>', _text(x, 268, str(step), "middle")]
    body += [
        line("lost", SAVED, numbers["lost"], 1.6, 'stroke-dasharray="5 3" '),
        line("own", SAVED, numbers["tf115"][SAVED:], 7, 'stroke-opacity="0.45" '),
        line("a", 0, numbers["tf115"][:SAVED], 2.2),
        line("b", SAVED - 1, [numbers["tf115"][SAVED - 1], *numbers["keras3"]], 2.2),
        line("c", MOVED - 1, [numbers["keras3"][-1], *numbers["mesh"]], 2.2),
        _text(150, 292, "TensorFlow 1.15", "middle"), _text(330, 292, "Keras 3", "middle"),
        _text(510, 292, "2x2 mesh", "middle"), '<path class="a" stroke-width="3" d="M70,288 H92"/>',
        '<path class="b" stroke-width="3" d="M275,288 H297"/>', '<path class="c" stroke-width="3" d="M445,288 H467"/>',
        '<path class="own" stroke-width="7" stroke-opacity="0.45" d="M70,310 H92"/>',
        _text(100, 314, "what TensorFlow 1.15 did next itself"),
        '<path class="lost" stroke-width="2" stroke-dasharray="5 3" d="M345,310 H367"/>',
        _text(375, 314, "with the optimizer's state lost"),
        _text(330, 338, "loss by training step; what is above 0.8 is cut off", "middle"),
    ]  # fmt: skip
    title = "One training run in three frameworks"
    about = "The loss goes on from TensorFlow 1.15 to Keras 3 and to a mesh on the curve of the original run."
    return _frame(title, about, 640, 350, body)


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
