"""A run's own code: files and modules that ``imports`` names."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rayfed_ssl.api.call_arguments import asked
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.table import Table
from rayfed_ssl.config import load, load_untrusted
from rayfed_ssl.extensions import gather, unload
from rayfed_ssl.extensions import load as add
from rayfed_ssl.methods import METHODS, flesd
from rayfed_ssl.records.tables import read_metrics
from rayfed_ssl.settings.files import dumped
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.testing.tiny import encoders, run_locally, tiny_run
from tests.places import ROOT
from tune.dealing import refusals
from tune.files import load as sweep_of
from tune.variants import from_file as variants_of

MINE = """
from typing import Literal
from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.methods import fedavg


class Config(fedavg.Config):
    name: Literal["{name}"] = "{name}"
    halves: int = {halves}


class Client(fedavg.Client[Config]):
    pass


ROW = Method(Config, Client, fedavg.Server, Info("mine", "weights"), "simclr", unlabelled, averages_targets=True)
METHODS = {{"{name}": ROW}}
"""


SEEN = ("own", "others", "kept")
WATCHED = """
    def perform(self, message):
        self.sent, self.kept = message["weights"], self.state.get("own", {})
        return super().perform(message)

    def fit(self):
        sent, now = (named(weights, self.network) for weights in (self.sent, self.weights))
        super().fit()
        self.metrics["kept"] = len(self.kept)
        self.metrics["own"] = all((now[name] == value).all() for name, value in self.kept.items())
        self.metrics["others"] = all((now[name] == sent[name]).all() for name in now.keys() - self.kept.keys())
