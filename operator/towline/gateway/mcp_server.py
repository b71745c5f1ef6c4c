"""The gateway as an MCP server of every generation: the SDK's low-level Server, with our calls below it.

`front.py` hands it the requests that the fast path does not take, already authenticated and bounded. It keeps no
session: any replica answers any request, and who calls is asked anew each time. The tool list is static per run.
"""

import logging
from typing import Any

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError

from towline import __version__
from towline.gateway.bound_run import BoundRuns
from towline.gateway.calls import Calls
from towline.gateway.exchange import read_request
from towline.gateway.identity import Principal
from towline.gateway.limits import BODY_BYTES
from towline.gateway.refusals import INTERNAL_ERROR, refusal
from towline.gateway.tools import TOOLS

log = logging.getLogger(__name__)

PRINCIPAL = "towline.principal"
"""Key of the caller in the ASGI scope of an authenticated request."""

SERVER_INFO = {"name": "towline-gateway", "version": __version__}
Context = ServerRequestContext[Any, Any]


def mcp_server(calls: Calls, runs: BoundRuns) -> Server[Any]:
    """The low-level server; `get_tool_input_schema` spares a whole tools/list run before each call."""

    async def list_tools(
        context: Context, _params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        principal = _principal(context)
        try:
            run = await runs.get(principal.namespace, principal.uid)
        except Exception as fault:
            raise _mcp_error(fault) from fault
        tools = [mcp_types.Tool.model_validate(tool.listing()) for tool in run.tools.values()]
        return mcp_types.ListToolsResult(tools=tools)

    async def call_tool(context: Context, _params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        try:
            answer = await calls.handle(_principal(context), read_request(context.params or {}))
        except Exception as fault:
            raise _mcp_error(fault) from fault
        return mcp_types.CallToolResult.model_validate(answer.to_mcp())

    return Server(
        SERVER_INFO["name"],
        version=SERVER_INFO["version"],
        get_tool_input_schema=lambda name: TOOLS[name].schema if name in TOOLS else None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def session_manager(server: Server[Any], *, allowed_hosts: list[str]) -> StreamableHTTPSessionManager:
    """SSE responses keep a long call alive by pings; without sessions there is none that can leak or be stolen."""
    return StreamableHTTPSessionManager(
        server,
        json_response=False,
        stateless=True,
        security_settings=TransportSecuritySettings(allowed_hosts=allowed_hosts, allowed_origins=[]),
        max_request_body_size=BODY_BYTES,
    )


def _principal(context: Context) -> Principal:
    request = context.request
    assert request is not None, "served over HTTP only"
    principal = request.scope[PRINCIPAL]
    assert isinstance(principal, Principal)
    return principal


def _mcp_error(fault: Exception) -> MCPError:
    known = refusal(fault)
    if known is None:
        log.exception("call failed")
        return MCPError(INTERNAL_ERROR, "internal error")
    return MCPError(known.code, known.message, known.data)
