"""Write a software bill of materials (CycloneDX JSON) of the Python packages in the images: ``make sbom``.

docker/requirements.txt says which packages the images install. Their licenses and dependencies come from the packages
of the same versions that are installed here.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "docker/requirements.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def locked(path: Path = LOCK) -> dict[str, str]:
    """Return the versions of the packages that the images install, by name."""
    lines = re.findall(r"^([\w.-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in lines}


def bill_of_materials(versions: dict[str, str]) -> Bom:
    """Return the bill of materials. Raise SystemExit if other versions are installed here."""
    found = {name: distribution(name) for name in versions}
    other = [f"{name} {each.version}" for name, each in found.items() if each.version != versions[name]]
    if other:
        raise SystemExit(f"{', '.join(other)}: not the versions in {LOCK.name}. Run make lock.")
    parts = {name: _component(each, ComponentType.LIBRARY) for name, each in found.items()}
    root = distribution(PROJECT["name"])
    bom = Bom(components=parts.values())
    bom.metadata.component = _component(root, ComponentType.APPLICATION)
    for each in (root, *found.values()):
        component = bom.metadata.component if each is root else parts[canonicalize_name(each.name)]
        bom.register_dependency(component, [parts[name] for name in _needed(each) if name in parts])
    return bom


def _component(each: Distribution, kind: ComponentType) -> Component:
    name, stated = canonicalize_name(each.name), next(_licenses(each), None)
    return Component(
        name=name,
        version=each.version,
        type=kind,
        purl=PackageURL("pypi", name=name, version=each.version),
        bom_ref=f"{name}=={each.version}",
        licenses=[LicenseFactory().make_from_string(stated)] if stated else (),
    )


def _licenses(each: Distribution) -> Iterator[str]:
    """Yield what a package states about its license, the clearest first."""
    fields = each.metadata
    yield from fields.get_all("License-Expression") or ()
    for classifier in fields.get_all("Classifier") or ():
        if classifier.startswith("License :: OSI Approved :: "):
            yield classifier.rpartition(" :: ")[2]
    # Some packages have the whole text there.
    yield from (text for text in fields.get_all("License") or () if "\n" not in text)


def _needed(each: Distribution) -> Iterable[str]:
    """Return the names of a package's requirements here, also those of its extras."""
    extras = ("", *(each.metadata.get_all("Provides-Extra") or ()))
    for line in each.requires or ():
        wanted = Requirement(line)
        if not wanted.marker or any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
            yield canonicalize_name(wanted.name)


def main() -> None:
    """Write the file that the command names."""
    file = Path(sys.argv[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(JsonV1Dot6(bill_of_materials(locked())).output_as_string(indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
