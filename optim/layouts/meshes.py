"""Meshes as JSON, for the config of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.errors import HyperparameterError


def check(mesh: Any) -> dtensor.Mesh | None:
    """Return `mesh` if it is a mesh or None. Raises HyperparameterError."""
    if mesh is None or isinstance(mesh, dtensor.Mesh):
        return mesh
    raise HyperparameterError(f"mesh must be a tf.experimental.dtensor.Mesh or None, got {type(mesh).__name__}")


def to_config(mesh: dtensor.Mesh | None) -> dict[str, Any] | None:
    """Return `{"axes": [[name, size], ...], "device_type", "devices"}`; devices in row-major order over the axes.

    With several clients `devices` is None: each client names only its own.
    """
    if mesh is None:
        return None
    single = dtensor.num_clients() == 1
    return {
        "axes": [[name, mesh.dim_size(name)] for name in mesh.dim_names],
        "device_type": mesh.device_type().upper(),
        "devices": [d.rpartition("device:")[2] for d in mesh.local_devices()] if single else None,
    }


def from_config(document: Mapping[str, Any] | None) -> dtensor.Mesh | None:
    """Return the mesh that `to_config` described, made on this machine. Raises HyperparameterError."""
    if document is None:
        return None
    try:
        axes = [(str(name), int(size)) for name, size in document["axes"]]
        if dtensor.num_clients() > 1:
            return dtensor.create_distributed_mesh(axes, device_type=document["device_type"])
        if document["devices"]:
            _check_present(document["devices"])
            return dtensor.create_mesh(axes, devices=list(document["devices"]))
        return dtensor.create_mesh(axes, device_type=document["device_type"])
    except (KeyError, TypeError, ValueError) as error:
        raise HyperparameterError(
            f"the mesh in the config, {dict(document)!r}, cannot be made here: {error}; put a live mesh, or None, into"
            " config['mesh']"
        ) from error


def _check_present(devices: Sequence[str]) -> None:
    """Check that devices exist: TensorFlow accepts missing ones in a mesh, and crashes when the mesh is used."""
    here = {device.name.rpartition("device:")[2] for device in tf.config.list_logical_devices()}
    missing = [device for device in devices if device.rpartition("device:")[2].upper() not in here]
    if missing:
        raise ValueError(f"there is no {missing[0]} (tf.config.set_logical_device_configuration makes more CPUs)")
