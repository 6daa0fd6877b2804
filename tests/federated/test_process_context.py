"""A process's context: evaluation sees clean images through an encoder in eval mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rayfed_ssl.base.weights import unpack
from rayfed_ssl.data.augment import clean
from rayfed_ssl.federated import process_context
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.process_context import ProcessContext, resolve_device
from tests.evaluation.materials import fewshot_accuracy, knn_accuracy
from tests.tiny import tiny


def test_evaluation_has_the_encoder_in_eval_mode() -> None:
    """BatchNorm's running statistics are far from those of any batch, so the mode shows in the features."""
    config = tiny("fedsimclr", evaluation__protocols=["knn", "fewshot"], evaluation__fewshot={"draws": 3})
    federation = load_federation(config)
    context, initial = ProcessContext(config, federation), InitialWeights(config, federation)
    weights = initial("small_cnn_bn")
    vector, draw = weights.vector.copy(), np.random.default_rng(0)
    buffers = vector[weights.parameters :]
    buffers[:] = buffers * draw.uniform(0.01, 3, buffers.shape) + 0.3 * draw.uniform(0, 1, buffers.shape)
    weights = weights.with_vector(vector)
    found = context.evaluate("small_cnn_bn", weights)

    dataset, values = federation.dataset, {}
    for training in (False, True):
        network = initial.network("small_cnn_bn")
        unpack(weights, network)
        network.train(training)
        with torch.no_grad():
            train_x, test_x = (
                network.represent(clean(torch.tensor(np.array(s.pixels)).permute(0, 3, 1, 2), config.augment.recipe()))
                for s in (dataset.train, dataset.test)
            )
        labels = torch.tensor(dataset.train.labels), torch.tensor(dataset.test.labels)
        knn = knn_accuracy(train_x, labels[0], test_x, labels[1], classes=10)
        few = fewshot_accuracy(train_x, labels[0], test_x, labels[1], draws=3)
        values[training] = {"knn": knn, "fewshot": few}
    for protocol, value in values[False].items():
        assert abs(found[protocol] - value) <= 1.5 / len(dataset.test)
        assert abs(values[True][protocol] - value) > 2.5 / len(dataset.test)
    again = context.evaluate("small_cnn_bn", weights)
    assert found == again


def test_a_gpu_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch answers questions about the memory of "cuda:0", and refuses those about "cuda"."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda", 0)
    assert resolve_device("cpu") == torch.device("cpu")


def test_raw_pixels_are_measured_on_the_device_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("fedsimclr")
    federation = load_federation(config)
    context = ProcessContext(config, federation)
    needed = 4 * (len(federation.dataset.train) + len(federation.dataset.test)) * 8 * 8 * 3
    context.device = torch.device("meta")
    for room, expected in (
        (needed / process_context.PIXELS_SHARE, "meta"),
        (needed / process_context.PIXELS_SHARE - 8, "cpu"),
    ):
        monkeypatch.setattr(process_context, "device_memory", lambda device, room=room: room)
        assert context.material(None).device == torch.device(expected)
