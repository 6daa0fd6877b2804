"""The notebooks under examples/ run as they are, and hold no outputs; a kernel's interrupt stops a run."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rayfed_ssl
from tests.places import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a kernel that is this interpreter."""
    pytest.importorskip("nbclient", reason="nbclient is not installed (extra dev)")
    kernelspec = pytest.importorskip("ipykernel.kernelspec", reason="ipykernel is not installed (extra dev)")
    place = tmp_path_factory.mktemp("jupyter")
    kernelspec.write_kernel_spec(place / "kernels" / "here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(place))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(place))
        patch.setenv("IPYTHONDIR", str(place / "ipython"))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
        yield "here"


def test_there_are_notebooks_and_none_holds_outputs() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, kernel: str, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "examples").mkdir()
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path / "examples")}}
    NotebookClient(notebook, timeout=280, kernel_name=kernel, resources=where).execute()
    texts = [text for cell in notebook.cells if cell.cell_type == "code" for text in told(cell.outputs)]
    assert not any("\x1b[" in text or "Traceback" in text for text in texts)
    assert any("round 2/" in text for text in texts) == (path.stem == "digits")  # plain lines, one a round
    runs = {
        "digits": ("runs/digits", "Run("),
        "methods": ("runs/methods/trial-00002", "halfway"),
    }
    folder, shown = runs[path.stem]
    run = rayfed_ssl.load(tmp_path / "examples" / folder, trust_imports=True)
    assert run.status == "complete"
    accuracy = f"{run.summary['accuracy']['knn']:.3f}"
    assert any(shown in text and accuracy in text for text in texts)


def told(outputs: list[dict[str, object]]) -> Iterator[str]:
    """The texts among a cell's outputs."""
    for output in outputs:
        if output["output_type"] == "stream":
            yield str(output["text"])
        elif isinstance(data := output.get("data"), dict):
            yield from (str(text) for kind, text in data.items() if kind.startswith("text/"))


ENDLESS = """
import rayfed_ssl
run = rayfed_ssl.run(
    {"method": {"name": "fedsimclr"}, "data.limit": 60, "data.image_size": 8, "clients.count": 2, "model.width": 0.25,
     "augment.preset": "digits", "train": {"rounds": 1000000, "batch_size": 16}},
    executor="local", out="run", evaluation={"protocols": [], "every": 0}, checkpoint__every=100000,
)
print("status:", run.status)
"""


@pytest.mark.long
def test_a_kernels_interrupt_stops_after_the_round(kernel: str, tmp_path: Path) -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name=kernel, cwd=str(tmp_path), startup_timeout=120)
    try:
        client.execute(ENDLESS)
        text, interrupted, until = "", False, time.monotonic() + 200
        while "status:" not in text:
            assert time.monotonic() < until, text[-1000:]
            message = client.get_iopub_msg(timeout=200)
            assert message["msg_type"] != "error", message["content"]
            if message["msg_type"] == "stream":
                text += message["content"]["text"]
            if "round 2/" in text and not interrupted:
                interrupted = True
                manager.interrupt_kernel()
        assert "stopping after this round, with a checkpoint" in text
        assert "status: stopped" in text
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert rayfed_ssl.load(tmp_path / "run").summary["rounds"] >= 2
    assert list((tmp_path / "run/checkpoints").glob("round-*/complete.json"))
