from .dags import campaign_group as campaign_group

SERVICE: str
LEDGER: str
RECEIVER: str
