"""What Airflow's own database knows of a campaign's runs."""
