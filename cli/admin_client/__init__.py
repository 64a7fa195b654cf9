"""The operator's side of the admin API: every call, with plain values in and out."""

from cli.admin_client.client import AdminClient
from cli.admin_client.reaching import admin_client, admin_token_file, data_folder

__all__ = ["AdminClient", "admin_client", "admin_token_file", "data_folder"]
