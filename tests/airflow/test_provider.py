"""The registration of the provider and the plugin in Airflow."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import pytest
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection

from airflow import plugins_manager
from sendoff_airflow import operators
from sendoff_airflow.hooks.service_fields import ServiceFields
from sendoff_airflow.provider import get_provider_info

TYPES = {item["connection-type"]: item for item in get_provider_info()["connection-types"]}


def test_airflow_accepts_the_provider_info() -> None:
    manager = ProvidersManager()
    manager.initialize_providers_list()
    accepted = manager.providers[get_provider_info()["package-name"]].data
    assert {name: accepted[name] for name in get_provider_info()} == get_provider_info()


def test_each_operator_of_the_package_lacks_no_attribute() -> None:
    classes = {name: getattr(operators, name) for name in operators.__all__}
    missing = [
        (name, attribute)
        for name, each in classes.items()
        for attribute in inspect.get_annotations(each)
        if not hasattr(each, attribute)
    ]
    assert missing == []


@pytest.mark.parametrize("name", ["sendoff", "sendoff_ledger", "sendoff_receiver"])
def test_each_connection_type_leads_to_a_hook_that_agrees_with_it(name: str) -> None:
    module, _, class_name = TYPES[name]["hook-class-name"].rpartition(".")
    hook_class = getattr(import_module(module), class_name)
    assert hook_class.conn_type == name
    assert hook_class.hook_name == TYPES[name]["hook-name"]
    hook = Connection(conn_id="mine", conn_type=name).get_hook()
    assert type(hook) is hook_class
    assert getattr(hook, hook_class.conn_name_attr) == "mine"


def test_the_form_shows_each_field_that_is_read_and_no_other() -> None:
    form = _form("sendoff")
    assert form.extra_fields is not None
    read = re.findall(r'self\._(?:extra|text|flag)\("(\w+)"', inspect.getsource(ServiceFields))
    assert set(form.extra_fields) == ServiceFields.known == set(read)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_each_field_of_a_form_has_a_label_and_help(name: str) -> None:
    for field in (_form(name).extra_fields or {}).values():
        assert field["schema"]["title"]
        assert field["description"].endswith(".")


def test_the_standard_fields_are_called_by_what_they_are() -> None:
    standard = _form("sendoff").standard_fields
    assert standard is not None
    named = {"host": standard.host, "login": standard.login, "password": standard.password}
    assert {name: field and field.title for name, field in named.items()} == {
        "host": "Base URL",
        "login": "Client ID",
        "password": "Client secret",
    }
    assert all(field is not None and field.placeholder for field in named.values())


def test_airflow_hides_each_secret_field_of_a_saved_connection() -> None:
    from airflow.sdk._shared.secrets_masker import DEFAULT_SENSITIVE_FIELDS

    secret = {"private_key", "private_key_passphrase", "app_token"}
    assert secret <= ServiceFields.known
    assert all(any(part in name for part in DEFAULT_SENSITIVE_FIELDS) for name in secret)


def test_each_module_that_the_provider_names_can_be_imported() -> None:
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for integration in info[kind]:
            for module in integration["python-modules"]:
                import_module(module)


def test_the_plugin_is_found_by_its_entry_point_and_only_there() -> None:
    assert [point.value for point in entry_points(group="airflow.plugins", name="sendoff")] == [
        "sendoff_airflow.plugin:SendoffPlugin"
    ]
    plugins, errors = plugins_manager._get_plugins()
    assert errors == {}
    assert [plugin.name for plugin in plugins].count("sendoff") == 1


@pytest.mark.proof
@pytest.mark.parametrize("is_dag_processor", [True, False])
def test_only_a_dag_processor_imports_the_dag_factory_when_it_starts(is_dag_processor: bool) -> None:
    program = "import airflow.jobs.dag_processor_job_runner\n" * is_dag_processor + (
        "import sys\n"
        "from airflow.jobs.job import Job\n"
        "Job()\n"
        "assert 'sendoff_airflow.plugin' in sys.modules\n"
        "print('sendoff_airflow.dags' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(is_dag_processor)


def _form(name: str) -> Any:
    [meta] = [meta for meta in HookMetaService.hook_meta_data() if meta.connection_type == name]
    return meta
