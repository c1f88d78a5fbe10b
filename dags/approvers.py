"""The people who may approve launches, for each role that a campaign.yaml names under approval.role.

Name each person by their user ID in Airflow. With the simple auth manager, that is the user name.
"""

APPROVERS = {
    "crm": ["admin"],
}
