"""The vision transformer and the decoder of masked patches, against layer-by-layer references."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import EncoderBlock

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import forked
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import ENCODERS, Family, ModelConfig, PatchEncoder, build_encoder, build_network, load_exported
from rayfed_ssl.models.base import chosen, patches
from rayfed_ssl.models.vit import PatchDecoder, VisionTransformer, sine_positions
from rayfed_ssl.testing.tiny import measured, run_locally, tiny_run
from tests.tiny import OWN

close = torch.testing.assert_close
SMALL = ModelConfig.model_validate({"patch_decoder": {"dim": 12, "layers": 2, "heads": 3}})


@pytest.fixture(autouse=True)
def _addressed_randomness() -> Iterator[None]:
    with forked("tests", "vit"):
        yield


def stirred(module: nn.Module) -> nn.Module:
    """With values everywhere, also in biases and normalisation, in double precision."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module.double()


def small(channels: int = 3) -> VisionTransformer:
    made = stirred(VisionTransformer(dim=12, layers=2, heads=3, patch=4, channels=channels))
    assert isinstance(made, VisionTransformer)
    return made


# -- references --------------------------------------------------------------------------------------------------------


def normalised(x: Tensor, layer: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.weight + layer.bias


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return x @ layer.weight.T + layer.bias


def attention(x: Tensor, layer: nn.MultiheadAttention) -> Tensor:
    """Dosovitskiy et al. 2021, appendix A, head by head."""
    assert isinstance(layer.in_proj_weight, Tensor)
    assert layer.in_proj_bias is not None
    q, k, v = (x @ layer.in_proj_weight.T + layer.in_proj_bias).chunk(3, dim=-1)
    width = x.shape[-1] // layer.num_heads
    heads = []
    for h in range(layer.num_heads):
        part = slice(h * width, (h + 1) * width)
        weights = (q[..., part] @ k[..., part].mT / math.sqrt(width)).exp()
        heads.append(weights / weights.sum(-1, keepdim=True) @ v[..., part])
    return linear(torch.cat(heads, dim=-1), layer.out_proj)


def transformed(x: Tensor, blocks: nn.Sequential) -> Tensor:
    *layers, last = blocks
    for layer in layers:
        x = x + attention(normalised(x, layer.ln_1), layer.self_attention)
        inner = linear(normalised(x, layer.ln_2), layer.mlp[0])
        x = x + linear(inner * (1 + torch.erf(inner / math.sqrt(2))) / 2, layer.mlp[3])
    return normalised(x, last)


def position(row: int, column: int, width: int) -> list[float]:
    """Sines and cosines of the column, then of the row, at width/4 frequencies."""
    quarter = width // 4
    angles = [[place / 10_000 ** (i / quarter) for i in range(quarter)] for place in (column, row)]
    return [wave(angle) for of in angles for wave in (math.sin, math.cos) for angle in of]


# -- patches and positions ---------------------------------------------------------------------------------------------


def test_patches_are_cut_row_by_row_and_hold_channel_by_channel() -> None:
    images = torch.arange(2 * 3 * 6 * 6.0).reshape(2, 3, 6, 6)
    cut = patches(images, 2)
    assert cut.shape == (2, 9, 12)
    for row in range(3):
        for column in range(3):
            square = images[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert torch.equal(cut[:, 3 * row + column], square.flatten(1))
    with pytest.raises(RuntimeError):
        patches(images, 4)


def test_chosen_rows_are_each_images_own() -> None:
    rows, numbers = torch.randn(3, 5, 2), torch.tensor([[4, 0], [1, 1], [2, 3]])
    assert torch.equal(chosen(rows, numbers), torch.stack([rows[i, numbers[i]] for i in range(3)]))


@pytest.mark.parametrize(("grid", "width"), [(2, 4), (3, 12), (8, 192)])
def test_positions_are_sines_and_cosines_of_column_and_row(grid: int, width: int) -> None:
    expected = torch.tensor([position(row, column, width) for row in range(grid) for column in range(grid)])
    close(sine_positions(grid, width, torch.device("cpu")), expected, rtol=0, atol=1e-5)


# -- encoder -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("training", [True, False])
def test_features_are_those_of_a_transformer_written_out(channels: int, training: bool) -> None:
    encoder, images = small(channels).train(training), torch.randn(2, channels, 12, 12, dtype=torch.double)
    kernel = encoder.embedding
    embedded = torch.stack(
        [
            torch.einsum(
                "bcyx,wcyx->bw", images[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4], kernel.weight
            )
            + kernel.bias
            + torch.tensor(position(row, column, 12))
            for row in range(3)
            for column in range(3)
        ],
        dim=1,
    )
    expected = transformed(embedded, encoder.blocks)
    close(encoder.tokens(images), expected, rtol=1e-5, atol=1e-5)
    close(encoder(images), expected.mean(1), rtol=1e-5, atol=1e-5)
    shown = torch.tensor([[7, 2, 0], [3, 4, 8]])
    visible = torch.stack([embedded[i, shown[i]] for i in range(2)])
    close(encoder.tokens(images, shown), transformed(visible, encoder.blocks), rtol=1e-5, atol=1e-5)


def test_it_is_built_in_the_published_sizes() -> None:
    with torch.device("meta"):
        encoder = build_encoder("vit_tiny", ModelConfig(), 32)
    assert isinstance(encoder, VisionTransformer)
    assert (encoder.dim, encoder.patch, len(encoder.blocks)) == (192, 4, 12 + 1)
    assert [part.num_heads for part in encoder.modules() if isinstance(part, EncoderBlock)] == [3] * 12


def test_nothing_is_read_of_patches_that_are_not_shown() -> None:
    encoder = build_encoder("vit_tiny", ModelConfig(width=0.1), 16)
    assert isinstance(encoder, PatchEncoder)
    images, shown = torch.randn(2, 3, 16, 16, requires_grad=True), torch.tensor([[5, 0, 10], [15, 3, 6]])
    tokens = encoder.tokens(images, shown)
    tokens.square().sum().backward()
    assert images.grad is not None
    read = patches(images.grad, 4).abs().sum(-1) > 0
    assert [row.nonzero().flatten().tolist() for row in read] == [[0, 5, 10], [3, 6, 15]]
    other = images.detach().clone()
    for i in range(2):
        for number in {*range(16)} - {*shown[i].tolist()}:
            row, column = divmod(number, 4)
            other[i, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 100.0
    assert torch.equal(encoder.tokens(other, shown), tokens)
    other[0, 0, 4, 4] += 1  # in patch 5
    assert not torch.equal(encoder.tokens(other, shown), tokens)


def test_all_patches_shown_in_another_order_are_the_same_tokens() -> None:
    encoder, images = small(), torch.randn(2, 3, 16, 16, dtype=torch.double)
    order = torch.stack([torch.randperm(16) for _ in range(2)])
    close(encoder.tokens(images, order), chosen(encoder.tokens(images), order))


def test_initial_values_are_xaviers() -> None:
    network = build_network("vit_tiny", SMALL, 16, heads={"patch_decoder"})
    linear = {name: m for name, m in network.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    for layer in linear.values():
        outputs, inputs = layer.weight.flatten(1).shape
        bound = math.sqrt(6 / (inputs + outputs))
        assert layer.weight.abs().max() <= bound
        if layer.weight.numel() > 1000:
            assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert layer.bias is not None
        assert not layer.bias.any()
    assert len(linear) == 1 + 3 * 12 + 2 + 3 * 2
    decoder = build_network("vit_tiny", ModelConfig(), 16, heads={"patch_decoder"}).patch_decoder
    assert isinstance(decoder, PatchDecoder)
    assert decoder.mask.std().item() == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_are_the_same_to_the_bit(threads: int) -> None:
    encoder = build_encoder("vit_tiny", ModelConfig(width=0.5), 32)
    images, found = torch.randn(16, 3, 32, 32), []
    torch.set_num_threads(threads)
    for _ in range(3):
        encoder.zero_grad()
        encoder(images).square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


# -- decoder -----------------------------------------------------------------------------------------------------------


def test_the_decoder_is_the_one_written_out() -> None:
    """Here tokens are put back to where their patches lie, as the authors' code does."""
    decoder = PatchDecoder(20, SMALL, patch=2, channels=3)
    stirred(decoder)
    order, tokens = torch.stack([torch.randperm(9) for _ in range(2)]), torch.randn(2, 4, 20, dtype=torch.double)
    found = decoder(tokens, order)
    assert found.shape == (2, 5, 12)
    known = linear(tokens, decoder.embedding)
    for i in range(2):
        placed = decoder.mask.repeat(9, 1)
        for k in range(4):
            placed[order[i, k]] = known[i, k]
        placed = placed + torch.tensor([position(*divmod(n, 3), 12) for n in range(9)])
        pixels = linear(transformed(placed[None], decoder.blocks), decoder.pixels)[0]
        close(found[i], pixels[order[i, 4:]], rtol=1e-5, atol=1e-5)


# -- in runs -----------------------------------------------------------------------------------------------------------


WITH_VIT: dict[str, dict[str, object]] = {
    "fedu": {"method.divergence": "paper"},  # EasyFL's measures convolutions
    "fedema": {"method.divergence": "paper"},
    "ssd": {"model.projector.dim": 48},  # as many as it has features
}


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_it(method: str, tmp_path: Path) -> None:
    changes = {"clients.encoders": "vit_tiny", "model.patch": 2, "model.width": 0.1, "train.local_steps": 2}
    config = tiny_run(method, {**OWN.get(method, {}), **changes, **WITH_VIT.get(method, {}), "train.rounds": 1})
    summary = run_locally(config, tmp_path / "run")
    assert summary["status"] == "complete"
    assert all(math.isfinite(value) for value in measured(tmp_path / "run").values())
    encoder = load_exported(
        tmp_path / "run", *([] if (tmp_path / "run/encoder/global.json").exists() else ["client-00000"])
    )
    assert isinstance(encoder, VisionTransformer) or method in ("flesd", "flesd_cc", "fedmkd")  # a student's


class Averages(PatchEncoder):
    """Somebody's own: a linear layer of each patch by itself."""

    def __init__(self, patch: int, channels: int) -> None:
        super().__init__()
        self.patch, self.dim = patch, 8
        self.layer = nn.Linear(channels * patch**2, 8)

    def tokens(self, images: Tensor, shown: Tensor | None = None) -> Tensor:
        rows = patches(images, self.patch)
        tokens: Tensor = self.layer(rows if shown is None else chosen(rows, shown))
        return tokens


@pytest.fixture
def theirs() -> Iterator[None]:
    build = Family(lambda config, image_size, channels: Averages(4, channels), minimum=8, patch=lambda config: 4)
    wrong = Family(lambda config, image_size, channels: Averages(2, channels), minimum=8, patch=lambda config: 4)
    for name, family in {"averages": build, "mistaken": wrong}.items():
        ENCODERS.add(name, family, "a test")
    yield
    ENCODERS.remove("a test")


@pytest.mark.usefixtures("theirs")
def test_somebodys_own_encoder_of_patches_is_trained(tmp_path: Path) -> None:
    changes = {**OWN["fedmae"], "clients.encoders": "averages", "model.patch": None, "train.rounds": 1}
    assert run_locally(tiny_run("fedmae", changes), tmp_path / "run")["status"] == "complete"
    with pytest.raises(
        UserError, match=r"^data\.image_size: found 10; encoder 'averages' cuts images into patches of 4 px"
    ):
        build_encoder("averages", ModelConfig(), 10)
    with pytest.raises(
        UserError, match=r"gives Averages; must be a rayfed_ssl\.models\.PatchEncoder with patch=4, as its"
    ):
        build_encoder("mistaken", ModelConfig(), 8)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "patch"), [(30, None), (32, 5), (8, 8), (8, 16)])
def test_images_that_are_no_whole_number_of_patches_are_refused(size: int, patch: int | None) -> None:
    side = patch or 4
    line = (
        f"data.image_size: found {size}; encoder 'vit_tiny' cuts images into patches of {side} px; allowed: a multiple "
        f"of {side} from {2 * side} on"
    )
    with pytest.raises(UserError) as refused:
        build_encoder("vit_tiny", ModelConfig(patch=patch), size)
    assert str(refused.value) == line


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("model.patch", 1, "model.patch: found 1; must be at least 2"),
        ("model.patch_decoder.dim", 6, "model.patch_decoder.dim: found 6; must be a multiple of 4"),
        ("model.patch_decoder.heads", 5, "model.patch_decoder.heads: found 5; must divide dim=8"),
    ],
)
def test_sizes_that_do_not_fit_are_one_line(key: str, value: int, line: str) -> None:
    with pytest.raises(UserError) as refused:
        tiny_run("fedmae", {**OWN["fedmae"], key: value})
    assert str(refused.value) == line


def test_a_network_with_another_encoder_has_no_patches() -> None:
    network = build_network("small_cnn", ModelConfig(), 16, heads=())
    with pytest.raises(RuntimeError, match=r"^encoder 'small_cnn' cannot be shown some of an image's patches$"):
        _ = network.patch_encoder
    with pytest.raises(ValueError, match="needs an encoder that sees images in patches"):
        build_network("small_cnn", ModelConfig(), 16, heads={"patch_decoder"})
