"""The adapter that a run's model asks for. Imported when it is known which: the others cost no start-up time."""

from pathlib import Path

import aiohttp

from towline.api import snapshot
from towline.harness.models.base import Model


def model_for(model: snapshot.Model, session: aiohttp.ClientSession, key_file: Path | None) -> Model:
    """Ready to stream; no I/O yet."""
    match model.api:
        case "Scripted":
            from towline.harness.models.scripted import Scripted

            return Scripted(model)
        case "AnthropicMessages":
            from towline.harness.models import anthropic
            from towline.harness.models.wire import Key, Wire

            url = (model.base_url or anthropic.BASE_URL).rstrip("/") + anthropic.PATH
            key = Key(key_file, "x-api-key")
            wire = Wire(session, url, key, timeout_seconds=model.request_timeout_seconds)
            return anthropic.AnthropicMessages(model, wire)
        case "OpenAIChatCompletions":
            from towline.harness.models import openai_chat
            from towline.harness.models.wire import Key, Wire

            url = (model.base_url or openai_chat.BASE_URL).rstrip("/") + openai_chat.PATH
            key = Key(key_file, "authorization", "Bearer {}")
            wire = Wire(session, url, key, timeout_seconds=model.request_timeout_seconds)
            return openai_chat.OpenAIChatCompletions(model, wire)
