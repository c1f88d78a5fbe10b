"""The people who may approve launches, for each role that a campaign.yaml names under approval.role."""

APPROVERS = {
    "crm": ["admin"],  # login names in Airflow
}
