"""The artifacts of a dbt project: on this machine, in an object store, or where an Airflow variable says."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import ObjectStoragePath, Variable

from sendoff.errors import SettingsError

_VARIABLE = "variable://"


def read_artifact(path: str) -> bytes:
    """Return the content of a file by its path or URL; ``variable://NAME/FILE`` is in the folder that a variable names.

    Raise OSError if it cannot be read, and SettingsError if the variable does not exist.
    """
    if path.startswith(_VARIABLE):
        name, _, file = path.removeprefix(_VARIABLE).partition("/")
        folder = Variable.get(name, default=None)
        if not folder:
            raise SettingsError(f"there is no variable {name}, which dbt.artifacts names; add it in Airflow")
        path = f"{str(folder).rstrip('/')}/{file}"
    return bytes(ObjectStoragePath(path).read_bytes()) if "://" in path else Path(path).read_bytes()
