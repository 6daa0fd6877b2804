"""A run folder as an object, with its configuration, results, records and encoders."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, overload

import pyarrow as pa

from rayfed_ssl.api.arguments import Images, as_text, check_count, check_flag, in_one_word
from rayfed_ssl.api.call_arguments import as_changes, asked
from rayfed_ssl.api.encoder import ImageEncoder, encoder_of
from rayfed_ssl.api.executor import Executor
from rayfed_ssl.api.process_state import OnProgress, carry_out, surroundings
from rayfed_ssl.api.python_messages import python_words
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, load_untrusted
from rayfed_ssl.records.outcomes import FILE as OUTCOMES
from rayfed_ssl.records.summary_file import read_summary
from rayfed_ssl.records.tables import EVALUATION, OTHERS, read_communication, read_metrics
from rayfed_ssl.settings.files import of_run
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.storage.fetch import Remote, is_uri, renewing
from rayfed_ssl.terminal.progress import accuracy_text

OPEN_AGAIN = "rayfed_ssl.load reads it again when it has ended"  # a Run's copy of a run at a URI stays as it is


class Run:
    """A run in a folder or at a URI, finished or not. Files are read at each access, so the object shows the current
    state of a run that is still going on.

    ``folder`` is the run folder. For a run at a URI it is a copy without checkpoints, which is not updated and exists
    as long as this object; ``uri`` is the URI, or None.

    Raises:
        UserError: the configuration is damaged, or its ``imports`` have code that is not trusted.
    """

    def __init__(self, folder: Path, uri: str | None = None, *, trust_imports: bool = False) -> None:
        self.folder, self.uri = folder, uri
        self._trust_imports = trust_imports
        self._read = _version(self._file)
        self._config = load_untrusted(self._file, trust_imports=trust_imports)

    @property
    def _file(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def config(self) -> RunConfig:
        """The configuration in ``config.yaml``. It changes when the run is extended."""
        if (version := _version(self._file)) not in (None, self._read):
            with python_words():
                self._config = load_untrusted(self._file, trust_imports=self._trust_imports)
            self._read = version
        return self._config

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``: the accuracy of the last round, of the best round, of the untrained encoder and of raw
        pixels, bytes, epsilon and seconds. Raises UserError if the run has not ended.
        """
        if (found := read_summary(self.folder)) is None:
            raise UserError(f"{self.where}: found no summary.json; the run has not ended, resume() continues it")
        return found

    @property
    def where(self) -> str:
        """The URI, or the folder."""
        return self.uri or str(self.folder)

    @property
    def status(self) -> str:
        """complete, stopped or diverged; ``unfinished`` if the run has not ended."""
        return str((read_summary(self.folder) or {}).get("status", "unfinished"))

    @property
    def metrics(self) -> pa.Table:
        """All measurements as an Arrow table: round, client (null: the whole federation), tag, value, and wall_s
        (seconds since the start). If pandas is installed, ``.to_pandas()`` gives a DataFrame.
        """
        return read_metrics(self.folder)

    @property
    def communication(self) -> pa.Table:
        """All communication as an Arrow table: round, client, direction (up, down), operation, field, bytes."""
        return read_communication(self.folder)

    def encoder(self, client: int | str | None = None) -> ImageEncoder:
        """The encoder that the run ended with, in eval mode on the CPU.

        Args:
            client: whose encoder, by number or name; None: the global one, or that of the only client if there is no
                global one.
        Raises:
            UserError: the run has not ended, or has no such encoder; the text names the clients that have one.
        """
        with python_words():
            return encoder_of(self.folder, self.config, client)

    def evaluate(
        self,
        *protocols: str,
        data: Images | None = None,
        exclude_trained: bool = False,
        **settings: object,
    ) -> dict[str, Any]:
        """Measure the encoders again, by the given protocols, or by the run's own.

        Args:
            data: images other than the run's, as for ``evaluate --data``: a folder, a Parquet, CSV or .npz file,
                ``hub:OWNER/NAME``, or a block such as ``{"name": "parquet", "path": "x.parquet"}``; None: the run's.
            exclude_trained: whether test images of ``data`` that the run trained on are left out.
            settings: keys of ``evaluation``, with ``__`` for dots: ``linear__epochs=50``.
        Returns:
            The new content of ``evaluation.json``: ``accuracy`` is ``{encoder: {protocol: value}}``, ``untrained`` and
            ``pixels`` are the baselines, ``evaluation`` has the settings, and ``other data`` has the same for other
            images, by their title. With ``data``, it is the part on these images, and its key ``images`` says which
            they are, with notes on them. Earlier results of other protocols on the same images are included.
        Raises:
            UserError: there is no such protocol, a setting is not allowed, or the images are gone or none.
        """
        for protocol in protocols:
            as_text(protocol, "protocols", "names of protocols, each an argument of its own")
        check_flag(exclude_trained, "exclude_trained")
        data = None if data is None else in_one_word(data)
        changes = as_changes(settings, "evaluation")
        with python_words(), surroundings(Executor.local):
            renew = renewing(self.uri, self.folder, EVALUATION, OPEN_AGAIN)
            found = reevaluate(
                self.folder, protocols, changes,
                data=data, exclude_trained=exclude_trained, trust_imports=True, renew=renew,
            )  # fmt: skip
        if self.uri is not None:
            for name in (EVALUATION, OUTCOMES):
                if (self.folder / name).exists():
                    Remote(self.uri).put(self.folder / name, name)
        return found if data is None else dict(list(found[OTHERS].values())[-1])  # the newest stands last

    @overload
    def embed(
        self, data: Images, out: None = None, *, client: int | str | None = None, id_column: str | None = None,
        skip_bad: bool = False, on_note: Callable[[str], object] | None = None,
    ) -> pa.Table: ...  # fmt: skip

    @overload
    def embed(
        self, data: Images, out: str | os.PathLike[str], *, client: int | str | None = None,
        id_column: str | None = None, skip_bad: bool = False, overwrite: bool = False,
        on_note: Callable[[str], object] | None = None,
    ) -> Path: ...  # fmt: skip

    def embed(
        self,
        data: Images,
        out: str | os.PathLike[str] | None = None,
        *,
        client: int | str | None = None,
        id_column: str | None = None,
        skip_bad: bool = False,
        overwrite: bool = False,
        on_note: Callable[[str], object] | None = None,
    ) -> pa.Table | Path:
        """Compute the encoder's features of images: a table with a row per image, its id, its label if it has one, and
        its features.

        Args:
            data: the images, as for ``evaluate``; also a pattern of Parquet files.
            out: the Parquet file to write; None: the table is returned, and must fit into memory.
            client: whose encoder, by number or name; None: the global one.
            id_column: the column of ids in Parquet or CSV files; None: ``id``.
            skip_bad: whether images that cannot be decoded are left out.
            overwrite: whether an existing file is replaced.
            on_note: called after the last image, with a line for each note on the images, such as how those of 16 bits
                were scaled, and for each image that was left out.
        Returns:
            The table, or the file that was written.
        Raises:
            UserError: there are no such images or no such client, an image cannot be decoded, or the file exists.
        """
        from rayfed_ssl.api.run_exports import embedded  # imports the decoding of images

        return embedded(
            self.folder, self.uri, data, out, client=client, id_column=id_column, skip_bad=skip_bad,
            overwrite=overwrite, on_note=on_note,
        )  # fmt: skip

    def export(
        self,
        to: str,
        out: str | os.PathLike[str] | None = None,
        *,
        client: int | str | None = None,
        license: str = "unknown",
    ) -> Path:
        """Write the encoder with its transform and a model card, for programs that do not have rayfed-ssl.

        Args:
            to: the form, ``torch``, ``onnx``, ``torchscript`` or ``hub-folder``.
            out: the folder to write; by default ``exported/FORM`` in the run folder. For a run at a URI it must be
                given.
            client: whose encoder, by number or name; None: the global one.
            license: the license of the weights for the model card, such as ``apache-2.0``.
        Returns:
            The folder.
        Raises:
            UserError: there is no such form or client, packages are not installed, or the folder exists.
        """
        from rayfed_ssl.api.run_exports import exported  # imports torch.export, which takes a second

        return exported(self.folder, self.uri, to, out, client=client, licence=license)

    def leak(
        self,
        round: int | None = None,
        *,
        client: int | str | Iterable[int | str] | None = None,
        images: int = 1000,
        **moved: object,
    ) -> dict[str, Any]:
        """Measure how well a curious server can tell from a client's messages whether the client trained on an image.

        Repeats a round, and adds the findings to ``leak.json``. The run must hold images out (``evaluation.select``).

        Args:
            round: the round; None: the last finished one.
            client: whom to audit, one or several clients, by number or name; None: the first that has enough images.
            images: at most so many members are scored, and as many non-members.
            moved: where the run's images and files are now: ``data__path="elsewhere"``.
        Returns:
            The result of this audit, as in ``leak.json``: ``findings``, a row per client, field and score with ``auc``,
            ``low`` and ``high``; ``unaudited``, ``null_deviation`` and ``privacy``.
        Raises:
            UserError: no image was held out, there is no such client, the round is not finished, or the run is at a
                URI.
        """
        from rayfed_ssl.api.run_exports import audited  # imports the loop that repeats a round

        return audited(self.folder, self.uri, round, client=client, images=images, moved=moved)

    def report(self, *, images: bool = True) -> Path:
        """Write ``report.html``, a page that needs no network, and its figures. For a run at a URI, they are written
        into the local copy.

        Args:
            images: whether the run's images are read, for the map of representations and the neighbours.
        Returns:
            The page's path.
        Raises:
            UserError: the folder cannot be written to.
        """
        from rayfed_ssl.report.dispatch import report_of  # imports matplotlib and jinja2

        with python_words():
            return report_of(self.folder, images=images, trust_imports=True)

    def resume(
        self,
        rounds: int | None = None,
        *,
        executor: Executor | str = Executor.ray,
        progress: bool = True,
        on_progress: OnProgress | None = None,
    ) -> Run:
        """Continue the run from its newest checkpoint. With ``rounds``, it goes on to that many rounds, also if it is
        finished. The other arguments are those of ``rayfed_ssl.run``.

        Raises:
            UserError: the run has more rounds already, or its settings depend on the total number of rounds.
        """
        if rounds is not None:
            check_count(rounds, "rounds")
        with python_words():
            settings = asked(self.config, {} if rounds is None else {"train__rounds": rounds})
        where = carry_out(
            settings, self.where, resume=True, executor=executor, progress=progress, on_progress=on_progress
        )
        return load(where, trust_imports=True)

    def __repr__(self) -> str:
        """``Run(runs/demo: fedsimclr, complete, 20 of 20 rounds, knn 0.967)``."""
        summary = read_summary(self.folder) or {}
        status = summary.get("status", "unfinished")
        rounds, text = self.config.train.rounds, f"{self.config.method.name}, {status}"
        if status == "unfinished":
            return f"Run({self.where}: {text}, {rounds} rounds wanted)"
        last = "".join(f", {name} {accuracy_text(value)}" for name, value in summary["accuracy"].items())
        return f"Run({self.where}: {text}, {summary['rounds']} of {rounds} rounds{last})"


def _version(file: Path) -> tuple[int, ...] | None:
    """A value that differs between versions of a file; None if there is no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def load(path: str | os.PathLike[str], *, trust_imports: bool = False) -> Run:
    """The run in a folder, or at a URI that pyarrow can read (s3://, gs://, abfs://, hdfs://, file://).

    Args:
        trust_imports: whether to run the code of the run's ``imports``, which its folder contains.
    Raises:
        UserError: there is no run, its configuration is damaged, or its ``imports`` have code that is not trusted.
    """
    place = as_text(path, "load", "the path of a run folder, or a URI")
    if not is_uri(place):
        folder = Path(place).expanduser().absolute()
        of_run(folder, place)
        with python_words():
            return Run(folder, trust_imports=trust_imports)
    remote = Remote(place)
    folder = Path(tempfile.mkdtemp(prefix="rayfed-ssl-read-"))
    try:
        remote.fetch(folder)
        with python_words():
            found = Run(folder, remote.uri, trust_imports=trust_imports)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(found, shutil.rmtree, folder, True)
    return found
