"""A whole campaign on one machine: a warehouse of invented people, the service, the receiver and a real Airflow."""
