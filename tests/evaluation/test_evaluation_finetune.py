"""Fine-tuning, the semi-supervised protocol and the transfer protocol against plainly written loops."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import generator, seed_of
from rayfed_ssl.data.augment import augment
from rayfed_ssl.data.recipes import Recipe
from rayfed_ssl.evaluation import Material, Split, semi, transfer
from rayfed_ssl.evaluation.finetune import FineTuneConfig, fine_tune, label_fraction
from rayfed_ssl.evaluation.semi import SemiConfig
from rayfed_ssl.evaluation.transfer import TransferConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.simulation.checks import image_notes
from tests.evaluation.materials import images, linear_accuracy, of_images, small_encoder
from tests.tiny import tiny

WHOLE = {"crop_scale": (1.0, 1.0), "flip": False}


def tensors(data: tuple[np.ndarray, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(data[0].transpose(0, 3, 1, 2) / 255, dtype=torch.float32), torch.tensor(data[1])


def accuracy(scores: torch.Tensor, truth: np.ndarray) -> float:
    return float((scores.argmax(dim=1).numpy() == truth).mean())


@pytest.mark.parametrize(("optimizer", "hidden"), [("adam", 8), ("sgd", None)])
def test_equals_a_plain_loop_and_leaves_the_encoder_alone(optimizer: str, hidden: int | None) -> None:
    train, test = images(33, 0), images(60, 1)  # batches of 16, 16 and a lone one
    config = FineTuneConfig.model_validate(
        {"epochs": 4, "batch_size": 16, "hidden": hidden, "optimizer": optimizer, "encoder_lr": 1e-2, "head_lr": 3e-2}
        | WHOLE
    )
    frozen = small_encoder()
    encoder = frozen.module
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    classify = fine_tune(frozen, *train, classes=3, config=config, seed=5, key="k")
    got = classify(test[0])
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert not encoder.training

    torch.manual_seed(seed_of(5, "finetune"))
    layers: list[nn.Module] = [nn.Linear(6, 3)]
    if hidden is not None:
        torch.manual_seed(seed_of(5, "finetune"))
        layers = [nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3)]
    head = nn.Sequential(*layers)
    encoder.train()
    parts: list[torch.optim.Optimizer] = (
        [torch.optim.Adam(encoder.parameters(), lr=1e-2), torch.optim.Adam(head.parameters(), lr=3e-2)]
        if optimizer == "adam"
        else [
            torch.optim.SGD(encoder.parameters(), lr=1e-2, momentum=0.9),
            torch.optim.SGD(head.parameters(), lr=3e-2, momentum=0.9),
        ]
    )
    order = generator(5, "finetune", "order")
    x, y = tensors(train)
    for _ in range(4):
        shuffled = torch.randperm(33, generator=order)
        for rows in (shuffled[:16], shuffled[16:32]):
            for part in parts:
                part.zero_grad()
            F.cross_entropy(head(encoder(x[rows])), y[rows]).backward()
            for part in parts:
                part.step()
    encoder.eval()
    expected = head(encoder(tensors(test)[0])).double().log_softmax(dim=1)
    torch.testing.assert_close(got, expected.detach(), atol=1e-4, rtol=1e-4)


def test_train_images_are_square_crops_mirrored_as_the_run_does() -> None:
    of_run = Recipe(crop_scale=(0.2, 1.0), flip=True, jitter=(0.4, 0.4, 0.4, 0.1), jitter_p=1.0, gray_p=1.0)
    recipe = FineTuneConfig().recipe(of_run)
    assert recipe == Recipe(crop_scale=(0.64, 1.0), crop_ratio=(1.0, 1.0), flip=True)
    assert not FineTuneConfig(flip=False).recipe(of_run).flip
    # a horizontal ramp: its slope in a crop's columns is the crop's width, in a vertical one the height
    ramp = torch.arange(64, dtype=torch.uint8).repeat(64, 1)
    across, down = (augment(
        pixels.expand(40, 3, 64, 64), recipe, torch.Generator().manual_seed(2), views=1
    )[:, 0] for pixels in (ramp, ramp.T))  # fmt: skip
    width = (across[:, 32, 40] - across[:, 32, 24]).abs()
    height = (down[:, 40, 32] - down[:, 24, 32]).abs()
    torch.testing.assert_close(width, height, atol=1e-4, rtol=1e-3)
    assert 0.75 < float(width.min() / width.max()) < 0.9  # sides from 0.8 to 1


@pytest.mark.long
def test_the_encoder_learns_too() -> None:
    blind = small_encoder()
    with torch.no_grad():
        blind.module[0].weight.zero_()  # every image looks alike: a head alone could do no better than chance
        blind.module[1].bias.fill_(0.5)
    config = FineTuneConfig(epochs=40, batch_size=32, hidden=16, optimizer="adam", encoder_lr=1e-2, head_lr=1e-2)
    test = images(200, 1)
    classify = fine_tune(blind, *images(200, 0), classes=3, config=config, seed=0, key="k")
    assert accuracy(classify(test[0]), test[1]) > 0.9


def test_same_seed_same_result_whatever_the_global_generator_did() -> None:
    config = FineTuneConfig(epochs=2, batch_size=16, hidden=8)
    results, encoder = [], small_encoder()
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        state = torch.get_rng_state()
        with torch.inference_mode():
            results.append(
                fine_tune(encoder, *images(40, 0), classes=3, config=config, seed=9, key="k")(images(30, 1)[0])
            )
        assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(*results)


def test_divergence_is_one_line() -> None:
    config = FineTuneConfig(epochs=30, batch_size=16, encoder_lr=1e30, head_lr=1e30)
    with pytest.raises(UserError, match=r"^evaluation\.semi\.head_lr: found 1e\+30 .*diverged"):
        fine_tune(small_encoder(), *images(40, 0), classes=3, config=config, seed=9, key="evaluation.semi")(
            images(30, 1)[0]
        )


def test_label_fraction_is_stratified_seeded_and_skips_the_unlabelled() -> None:
    labels = np.repeat([-1, 0, 1, 2], [50, 1000, 200, 3])
    rows = label_fraction(labels, 0.01, 0)
    assert np.unique(labels[rows], return_counts=True)[1].tolist() == [10, 2, 1]
    assert labels[rows].min() == 0
    assert rows.tolist() == sorted(set(rows.tolist())) == label_fraction(labels, 0.01, 0).tolist()
    assert rows.tolist() != label_fraction(labels, 0.01, 1).tolist()
    assert set(rows.tolist()) < set(label_fraction(labels, 0.1, 0).tolist())
    assert label_fraction(labels, 1.0, 0).tolist() == list(range(50, 1253))
    assert len(label_fraction(np.full(5, -1), 0.1, 0)) == 0
    assert len(label_fraction(np.zeros(17, np.int64), 0.1, 0)) == 2  # 1.7 is rounded, not cut


def test_a_share_that_small_classes_exceed_is_said() -> None:
    labels = np.repeat(np.arange(10), 20)
    (line,) = texts(semi.remarks(SemiConfig(), labels))
    assert line == (
        "evaluation.semi.fractions: semi_1 takes 10 of the 200 labelled train images, 5% for a share of 1%: of each "
        "class at least one"
    )
    assert not list(semi.remarks(SemiConfig(), np.repeat(np.arange(10), 67)))  # 10 of 670
    assert len(list(semi.remarks(SemiConfig(), np.repeat(np.arange(10), 66)))) == 1
    config = tiny("fedsimclr", evaluation__protocols=["semi"], evaluation__semi__fractions=[0.01])
    notes = texts(image_notes(config, load_federation(config)))
    assert any(note.startswith("evaluation.semi.fractions: semi_1 takes 10 of the 160 labelled") for note in notes)


def test_semi_fine_tunes_on_that_share_of_the_labels_and_measures_both_splits() -> None:
    train, test, held_out = images(100, 0), images(60, 1), images(30, 2)
    config = SemiConfig(fractions=(0.1, 0.5), epochs=3, batch_size=16)
    encoder = small_encoder()
    values = semi.measure(of_images(encoder, train, test, held_out), config)
    assert list(values) == ["semi_10", "select/semi_10", "semi_50", "select/semi_50"]
    for percent, fraction in ((10, 0.1), (50, 0.5)):
        rows = label_fraction(train[1], fraction, 3)
        assert len(rows) == pytest.approx(100 * fraction, abs=2)
        classify = fine_tune(encoder, train[0][rows], train[1][rows], classes=3, config=config, seed=3, key="k")
        assert values[f"semi_{percent}"] == accuracy(classify(test[0]), test[1])
        assert values[f"select/semi_{percent}"] == accuracy(classify(held_out[0]), held_out[1])
    assert semi.tag(0.005) == "semi_0p5"


class Sealed(Split):
    """A split whose labels nobody may read before its pixels were classified."""

    classified = False

    @property
    def pixels(self) -> np.ndarray:  # type: ignore[override]
        self.classified = True
        return super().__getattribute__("_pixels")

    @property
    def labels(self) -> torch.Tensor:  # type: ignore[override]
        assert self.classified
        return torch.from_numpy(self._given)


def test_nothing_is_chosen_by_test_labels() -> None:
    """The same model comes of it whatever the test labels are, so accuracies under all relabellings sum to 1."""
    train, (pixels, labels) = images(60, 0), images(90, 1)
    config = SemiConfig(fractions=(0.5,), epochs=3, batch_size=16)
    totals = 0.0
    for shift in range(3):
        encoder = small_encoder()
        made = of_images(encoder, train, (pixels, (labels + shift) % 3))
        sealed = Sealed("test", pixels, (labels + shift) % 3, 3, encoder.features)
        values = semi.measure(
            Material(made.train, {"": sealed}, made.pool, made.pool_rows, 3, 3, frozen=encoder), config
        )
        totals += values["semi_50"]
    assert totals == pytest.approx(1.0)


def written(path: Path, split: str, data: tuple[np.ndarray, np.ndarray]) -> None:
    """A split as a Parquet file of PNG images."""
    pngs = []
    for pixels in data[0]:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        pngs.append({"bytes": buffer.getvalue(), "path": None})
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array(pngs, kind), "label": pa.array(data[1])}), path / f"{split}.parquet")


def larger(data: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(np.repeat(data[0], 2, axis=1), 2, axis=2), data[1]


def test_transfer_uses_the_other_data_set_alone(tmp_path: Path) -> None:
    train, test = larger(images(80, 4)), larger(images(40, 5))
    written(tmp_path, "train", train)
    written(tmp_path, "test", test)
    encoder = small_encoder()
    own = of_images(encoder, larger(images(50, 0)), larger(images(20, 1)))
    config = TransferConfig.model_validate(
        {
            "data": {"name": "parquet", "path": str(tmp_path)},
            "by": ["linear", "finetune"],
            "linear": {"epochs": 20},
            "finetune": {"epochs": 2, "batch_size": 16},
        }
    )
    values = transfer.measure(own, config)
    assert tuple(values) == transfer.tags(config) == ("transfer_linear", "transfer_finetune")
    x, test_x = encoder.features(train[0]), encoder.features(test[0])
    expected = linear_accuracy(x, torch.tensor(train[1]), test_x, torch.tensor(test[1]), classes=3, seed=3, epochs=20)
    assert values["transfer_linear"] == expected
    classify = fine_tune(encoder, *train, classes=3, config=config.finetune, seed=3, key="k")
    assert values["transfer_finetune"] == accuracy(classify(test[0]), test[1])
    assert transfer.tags(TransferConfig(by=("finetune",))) == ("transfer_finetune",)


def test_a_later_run_of_the_process_sees_the_images_that_are_there_then(tmp_path: Path) -> None:
    """Within a run they are those that were there when it began."""
    config = TransferConfig.model_validate({"data": {"name": "parquet", "path": str(tmp_path)}})
    for count in (20, 30):
        for split in ("train", "test"):
            written(tmp_path, split, larger(images(count, 0)))
        transfer.ready(config, 16)
        (found,) = transfer.others(config, 16).values()
        assert found is transfer.dataset(config, 16)
        assert (len(found.train), len(found.test)) == (count, count)


def test_a_transfer_without_data_or_labels_is_one_line_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^evaluation\.transfer\.data: found nothing; transfer needs another data set"):
        transfer.ready(TransferConfig(), 8)
    wrong = TransferConfig.model_validate({"data": {"name": "parquet", "path": str(tmp_path / "gone")}})
    with pytest.raises(UserError, match=r"^evaluation\.transfer\.data\.path: .*gone does not exist"):
        transfer.ready(wrong, 8)
    for split in ("train", "test"):
        written(tmp_path, split, (larger(images(20, 0))[0], np.full(20, -1)))
    blank = TransferConfig.model_validate({"data": {"name": "parquet", "path": str(tmp_path)}})
    with pytest.raises(UserError, match=r"^evaluation\.transfer\.data: found no train image with a label"):
        transfer.ready(blank, 8)
    written(tmp_path, "train", (larger(images(20, 0))[0], np.full(20, 2)))
    written(tmp_path, "test", (larger(images(20, 1))[0], np.full(20, 2)))
    with pytest.raises(
        UserError, match=r"^evaluation\.transfer\.data: found training images of 1 class in .*; transfer"
    ):
        transfer.ready(blank, 8)
