"""`dtopt demo`: small checkpoints that old releases wrote, to try the other commands on."""

from __future__ import annotations

import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import output

CONTENTS = (
    ("old.h5", "Keras of TensorFlow 1.15: Adam with AMSGrad, saved after 80 steps"),
    ("keras231.h5", "Keras 2.3.1: Adam; one value is not in the file"),
    ("bert", "TensorFlow 1.15: Google's BERT optimizer, tf.train.Saver"),
    ("gan", "TensorFlow 2.4: two optimizers in one checkpoint"),
    ("embedding", "TensorFlow 1.15: a table of words, trained with SGD and momentum"),
    ("momentum", "TensorFlow 2.4: save_weights() of a model trained with SGD and momentum"),
    ("program", "Keras 2.2.4: a program and its pickled get_weights()"),
    ("program_tf115", "TensorFlow 1.15: a program with a tf.Session, and its checkpoint"),
)


def demo(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new or empty folder.")] = "dtopt-demo",
) -> None:
    """Write small real checkpoints of old releases to DIR, and print the commands to try on them."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise typer.BadParameter(f"{folder} is not empty; choose another folder", param_hint="DIR")
        with files("dtopt_cli").joinpath("demo.zip").open("rb") as file, zipfile.ZipFile(file) as archive:
            archive.extractall(path)
    except OSError as error:
        raise typer.BadParameter(f"{folder} cannot be written: {error.strerror}", param_hint="DIR") from error
    _print(folder)


def _print(folder: str) -> None:
    def place(name: str) -> str:
        return output.typed(f"{folder.rstrip('/')}/{name}")

    old = place("old.h5")
    console = output.results()
    console.print(f"Wrote to {output.line(folder)}:", markup=False)
    for name, summary in CONTENTS:
        console.print(f"  {name:<15}{summary}", markup=False)
    commands = (
        ("Look at one, migrate it to Keras 3, and check the result:",
         f"dtopt migrate inspect {old}",
         f"dtopt migrate checkpoint {old} new.keras",
         f"dtopt migrate verify {old} new.keras"),
        ("With Keras 3 installed, continue training and compare with what TensorFlow 1.15 did:",
         f"python {place('continue.py')} new.keras"),
    )  # fmt: skip
    for what, *typed in commands:
        console.print(f"\n{what}")
        for command in typed:
            console.print(f"  {command}", markup=False, soft_wrap=True)
