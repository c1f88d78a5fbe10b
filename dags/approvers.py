"""Who may approve launches: the people of each role that a campaign.yaml names under approval.role."""

APPROVERS = {
    "crm": ["admin"],  # as people are called where they log in to Airflow
}
