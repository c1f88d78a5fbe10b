"""The manifests for Kubernetes: they fit its schemas and this code, and their commands run as in a pod.

No cluster runs here. `kubectl kustomize` renders the folder. The receiver and the migration are started with the
command, settings, Secrets, user and read-only file system of their pods.

If SENDOFF_TEST_AIRFLOW_CHART is the folder of Airflow's Helm chart, `helm template` renders it with the values, and its
objects are checked too. The release workflow does that.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from sendoff.postbacks.server import _STOP_SECONDS
from sendoff.settings import Settings

from ..acceptance.cluster.composition import image_user, services
from ..ports import reserved_port
from ..waiting import PATIENCE, answers, until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker/kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
VALUES = yaml.safe_load((FOLDER / "values.yaml").read_text())
PAGE = (ROOT / "docs/operations/kubernetes.md").read_text(encoding="utf-8")
CHART = "SENDOFF_TEST_AIRFLOW_CHART"
VERSIONS = ("1.31", "1.37")  # of Kubernetes
SETTINGS = {f"SENDOFF_{name.upper()}{end}" for name in Settings.model_fields for end in ("", "_FILE")}
USER = image_user()[1]
# A mount namespace with one writable folder, and the user of the pod without its capabilities. One capability
# remains: to read this project and Python, wherever they are installed.
RIGHTS = "-all,+dac_read_search"
POD = (
    'mount --bind "$0" "$0" && mount -o remount,bind,ro / && '
    f"exec setpriv --reuid={USER} --regid={USER} --clear-groups --no-new-privs "
    f'--inh-caps={RIGHTS} --bounding-set={RIGHTS} --ambient-caps=+dac_read_search "$@"'
)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The objects of the folder, with the Secrets that docker/make-secrets creates."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl; on Debian: apt-get install kubernetes-client")
    folder = shutil.copytree(FOLDER, tmp_path_factory.mktemp("kubernetes") / "folder")
    subprocess.run([ROOT / "docker/make-secrets", folder / "secrets"], check=True)
    for connection in ("sendoff_default", "sendoff_warehouse"):
        (folder / "secrets" / connection).write_text("{}")
    done = subprocess.run(["kubectl", "kustomize", folder], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all mappings of a document; text under extraEnv and extraEnvFrom is YAML too."""
    if isinstance(tree, list):
        for each in tree:
            yield from nodes(each)
    elif isinstance(tree, dict):
        yield tree
        for name, value in tree.items():
            is_text = name in ("extraEnv", "extraEnvFrom") and isinstance(value, str)
            yield from nodes(yaml.safe_load(value) if is_text else value)


def references(tree: Any) -> Iterator[tuple[str, str, str | None]]:
    """Yield the kind, name and key of all Secrets and ConfigMaps that a document uses."""
    for node in nodes(tree):
        for field, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
            if field in node:
                yield kind, node[field]["name"], node[field]["key"]
        for field, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if field in node:
                yield kind, node[field]["name"], None
        if name := node.get("secretName"):
            yield "Secret", name, node.get("secretKey")
        for name in (value for field, value in node.items() if field.endswith("SecretName")):
            yield "Secret", name, None


def check_schema(each: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_objects_fit_the_schemas_of_kubernetes(objects: list[dict[str, Any]], version: str) -> None:
    for each in objects:
        check_schema(each, version)
    assert {each["kind"] for each in objects} > {"Deployment", "Job", "PodDisruptionBudget", "Secret"}
    receiver = named(objects, "Deployment", "receiver")
    receiver["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check_schema(receiver, version)
    del receiver["spec"]["template"]["spec"]["containers"][0]["readinesProbe"]


def test_the_settings_are_ones_that_the_code_reads(objects: list[dict[str, Any]]) -> None:
    settings = named(objects, "ConfigMap", "sendoff")["data"]
    assert settings.keys() <= SETTINGS
    assert settings.keys() == {
        name for name in services()["receiver-1"].environment if name.startswith("SENDOFF_")
    }
    files = {f"/etc/sendoff/{key}" for key in named(objects, "Secret", "sendoff")["data"]}
    assert {value for name, value in settings.items() if name.endswith("_FILE")} == files


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "receiver"), ("Job", "sendoff-migration")])
def test_a_pod_has_the_user_of_the_image_and_no_rights(
    objects: list[dict[str, Any]], kind: str, name: str
) -> None:
    """These are the rules of the Pod Security Standard "restricted", and the mounts that the settings need."""
    pod = named(objects, kind, name)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {each["mountPath"] for each in container["volumeMounts"]} == {"/etc/sendoff", "/tmp"}
    assert not pod["automountServiceAccountToken"]


