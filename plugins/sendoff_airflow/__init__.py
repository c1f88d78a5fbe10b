"""Sendoff inside Airflow: the only code of Sendoff that imports Airflow."""
