"""The people who may approve launches, for each role that a campaign.yaml names under approval.role.

Each is the user ID of Airflow's auth manager. With the simple auth manager, that is the user name.
"""

APPROVERS = {
    "crm": ["admin"],
}