def test_service_and_budget_select_the_receivers(objects: list[dict[str, Any]]) -> None:
    receiver = named(objects, "Deployment", "receiver")["spec"]
    labels = receiver["template"]["metadata"]["labels"]
    service = named(objects, "Service", "receiver")["spec"]
    [port] = receiver["template"]["spec"]["containers"][0]["ports"]
    budget = named(objects, "PodDisruptionBudget", "receiver")["spec"]
    policy = named(objects, "NetworkPolicy", "receiver")["spec"]
    assert service["selector"] == labels
    assert service["ports"][0]["targetPort"] == policy["ingress"][0]["ports"][0]["port"] == port["name"]
    assert [each["ports"][0]["port"] for each in policy["ingress"]][1:] == [9464]  # exporters._prometheus
    assert 4318 in [each["ports"][0]["port"] for each in policy["egress"]]  # OTLP
    assert budget["selector"]["matchLabels"] == policy["podSelector"]["matchLabels"] == labels
    assert budget["minAvailable"] < receiver["replicas"]


def test_a_receiver_has_the_time_to_stop_that_the_page_asks_for(objects: list[dict[str, Any]]) -> None:
    pod = named(objects, "Deployment", "receiver")["spec"]["template"]["spec"]
    page = (ROOT / "docs/reference/observability.md").read_text(encoding="utf-8")
    [wanted] = re.findall(r"`terminationGracePeriodSeconds` at (\d+) or more", page)
    [_, before] = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] >= int(wanted) > _STOP_SECONDS + int(before)


def test_an_upgrade_stops_everything_and_migrates_before_the_receivers_start(
    objects: list[dict[str, Any]],
) -> None:
    steps = PAGE.partition("A new version must not migrate")[2]
    commands = re.findall(r"`(kubectl (?:scale|delete|apply|wait) [^`]+)`", steps)
    assert commands == [
        "kubectl scale deployment --all --replicas 0",
        "kubectl delete job sendoff-migration --ignore-not-found",
        "kubectl apply -k docker/kubernetes -l 'app!=receiver'",
        "kubectl wait --for=condition=complete --timeout=1h job/sendoff-migration",
        "kubectl apply -k docker/kubernetes",
    ]
    later = [each["kind"] for each in objects if each["metadata"].get("labels", {}).get("app") == "receiver"]
    assert later == ["Deployment"]
    volumes = [VALUES["triggerer"], VALUES["workers"]["celery"]]  # with one, they would be StatefulSets
    assert not any(each["persistence"]["enabled"] for each in volumes)


def test_the_commands_of_people_run_in_a_pod_with_the_rights_of_a_worker() -> None:
    """The user of a receiver may only receive, if each part has a role of its own."""
    assert re.findall(r"`kubectl exec deployment/(\S+) -- sendoff (\w+)", PAGE) == [
        ("airflow-scheduler", command) for command in ("feeds", "pause", "resume")
    ]


def test_migration_and_receiver_run_with_what_their_pods_have(
    objects: list[dict[str, Any]], tmp_path: Path
) -> None:
    secrets, writable = tmp_path / "secrets", tmp_path / "writable"
    secrets.mkdir()
    writable.mkdir()
    writable.chmod(0o777)
    for name, value in named(objects, "Secret", "sendoff")["data"].items():
        (secrets / name).write_bytes(b64decode(value))
    (secrets / "ledger").write_text(f"sqlite:///{writable / 'ledger.db'}")
    settings = {
        name: value.replace("/etc/sendoff", str(secrets))
        for name, value in named(objects, "ConfigMap", "sendoff")["data"].items()
    }
    environment = {
        **settings,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(writable),  # /tmp in the pod
    }
    job = named(objects, "Job", "sendoff-migration")["spec"]["template"]["spec"]["containers"][0]
    subprocess.run([*as_in_a_pod(writable), *job["command"]], env=environment, check=True)

    container = named(objects, "Deployment", "receiver")["spec"]["template"]["spec"]["containers"][0]
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    [declared] = container["ports"]
    assert {probe["port"] for probe in probes} == {declared["name"]}
    command = container["command"]
    assert command[command.index("--port") + 1] == str(declared["containerPort"])
    assert command[command.index("--host") + 1] == "0.0.0.0"
    with reserved_port() as port:
        there = {"0.0.0.0": "127.0.0.1", str(declared["containerPort"]): str(port)}
        started = [there.get(word, word) for word in command]
        receiver = subprocess.Popen([*as_in_a_pod(writable), *started], env=environment)
        try:
            for probe in probes:
                until(lambda probe=probe: answers(f"http://127.0.0.1:{port}{probe['path']}"))
                assert receiver.poll() is None
            receiver.send_signal(signal.SIGTERM)
            assert receiver.wait(PATIENCE) == 0
        finally:
            receiver.kill()


