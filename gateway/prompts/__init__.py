"""From what clients send to token ids: chat templates and tokenisation."""
