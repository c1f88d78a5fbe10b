from .dags import campaign_group

__all__ = ["LEDGER", "RECEIVER", "SERVICE", "campaign_group"]

SERVICE: str
LEDGER: str
RECEIVER: str
