"""A DAG that runs after each report of a campaign and reads the figures from the ledger."""

from contextlib import closing

from airflow.sdk import DAG, task

from sendoff_airflow.operators.assets import report_asset

with DAG(
    "sendoff_example_after",
    schedule=[report_asset("example_welcome_back")],
    tags=["sendoff", "example"],
) as dag:

    @task
    def check_missing(most_percent: float = 5) -> dict[str, int]:
        """Fail if too many people of the newest launch are missing. The event itself holds only counts."""
        from sendoff_airflow.hooks.ledger import open_ledger

        with closing(open_ledger()) as ledger:
            [launch] = ledger.launches.search(campaign="example_welcome_back", limit=1)
            verdicts = ledger.verdicts.figures(launch.launch_key).verdicts
        if verdicts["missing"] * 100 > most_percent * launch.audience:
            raise ValueError(f"{verdicts['missing']} of {launch.audience} people are missing")
        return dict(verdicts)

    check_missing()
