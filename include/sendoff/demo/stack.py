"""All processes of the demo, and the campaign that runs through them."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

from sendoff.campaign import CampaignFolder
from sendoff.demo.airflow import (
    PASSWORD,
    USER,
    Airflow,
    AirflowApi,
    Task,
    clean_environment,
    command,
    has_failed,
)
from sendoff.demo.options import DemoError, Options
from sendoff.demo.processes import Process, Supervisor, answers
from sendoff.demo.progress import ProgressDisplay
from sendoff.demo.service import Account, LocalService
from sendoff.demo.verification import VerificationResult, device_records, verify
from sendoff.demo.warehouse import export_directory, make_warehouse
from sendoff.demo.workspace import Workspace
from sendoff.figures import LaunchStats
from sendoff.ledger import Ledger
from sendoff.postbacks import reconcile_launch
from sendoff.report import as_picture, as_terminal, describe_launch

LONGEST_RUN = 900.0  # seconds


class DemoStack:
    """The warehouse, the service, the receiver, Airflow, and the ledger of one demo."""

    def __init__(
        self,
        options: Options,
        workspace: Workspace,
        folder: CampaignFolder,
        supervisor: Supervisor,
        ledger: Ledger,
        progress: ProgressDisplay,
    ) -> None:
        self.supervisor = supervisor
        self.service = LocalService(workspace.service, options.service_port)
        self.airflow = Airflow(workspace.airflow, options.dags.absolute(), options.airflow_port)
        self._options = options
        self._workspace = workspace
        self._folder = folder
        self._ledger = ledger
        self._progress = progress
        self._secrets = [secrets.token_hex(32), secrets.token_hex(32)]

    def run_campaign(self) -> tuple[LaunchStats, VerificationResult]:
        """Set everything up, run the campaign's DAG to its end, and compare the ledger with the service's record."""
        migration = self.airflow.migrate(self.supervisor)  # takes the longest, so it runs beside the rest
        self._make_warehouse()
        account = self._open_service()
        self._open_receiver()
        api = self._open_airflow(migration, account)
        self._run_dag(api)
        return self._conclude()

    def _make_warehouse(self) -> None:
        self._progress.doing("making the warehouse")
        warehouse = make_warehouse(
            self._workspace.warehouse,
            customers=self._options.customers,
            seed=self._options.seed,
            today=datetime.now(UTC).date(),
        )
        export_directory(self._workspace.warehouse, self._workspace.devices)
        self._progress.done("warehouse", f"{warehouse}")

    def _open_service(self) -> Account:
        self._progress.doing("starting the messaging service")
        self.service.start(self.supervisor)
        account = self.service.open_account(self.supervisor)
        self._secrets += [account.client_secret, account.app_token]
        devices = self.service.import_devices(self.supervisor, self._workspace.devices)
        self._progress.done("service", f"{self.service.address}, with {devices:,} devices in its directory")
        return account

    def _open_receiver(self) -> None:
        self._ledger.migrate()
        port = str(self._options.receiver_port)
        line = [command("sendoff"), "receiver", "--host", "127.0.0.1", "--port", port]
        self.supervisor.start(
            "receiver",
            line,
            {**clean_environment(), **self._settings()},
            ready=lambda: answers(f"{self._receiver}/healthz"),
        )
        self._progress.done("receiver", f"{self._receiver}, with a migrated ledger")

    def _open_airflow(self, migration: Process, account: Account) -> AirflowApi:
        self._progress.doing("starting Airflow")
        migration.finish()
        self.airflow = replace(self.airflow, variables={**self._settings(), **self._connections(account)})
        self.airflow.start(self.supervisor)
        api = AirflowApi(self.airflow.address)
        self.supervisor.wait_until(api.healthy, "Airflow is healthy")
        api.log_in()
        self.supervisor.wait_until(
            lambda: api.has_dag(self._folder.name), f"Airflow has read the DAG {self._folder.name}"
        )
        if errors := api.plugin_errors():
            raise DemoError(f"Airflow cannot import a plugin: {errors[0]}")
        self._progress.done("airflow", f"{self.airflow.address}, user {USER}, password {PASSWORD}")
        return api

    @property
    def _receiver(self) -> str:
        return f"http://127.0.0.1:{self._options.receiver_port}"

    def _settings(self) -> dict[str, str]:
        return {
            "SENDOFF_LEDGER_URL": self._workspace.ledger_url,
            "SENDOFF_PUBLIC_URL": self._receiver,
            "SENDOFF_POST_BACK_SECRETS": self._secrets[0],
            "SENDOFF_ERASURE_SECRET": self._secrets[1],
            "SENDOFF_MACHINE_OPEN_SECONDS": "0",  # the local service opens messages sooner than people
        }

    def _connections(self, account: Account) -> dict[str, str]:
        campaign = self._folder.campaign
        service = {
            "conn_type": "sendoff",
            "host": self.service.address,
            "login": account.client_id,
            "password": account.client_secret,
            "extra": {"grant": "client_credentials", "app_token": account.app_token},
        }
        warehouse = {"conn_type": "sqlite", "host": str(self._workspace.warehouse)}
        return {
            f"AIRFLOW_CONN_{campaign.connection.upper()}": json.dumps(service),
            f"AIRFLOW_CONN_{campaign.warehouse.upper()}": json.dumps(warehouse),
        }

    def _run_dag(self, api: AirflowApi) -> None:
        dag = self._folder.name
        run = api.trigger(dag, {"send_late": True})  # the newest period may have ended a week ago
        deadline = time.monotonic() + LONGEST_RUN
        while (state := api.state(dag, run)) in {"queued", "running"}:
            if time.monotonic() > deadline:
                raise DemoError(
                    f"the DAG did not end within {LONGEST_RUN:.0f} seconds; see {self._workspace.logs}"
                )
            self.supervisor.check()
            tasks = api.tasks(dag, run)
            if any(map(has_failed, tasks)):
                raise DemoError(self._failure(api, run, tasks))
            self._progress.doing(self._run_progress(tasks))
            time.sleep(1)
        if state != "success":
            raise DemoError(self._failure(api, run, api.tasks(dag, run)))
        self._progress.done("dag", f"{dag}, run {run}")

    def _run_progress(self, tasks: list[Task]) -> str:
        running = sorted({task.name for task in tasks if task.state in {"running", "deferred"}})
        parts = [f"task {' and '.join(running)}" if running else "between two tasks"]
        if states := self._dispatches():
            parts.append(f"{states['accepted']} of {states.total()} requests accepted")
        post_backs = self.service.progress()["post_backs"]
        if to_come := post_backs["due"] + post_backs["later"]:
            parts.append(f"{post_backs['sent']:,} post-backs taken, {to_come:,} to come")
        elif post_backs["sent"]:
            parts.append(f"all {post_backs['sent']:,} post-backs taken")
        return "; ".join(parts)

    def _dispatches(self) -> Counter[str]:
        launches = self._ledger.launches.search(campaign=self._folder.name, limit=1)
        return Counter(self._ledger.dispatch_queries.states(launches[0].launch_key) if launches else {})

    def _failure(self, api: AirflowApi, run: str, tasks: list[Task]) -> str:
        dag = self._folder.name
        failed = next(filter(has_failed, tasks), None)
        if failed is None:
            return f"run {run} of the DAG {dag} failed, and no task of it; see {self._workspace.logs}"
        text = api.log_tail(dag, run, failed)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return f"the task {failed.name} of the DAG {dag} failed; the end of its log:\n{text}"

    def _conclude(self) -> tuple[LaunchStats, VerificationResult]:
        self._progress.doing("comparing with the service's own record")
        self.supervisor.wait_until(self.service.is_quiet, "the service has nothing left to post back")
        launch = self._ledger.launches.search(campaign=self._folder.name, limit=1)[0]
        reported = self._ledger.verdicts.figures(launch.launch_key)
        figures = reconcile_launch(self._ledger, launch.launch_key)
        if figures.verdicts != reported.verdicts:
            self._progress.print_line("Post-backs came after the DAG's report; this one has them all.")
        self._progress.show(as_terminal(describe_launch(figures)))
        self._progress.done("picture", str(as_picture(figures, self._workspace.picture)))
        result = verify(self._ledger, launch.launch_key, device_records(self.service.records()))
        self._progress.done("truth", str(result))
        return figures, result
