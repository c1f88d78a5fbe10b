"""What a launch shows: its preview, its report and its verdicts, for notebooks, terminals and data frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sendoff.errors import SettingsError
from sendoff.figures import counted, counts_in_words, people_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from rich.console import RenderableType

    from sendoff.comparison import Comparison
    from sendoff.figures import LaunchStats
    from sendoff.launch import Preview
    from sendoff.ledger import SuppressionCount
    from sendoff.report import Document, SuppressionRows, VerdictRows
    from sendoff.states import Stage


class _Rendered:
    """An object with a document: HTML in a notebook, rich text in a terminal, plain text as ``str``.

    ``repr`` is one line without message texts, because it may appear in logs.
    """

    @cached_property
    def document(self) -> Document:
        """The document."""
        raise NotImplementedError

    def __str__(self) -> str:
        from sendoff.report import as_text

        return as_text(self.document)

    def __rich__(self) -> RenderableType:
        from sendoff.report import as_terminal

        return as_terminal(self.document)

    def _repr_html_(self) -> str:
        from sendoff.report import as_fragment

        return as_fragment(self.document)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython's protocol
        printer.text(str(self))


class LaunchPreview(_Rendered):
    """What a launch would send, to how many people, and whether its gates are open.

    ``figures``: the numbers. ``would_send``: whether it would be sent, after approval if it needs one.
    """

    def __init__(self, figures: Preview) -> None:
        self.figures = figures
        self.would_send = figures.would_send

    def __repr__(self) -> str:
        to = people_of(self.figures.people)
        return f"<preview of {self.figures.campaign}: {to}, {counted(self.figures.requests, 'request')}>"

    @cached_property
    def document(self) -> Document:
        """The preview as a document."""
        from sendoff.report import describe_preview

        return describe_preview(self.figures)

    def to_json(self) -> dict[str, Any]:
        """Return the preview as JSON values, without identifiers."""
        return self.figures.to_json()


class Report(_Rendered):
    """The report of a launch at one time: counts of everything that was sent, and of everything that came back.

    ``figures``: the numbers. ``comparisons``: the comparisons of its variants. ``stage``: the state of the launch, such
    as *waiting for responses*.
    """

    def __init__(
        self, figures: LaunchStats, comparisons: Sequence[Comparison] = (), stage: Stage | None = None
    ) -> None:
        self.figures = figures
        self.comparisons = comparisons
        self.stage = stage

    def __repr__(self) -> str:
        return f"<report of {self.figures.campaign}: {counts_in_words(self.figures.verdicts) or 'no one'}>"

    @cached_property
    def document(self) -> Document:
        """The report as a document."""
        from sendoff.report import describe_launch

        return describe_launch(self.figures, self.comparisons, self.stage)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        from sendoff.report import as_json

        return as_json(self.figures, self.comparisons, self.stage)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each verdict: ``verdict``, the number of ``people``, and their ``share`` of the audience.

        A number that was not measured is missing, and so is each share if the service chose the people. Raise
        SettingsError if pandas is not installed.
        """
        figures, whole = self.figures, self.figures.audience
        people = [
            figures.verdicts.get(verdict, 0) if figures.is_measured(verdict) else None
            for verdict in figures.known_verdicts
        ]
        share = [
            None if count is None or figures.is_chosen_by_service else count / whole if whole else 0.0
            for count in people
        ]
        frame = pandas().DataFrame({"verdict": list(map(str, figures.known_verdicts))})
        return frame.assign(people=pandas().array(people, "Int64"), share=pandas().array(share, "float64"))


class _Rows:
    """Rows as an Arrow stream that is built while it is read."""

    def __init__(self, rows: VerdictRows | SuppressionRows) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow batches."""
        return self._rows.batches()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self._rows.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a DataFrame. Raise SettingsError if pandas is not installed."""
        pandas()
        import pyarrow as pa

        return pa.table(self).to_pandas()

    def to_parquet(self, path: str | Path, *, replace: bool = False) -> int:
        """Write the rows to a Parquet file that only its owner can read, and return their number.

        Raise SettingsError if the file name does not end in ``.parquet``, if the file exists and ``replace`` is false,
        or if it cannot be written.
        """
        from sendoff.report import write_file

        return write_file(self._rows, Path(path), replace=replace, suffixes=(".parquet",))


class Verdicts(_Rows):
    """The verdicts of a launch, one row for each of its people, as an Arrow stream that is built while it is read.

    Libraries that read Arrow streams take this object, such as ``pyarrow.table(verdicts)``.
    The rows identify people, so protect them. ``counts``: the number of people for each verdict.
    """

    def __init__(self, rows: VerdictRows) -> None:
        super().__init__(rows)
        self.campaign = rows.figures.campaign
        self.counts = rows.expected

    def __len__(self) -> int:
        return sum(self.counts.values())

    def __repr__(self) -> str:
        return f"<verdicts of {self.campaign}: {counts_in_words(self.counts) or 'no one'}>"


class SuppressionEntries(_Rows):
    """The entries of the suppression list that are in force, one row each, as an Arrow stream.

    Libraries that read Arrow streams take this object, such as ``pyarrow.table(entries)``. The rows identify people, so
    protect them.
    """

    def __repr__(self) -> str:
        return "<entries of the suppression list>"


class Suppressions:
    """The sizes of the suppression list, without its recipients.

    ``counts``: for each scope, identifying column and source, the number of ``entries``. ``len()`` is the number of all
    entries. A recipient with entries in two scopes counts twice.
    """

    def __init__(self, counts: Sequence[SuppressionCount]) -> None:
        self.counts = tuple(counts)

    def __len__(self) -> int:
        return sum(each.entries for each in self.counts)

    def __repr__(self) -> str:
        return f"<suppression list: {counted(len(self), 'entry', 'entries')}>"

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each count: ``scope``, ``identified_by``, ``source`` and the number of ``entries``.

        Raise SettingsError if pandas is not installed.
        """
        columns = ("scope", "identified_by", "source", "entries")
        return pandas().DataFrame({name: [getattr(each, name) for each in self.counts] for name in columns})


def pandas() -> Any:
    """Return the module pandas. Raise SettingsError if it is not installed."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise SettingsError(
            "A DataFrame needs pandas, which is not installed. Run: pip install 'airflow-provider-sendoff[notebook]'"
        ) from None
    return pd