"""


def written(folder: Path, name: str = "mine", halves: int = 2, text: str | None = None) -> Path:
    path = folder / "my_method.py"
    path.write_text(MINE.format(name=name, halves=halves) if text is None else text)
    return path


def test_a_file_beside_the_config_adds_a_method(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "run.yaml").write_text("imports: [my_method.py]\nmethod: {name: mine, halves: 3}\n")
    config = load(tmp_path / "run.yaml")
    assert config.method.halves == 3  # type: ignore[attr-defined]
    assert config.imports == ("my_method.py",)
    assert METHODS.origin("mine") == "imports: my_method.py"


def test_a_path_is_seen_from_its_file_or_on_the_command_line_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "work").mkdir()
    run = tmp_path / "configs/run.yaml"
    run.write_text("method: {name: fedsimclr}\n")
    beside = written(tmp_path / "configs", "beside")
    written(tmp_path / "work", "working")
    monkeypatch.chdir(tmp_path / "work")
    changes = ["imports=[my_method.py]", "method.name=working", "method.halves=2"]
    assert load(run, changes).method.name == "working"
    assert asked(run, {"imports": ["my_method.py"], "method": {"name": "working"}}).method.name == "working"
    (tmp_path / "sweep.yaml").write_text(
        "{base: configs/run.yaml, space: {train.batch_size: {grid: [8, 16]}}, metric: accuracy.knn}"
    )
    assert sweep_of(tmp_path / "sweep.yaml", changes).imports[0].source == (tmp_path / "work/my_method.py").read_text()
    (tmp_path / "sweep.yaml").write_text(
        "{base: configs/run.yaml, overrides: {imports: [work/my_method.py], method.name: working}, "
        "space: {train.batch_size: {grid: [8, 16]}}, metric: accuracy.knn}"
    )
    assert sweep_of(tmp_path / "sweep.yaml").imports[0].source == (tmp_path / "work/my_method.py").read_text()
    (tmp_path / "fight.yaml").write_text(
        "{base: configs/run.yaml, overrides: {imports: [work/my_method.py], data.name: digits}, variants: {working: }}"
    )
    assert variants_of(tmp_path / "fight.yaml").imports[0].source == (tmp_path / "work/my_method.py").read_text()
    run.write_text("imports: [my_method.py]\nmethod: {name: beside}\n")
    assert load(run).extensions[0].source == beside.read_text()
    (tmp_path / "work/my_method.py").unlink()
    with pytest.raises(UserError, match=r"imports: found '.*/work/my_method\.py'; .* cannot be read"):
        load(run, ["imports=[my_method.py]"])


@pytest.mark.long
def test_a_pickled_config_takes_its_code_along(tmp_path: Path) -> None:
    """As it does to drivers, client actors and trials, on whatever machine they are."""
    written(tmp_path)
    (tmp_path / "run.yaml").write_text("imports: [my_method.py]\nmethod: {name: mine}\n")
    (tmp_path / "config.pickle").write_bytes(pickle.dumps(load(tmp_path / "run.yaml")))
    (tmp_path / "my_method.py").unlink()
    code = (
        "import pickle, sys; config = pickle.load(open(sys.argv[1], 'rb')); "
        "from rayfed_ssl.methods import METHODS; "
        "assert isinstance(config.method, METHODS['mine'].config); print(config.extensions[0].name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "config.pickle")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "my_method.py", done.stderr


def test_a_run_folder_repeats_and_resumes_only_with_the_same_code(tmp_path: Path) -> None:
    written(tmp_path)
    changes = {"imports": ["my_method.py"], "train.rounds": 2}
    config = tiny_run("mine", changes, beside=tmp_path)
    lines: list[int] = []
    run_locally(config, tmp_path / "run", report=lambda p: lines.append(p.round), stopping=lambda: max(lines) >= 1)
    again = load(tmp_path / "run" / "config.yaml")  # the copy beside it
    assert dumped(again) == dumped(config)
    assert again.extensions == config.extensions
    assert f'"my_method.py": "{config.extensions[0].digest}"' in (tmp_path / "run" / "environment.json").read_text()
    written(tmp_path, halves=4)
    other = tiny_run("mine", {**changes, "method.halves": 2}, beside=tmp_path)
    with pytest.raises(UserError, match=r"cannot resume with other imports: my_method\.py differs"):
        run_locally(other, tmp_path / "run", resume=True)
    run_locally(again, tmp_path / "run", resume=True)
    assert encoders(tmp_path / "run")


@pytest.mark.long
def test_the_method_of_the_readme_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(from typing .*?METHODS = .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    written(tmp_path, text=code)
    run_locally(tiny_run("mine", {"imports": ["my_method.py"], "train.rounds": 2}, tmp_path), tmp_path / "mine")
    run_locally(tiny_run("fedsimclr", {"train.rounds": 2}, tmp_path), tmp_path / "fedavg")
    assert encoders(tmp_path / "mine") == encoders(tmp_path / "fedavg")


def test_the_client_of_the_page_on_extending_keeps_its_own_batch_norm(tmp_path: Path) -> None:
    """A round begins with the values of BatchNorm that the client's last round ended with, and the mean of others."""
    page = (ROOT / "docs/extending.md").read_text()
    (code,) = re.findall(r"```python\n(def train\(self, weights\):\n    mixed = .*?)```", page, re.DOTALL)
    method = MINE.format(name="mine", halves=2).replace("    pass\n", textwrap.indent(code, "    ") + WATCHED)
    written(tmp_path, text=f"from torch import nn\nfrom rayfed_ssl.base.weights import named\n{method}")
    changes = {"imports": ["my_method.py"], "train.rounds": 2, "evaluation.protocols": []}
    run_locally(tiny_run("mine", changes, tmp_path), tmp_path / "run")
    table = read_metrics(tmp_path / "run").to_pylist()
    found = {
        tag: {row["value"] for row in table if row["tag"] == f"client/{tag}" and row["round"] == 2} for tag in SEEN
    }
    assert found == {"own": {1.0}, "others": {1.0}, "kept": {5 * 4.0}}  # of four layers and the projector's


