"""The connection of the receiver of post-backs."""

from __future__ import annotations

from airflow.sdk import BaseHook

from sendoff.errors import SendoffError, SettingsError
from sendoff.service import PostBackSigner
from sendoff.settings import environment_settings
from sendoff_airflow import RECEIVER
from sendoff_airflow.hooks.connections import find_connection, web_address


class ReceiverHook(BaseHook):
    """Sign post-back addresses with the receiver's public URL and secrets.

    They are the host, with the port, and the password of the connection ``sendoff_receiver``. Without such a
    connection, they are SENDOFF_PUBLIC_URL and SENDOFF_POST_BACK_SECRETS. The receiver itself runs outside Airflow and
    reads these settings, or this connection if SENDOFF_SETTINGS_FROM is ``airflow``.
    """

    conn_name_attr = "receiver_conn_id"
    default_conn_name = RECEIVER
    conn_type = "sendoff_receiver"
    hook_name = "Sendoff post-back receiver"

    def __init__(self, receiver_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.receiver_conn_id = receiver_conn_id

    def get_conn(self) -> PostBackSigner:
        """Return the signer of post-back addresses. Raise SettingsError if the URL or the secrets are missing."""
        connection = find_connection(self.receiver_conn_id)
        if connection is None:
            try:
                return PostBackSigner.from_settings(environment_settings())
            except SettingsError as error:
                raise SettingsError(
                    f"there is no connection {self.receiver_conn_id}; add it in Airflow, or use variables: {error}"
                ) from None
        secrets = [part.strip() for part in (connection.password or "").split(",") if part.strip()]
        if not connection.host or not secrets:
            missing = "public URL (host field)" if not connection.host else "secret (password field)"
            raise SettingsError(f"connection {self.receiver_conn_id}: the {missing} is empty")
        return PostBackSigner(web_address(connection), secrets)

    def test_connection(self) -> tuple[bool, str]:
        """Check whether addresses can be signed, without calling anything."""
        try:
            signer = self.get_conn()
        except SendoffError as error:
            return False, str(error)
        return True, f"Post-backs will go to {signer.public_url}. This test did not call it."


def post_back_signer(conn_id: str = RECEIVER) -> PostBackSigner:
    """Return the signer of this deployment's post-back addresses."""
    return ReceiverHook(conn_id).get_conn()
