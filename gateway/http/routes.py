"""What there is over HTTP."""

import time

from gateway.config import GatewayLimits, HttpConfig
from gateway.http.boundary import Route
from gateway.http.chat_request import read_chat
from gateway.http.completion_request import read_completion
from gateway.http.completions import CompletionRoute, Work
from gateway.http.forms import ChatForm, TextForm
from gateway.http.models import ModelOffers, ModelRoutes


def make_routes(
    work: Work,
    offers: ModelOffers,
    config: HttpConfig,
    limits: GatewayLimits,
) -> list[Route]:
    chats = CompletionRoute(read_chat, ChatForm, work, config, limits)
    texts = CompletionRoute(read_completion, TextForm, work, config, limits)
    offered = ModelRoutes(offers, time.time())
    return [
        Route("HTTP/chat.completions", "POST", "/v1/chat/completions", chats.serve),
        Route("HTTP/completions", "POST", "/v1/completions", texts.serve),
        Route("HTTP/models.list", "GET", "/v1/models", offered.list_all),
        Route("HTTP/models.retrieve", "GET", "/v1/models/", offered.retrieve),
    ]