def as_in_a_pod(writable: Path) -> list[str]:
    """Return the command prefix for a read-only file system and the user of the image, if this user may do that."""
    prefix = ["unshare", "--mount", "sh", "-c", POD, str(writable)]
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return []
    probe = [*prefix, "sh", "-c", f"test $(id -u) = {USER} && touch {writable}/a && ! touch {ROOT}/a"]
    return prefix if subprocess.run(probe, check=False, capture_output=True).returncode == 0 else []


def test_the_values_name_what_the_folder_creates(objects: list[dict[str, Any]]) -> None:
    keys = {(each["kind"], each["metadata"]["name"]): set(each.get("data", ())) for each in objects}
    used = list(references(VALUES))
    assert len(used) > 8
    for kind, name, key in used:
        assert key in keys[kind, name] | {None}, f"{kind} {name} has no {key}"
    variables = {each["name"] for each in yaml.safe_load(VALUES["extraEnv"])}
    composed = services()["api-server"].environment
    assert variables <= composed.keys() | {name.removesuffix("_CMD") for name in composed}
    connections = {each["secretKey"]: each["envName"] for each in VALUES["secret"]}
    assert connections == {name: f"AIRFLOW_CONN_{name.upper()}" for name in connections}


def test_all_files_name_one_image_and_one_version_of_airflow() -> None:
    [image] = KUSTOMIZATION["images"]
    assert VALUES["images"]["airflow"] == {"repository": image["newName"], "tag": image["newTag"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert image["newTag"] == project["version"]
    airflow = VALUES["airflowVersion"]
    assert f"apache-airflow=={airflow}" in (ROOT / "constraints.txt").read_text().splitlines()
    assert f"apache/airflow:{airflow}-python" in (FOLDER / "Dockerfile").read_text()
    [chart] = set(re.findall(r"--version (\S+)", PAGE + (FOLDER / "values.yaml").read_text()))
    assert f"apache-airflow/airflow {chart}" in (FOLDER / "values.yaml").read_text()


def test_no_secret_gets_into_the_repository_or_the_image() -> None:
    for name in (".gitignore", ".dockerignore"):
        assert re.search(r"^/?docker/kubernetes/secrets/?$", (ROOT / name).read_text(), re.MULTILINE), name


@pytest.fixture(scope="module")
def chart() -> list[dict[str, Any]]:
    """The objects of Airflow's Helm chart with the values."""
    folder = os.environ.get(CHART)
    if not folder:
        pytest.skip(f"needs {CHART}: the folder of Airflow's Helm chart, from `helm pull --untar`")
    command = ["helm", "template", "airflow", folder, "--namespace", KUSTOMIZATION["namespace"]]
    done = subprocess.run(
        [*command, "--values", FOLDER / "values.yaml"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def test_the_chart_is_the_one_that_the_page_installs() -> None:
    if not (folder := os.environ.get(CHART)):
        pytest.skip(f"needs {CHART}")
    version = yaml.safe_load((Path(folder) / "Chart.yaml").read_text())["version"]
    assert f"--version {version}" in PAGE


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_chart_makes_of_the_values_fits_the_schemas(
    chart: list[dict[str, Any]], version: str
) -> None:
    assert len(chart) > 20
    for each in chart:
        check_schema(each, version)


def test_what_the_chart_makes_of_the_values_uses_our_secrets_settings_and_campaigns(
    chart: list[dict[str, Any]], objects: list[dict[str, Any]]
) -> None:
    known = {(each["kind"], each["metadata"]["name"]) for each in [*chart, *objects]}
    assert {(kind, name) for kind, name, _ in references(chart)} <= known
    worker = named(chart, "Deployment", "airflow-worker")["spec"]["template"]["spec"]
    [container] = [each for each in worker["containers"] if each["name"] == "worker"]
    assert {"configMapRef": {"name": "sendoff"}} in container["envFrom"]
    assert {each["envName"] for each in VALUES["secret"]} <= {each["name"] for each in container["env"]}
    assert {"/etc/sendoff", "/opt/airflow/dags"} <= {each["mountPath"] for each in container["volumeMounts"]}
    assert worker["terminationGracePeriodSeconds"] == 300
    settings = named(chart, "ConfigMap", "airflow-config")["data"]["airflow.cfg"]
    assert "dags_folder = /opt/airflow/dags/repo/dags" in settings
    assert not any(each["kind"] == "Job" and "user" in each["metadata"]["name"] for each in chart)