def test_a_method_whose_training_has_another_name_cannot_leave_plugins_out_silently(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(from typing .*?METHODS = .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    written(tmp_path, text=code.replace("def train(", "def update(").replace('mean("train"', 'mean("update"'))
    alone = {"imports": ["my_method.py"], "train.rounds": 1}
    run_locally(tiny_run("mine", alone, tmp_path), tmp_path / "alone")
    assert encoders(tmp_path / "alone")
    config = tiny_run("mine", {**alone, "plugins": [{"name": "feddecorr"}]}, tmp_path)
    with pytest.raises(
        RuntimeError, match="mine: clients were asked for 'update', but feddecorr needs the operation 'train'"
    ):
        run_locally(config, tmp_path / "with a plug-in")


STARTS = """
class Server(fedavg.Server):
    def start(self, cohort):
        super().start(cohort)
        cohort.ask("train", weights=self.weights)


ROW = Method(Config, Client, Server,"""


def test_replies_that_nobody_reads_at_the_start_end_the_run_before_its_first_file(tmp_path: Path) -> None:
    text = MINE.format(name="mine", halves=2).replace("ROW = Method(Config, Client, fedavg.Server,", STARTS.lstrip())
    written(tmp_path, text=text)
    config = tiny_run("mine", {"imports": ["my_method.py"]}, tmp_path)
    with pytest.raises(RuntimeError, match="mine: nobody read the replies of 'train'"):
        run_locally(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


ENCODER = """
from torch import nn

from rayfed_ssl.models import Family
from rayfed_ssl.models.base import Encoder


class Flat(Encoder):
    dim = {dim}

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 256, 6)

    def forward(self, images):
        return self.layer(images.flatten(1))


def build(config, image_size, channels=3):
    {body}


ENCODERS = {{"flat": Family(build, minimum=8)}}
"""
FLAT = {"imports": ["my_method.py"], "clients.encoders": "flat", "data.image_size": 16}


@pytest.mark.parametrize(
    ("body", "dim", "line"),
    [
        (
            "raise ZeroDivisionError('no\\nlayers')",
            6,
            r"'flat' \(imports: my_method\.py\) cannot be built for 3 x 16 x 16 \(ZeroDivisionError: no layers\); mend",
        ),
        ("return {}['layers']", 6, r"cannot be built for 3 x 16 x 16 \(KeyError: 'layers'\)"),
        (
            "return None",
            6,
            r"'flat' \(imports: my_method\.py\) gives NoneType; must be a rayfed_ssl\.models\.base\.Encoder",
        ),
        ("return Flat()", "'six'", r"gives an encoder with dim='six'; must be the number of its features, from 1 on"),
        ("return Flat()", 0, r"gives an encoder with dim=0; must be"),
        ("return Flat()", 7, r"gives \(2, 6\) for images \(2, 3, 16, 16\); must be \(2, 7\), by its dim"),
        (
            "made = Flat(); made.layer = nn.Linear(5, 6); return made",
            6,
            r"gives no features of images \(2, 3, 16, 16\) \(RuntimeError: .*mat1 and mat2 .*\); mend it",
        ),
        ("made = Flat(); made.forward = list; return made", 6, r"gives list for images \(2, 3, 16, 16\); must be"),
    ],
)
def test_an_encoder_of_ones_own_that_cannot_be_built_is_one_line_wherever_it_is_built(
    tmp_path: Path, body: str, dim: object, line: str
) -> None:
    written(tmp_path, text=ENCODER.format(body=body, dim=dim))
    changes = {**FLAT, "evaluation.protocols": ["knn", "angles"]}
    config = tiny_run("fedsimclr", changes, tmp_path)
    (told,) = refusals([config]).values()  # a sweep's, and a comparison's, check
    assert re.search(r"^clients\.encoders: .*" + line, told)
    assert told.isprintable()
    with pytest.raises(UserError, match=line) as error:
        run_locally(config, tmp_path / "out")
    assert str(error.value) == told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("flesd", {"method.representation": "backbone", "data.public.source": "share"}),
        ("fedlinked", {"data.tasks": [["0", "1"], ["2", "3"]], "data.partition": {"name": "iid"}, "clients.count": 2}),
        ("ssd", {"model.projector.dim": 6, "method.distillation": 1.0}),
    ],
)
def test_a_method_that_asks_for_an_encoders_size_asks_with_the_images_channels(
    tmp_path: Path, method: str, changes: dict[str, object]
) -> None:
    body = "made = Flat(); made.layer = {1: nn.Linear(256, 6)}[channels]; "  # takes grey images alone
    body += "made.scale = float(made.layer.weight.sum()); return made"  # and cannot be built without values
    written(tmp_path, text=ENCODER.format(body=body, dim=6))
    config = tiny_run(method, {**FLAT, "data.channels": 1, **changes}, tmp_path)
    assert refusals([config]) == {}
    if method == "flesd":
        assert flesd.dimension(config, "flat") == 6


def test_an_encoder_of_ones_own_runs_and_what_it_refuses_itself_is_left_as_it_says(tmp_path: Path) -> None:
    written(tmp_path, text=ENCODER.format(body="return Flat()", dim=6))
    changes = {**FLAT, "evaluation.protocols": ["knn", "angles"]}
    config = tiny_run("fedsimclr", {**changes, "train.rounds": 1}, tmp_path)
    assert refusals([config]) == {}
    run_locally(config, tmp_path / "out")
    own = "from rayfed_ssl.base.schema import UserError; raise UserError('model.width: found 1; flat has none')"
    written(tmp_path, text=ENCODER.format(body=own, dim=6))
    (told,) = refusals([tiny_run("fedsimclr", changes, tmp_path)]).values()
    assert told == "model.width: found 1; flat has none"


def test_a_strangers_run_folder_runs_nothing_unless_trusted(tmp_path: Path) -> None:
    written(tmp_path)
    run_locally(tiny_run("mine", {"imports": ["my_method.py"], "train.rounds": 1}, tmp_path), tmp_path / "run")
    copy = tmp_path / "run" / "my_method.py"
    copy.write_text(copy.read_text() + f"\nopen({str(tmp_path / 'was here')!r}, 'w').close()\n")
    with pytest.raises(UserError, match=r"found imports.*--trust-imports"):
        reevaluate(tmp_path / "run")
    with pytest.raises(UserError, match=r"found imports.*--trust-imports"):
        load_untrusted(tmp_path / "run" / "config.yaml")
    assert not (tmp_path / "was here").exists()
    assert reevaluate(tmp_path / "run", trust_imports=True)["accuracy"]["global"]
    assert (tmp_path / "was here").exists()


def test_another_file_of_that_name_is_not_written_over(tmp_path: Path) -> None:
    written(tmp_path)
    config = tiny_run("mine", {"imports": ["my_method.py"]}, tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "my_method.py").write_text("precious = True\n")
    with pytest.raises(UserError, match="write over"):
        run_locally(config, out)
    assert (out / "my_method.py").read_text() == "precious = True\n"


@pytest.mark.parametrize(
    ("entry", "text", "message"),
    [
        ("absent.py", None, r"imports: found 'absent.py'; .* cannot be read \(No such file or directory\)"),
        ("no.such.module", None, "no module of that name is installed"),
        ("not a module", None, "must be a path that ends in .py, or the name of a module"),
        ("my_method.py", "x = 1\ny = 1 / 0\n", r"cannot be imported, line 2 \(ZeroDivisionError: division by zero\)"),
        ("my_method.py", "def f(:\n", r"cannot be imported, line 1 \(SyntaxError"),
        (
            "my_method.py",
            "from rayfed_ssl.settings.blocks import MethodConfig\nclass A(MethodConfig):\n    share = 0.5\n",
            r"cannot be imported, line 2 \(PydanticUserError: A non-annotated attribute [^\n]*model_config[^\n]*\)$",
        ),
        ("my_method.py", "METHODS = [1]\n", "found METHODS of type list; must be a dict of names"),
        ("my_method.py", "ENCODERS = {1: 2}\n", "found ENCODERS of type dict; must be a dict of names"),
        ("my_method.py", "x = 1\n", "defines none of METHODS, OBJECTIVES, HEADS, ENCODERS, SOURCES, PARTITIONS, PROT"),
        ("my_method.py", MINE.format(name="fedsc", halves=1), "found method 'fedsc', which rayfed-ssl itself defines"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_one_line(entry: str, text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        written(tmp_path, text=text)
    for _ in range(2):  # what was refused is refused again
        with pytest.raises(UserError, match=message) as caught:
            tiny_run("fedsimclr", {"imports": [entry]}, tmp_path)
        assert "\n" not in str(caught.value)


def test_imports_are_a_list_of_names_each_once(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "deeper").mkdir()
    written(tmp_path / "deeper")
    with pytest.raises(UserError, match="must be a list"):
        tiny_run("fedsimclr", {"imports": "my_method.py"}, tmp_path)
    with pytest.raises(UserError, match=r"found my_method\.py twice"):
        tiny_run("fedsimclr", {"imports": ["my_method.py", "deeper/my_method.py"]}, tmp_path)


def test_a_module_that_was_edited_is_run_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, whose process imported the module before."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for halves in (2, 30):
        (tmp_path / "edited_method.py").write_text(MINE.format(name="mine", halves=halves))
        (extension,) = gather(["edited_method"], tmp_path)
        add([extension])
        assert METHODS["mine"].config.model_fields["halves"].default == halves
    unload(extension)
    sys.modules.pop("edited_method")


class Point:
    """An installed package's entry point."""

    value = "package:ROW"

    def __init__(self, name: str, row: object) -> None:
        self.name, self.row = name, row

    def load(self) -> object:
        return self.row


def test_the_name_of_a_row_is_guessed_whatever_the_case_of_its_letters() -> None:
    table = Table("number", "no.group", {"PI": 3, "other": 0})
    assert table.unknown("key", "pi") == "key: found 'pi'; must be one of PI, other; did you mean PI?"
    assert table.nearest("xyz") == table.nearest(3) == ""


def test_what_one_package_offers_wrongly_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [Point("aaa", 1), Point("mine", 2), Point("zzz", 3)]
    monkeypatch.setattr("rayfed_ssl.base.table.entry_points", lambda group: points)
    table = Table("number", "a.group", {"mine": 0})
    for _ in range(2):
        with pytest.raises(UserError, match="found number 'mine', which rayfed-ssl itself defines"):
            list(table)
    points.pop(1)
    assert sorted(table) == ["aaa", "mine", "zzz"]
