"""``encoder/``: the final encoder(s) as safetensors, with a json that says how to build the module they belong to."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from safetensors.torch import save_file

from rayfed_ssl.base.files import readable_as_usual, replace_file, write_json
from rayfed_ssl.base.weights import unpack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.models import describe
from rayfed_ssl.models.exported import file_name
from rayfed_ssl.models.transform import HIGH_BIT_DEPTH, as_input
from rayfed_ssl.storage.checkpoint import disk_errors


def export_encoders(folder: Path, config: RunConfig, encoders: list[EvaluatedEncoder], cohort: Cohort) -> None:
    """Write each encoder: ``global`` or ``client-00003``, with the client's name after that if it has one
    (``client-00003-ward-7``). Integer counters are not exported.

    Raises:
        OSError: the disk takes no more, or the folder cannot be written to.
    """
    build = InitialWeights(config, cohort.federation)
    networks = cache(build.network)  # one of each architecture, which each encoder's values fill
    names = cohort.federation.given_names
    for encoder in encoders:
        weights = encoder.weights
        if weights is None:
            assert encoder.client is not None
            state = dict(cohort.states([encoder.client])).get(encoder.client, {})
            weights = state.get("model") or build(encoder.architecture, encoder.classes, encoder.client)
        network = networks(encoder.architecture, encoder.classes)
        unpack(weights, network)
        name = file_name(encoder.client, names)
        values = {k: v.contiguous() for k, v in network.encoder.state_dict().items() if v.is_floating_point()}
        recipe = config.augment.recipe()
        description = {
            **describe(network),
            "values": f"{name}.safetensors",
            "input": {
                "range": "pixels / 255",
                "mean": list(recipe.mean),
                "std": list(recipe.std),
                **as_input(config.data, cohort.federation.dataset.range),
                HIGH_BIT_DEPTH: cohort.federation.dataset.scaling is not None,
            },
        }
        if encoder.client is not None and names is not None:
            description["client_name"] = names[encoder.client]
        with disk_errors():
            write = partial(readable_as_usual, write=partial(save_file, values))
            replace_file(folder / "encoder" / f"{name}.safetensors", write)
        write_json(folder / "encoder" / f"{name}.json", description)
