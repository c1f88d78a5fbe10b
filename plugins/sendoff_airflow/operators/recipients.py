"""The recipients that a task names, in a form that Airflow may show and store: without the rows themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sized
from pathlib import Path
from typing import Any

from airflow.sdk import ObjectStoragePath, XComArg
from airflow.sdk.definitions._internal.mixins import ResolveMixin

from sendoff.errors import AudienceError, SettingsError


class VerdictsOfLaunch(ResolveMixin):
    """The recipients of another launch with some verdicts, as an audience: ``VerdictsOfLaunch(key, ("missing",))``.

    The launch is reconciled first. Its holdout is not in the audience.

    :param launch_key: the launch, which may be an XCom or contain Jinja
    :param verdicts: the verdicts, such as ``missing``
    """

    def __init__(self, launch_key: Any, verdicts: Collection[str] = ("missing",)) -> None:
        self.launch_key = launch_key
        self.verdicts = (verdicts,) if isinstance(verdicts, str) else tuple(verdicts)

    def iter_references(self) -> Iterable[tuple[Any, str]]:
        """Return the XComs that this needs, so that Airflow finds the tasks before it."""
        return XComArg.iter_xcom_references(self.launch_key)

    def resolve(self, context: Any) -> VerdictsOfLaunch:
        """Return the same with its template rendered."""
        return VerdictsOfLaunch(context["task"].render_template(self.launch_key, context), self.verdicts)

    def __repr__(self) -> str:
        """Return what the rendered template shows."""
        return f"{type(self).__name__}({self.launch_key!r}, {self.verdicts!r})"


class _Unshown:
    """A value that Airflow neither shows nor stores as the text of a template: it may hold identifiers."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__}>"

    def digest(self) -> str:
        """Return a digest of the rows, or only the type of a value that may be read only once, or is not a table."""
        from sendoff.warehouse import table_of  # it imports pyarrow, which takes long

        rows = table_of(self.value) if isinstance(self.value, Sized) else None
        try:
            return rows.digest() if rows else repr(self)
        except AudienceError:
            return repr(self)


def is_hidden(given: Any) -> bool:
    """Check whether recipients are rows, which Airflow may not show."""
    return isinstance(given, _Unshown)


def described(given: Any) -> str:
    """Return a text that two tasks with the same recipients share: SQL, a path, or a digest of rows."""
    return given.digest() if is_hidden(given) else repr(given)


def shown(given: Any) -> Any:
    """Return recipients that a task names in the form that Airflow may show: SQL and paths as they are.

    Airflow sets a field again when it has rendered its template, and then shows and stores its text.
    """
    if isinstance(given, str) and given.endswith(".sql") and ("://" in given or given.startswith("/")):
        return _location(given)  # Airflow finds only files below the DAG's folder
    is_path = isinstance(given, Path | ObjectStoragePath)
    if given is None or is_path or isinstance(given, str | ResolveMixin | _Unshown):
        return given
    return _Unshown(given)


class HasRecipients:
    """An operator with recipients, in a field that Airflow may show."""

    @property
    def recipients(self) -> Any:
        """The recipients as Airflow may show them: SQL, a path, or an object that does not show its rows."""
        return self._recipients

    @recipients.setter
    def recipients(self, given: Any) -> None:
        self._recipients = shown(given)


def of_shown(given: Any, dag_folder: str) -> Any:
    """Return the recipients behind what :func:`shown` returned, or the location of their file.

    A relative path starts at ``dag_folder``, the folder of the DAG file.
    """
    if isinstance(given, _Unshown):
        return given.value
    if isinstance(given, Path) or (isinstance(given, str) and len(given.split()) == 1):
        return absolute(_location(given), dag_folder)
    return given


def _location(given: str | Path) -> Path | ObjectStoragePath:
    return ObjectStoragePath(given) if "://" in str(given) else Path(given)


def campaigns_in(folder: str, dag_folder: str) -> Path:
    """Return the folder of the campaigns that a task names. Raise SettingsError if it does not exist."""
    path = Path(dag_folder, folder)
    if not path.is_dir():
        raise SettingsError(f"campaigns: there is no folder {path}. Correct campaigns= in the DAG file.")
    return path


def absolute(path: Any, dag_folder: str) -> Any:
    """Return a path that a task names; a relative one starts at ``dag_folder``, the folder of the DAG file."""
    return Path(dag_folder, path) if isinstance(path, Path) else path
