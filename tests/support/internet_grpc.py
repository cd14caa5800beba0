"""A gRPC server for tests: `internet_grpc.py PORT`. `/echo.Echo/Stream` returns each message as it comes, as bytes."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator

import grpc


class _Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg] # generic in its types only, not when it runs
    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Return the handler of the one method there is."""
        return grpc.stream_stream_rpc_method_handler(_echo) if details.method == "/echo.Echo/Stream" else None


async def _echo(
    messages: AsyncIterator[bytes], _context: "grpc.aio.ServicerContext[bytes, bytes]"
) -> AsyncGenerator[bytes]:
    async for message in messages:
        yield message


async def _serve(port: int) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    os.write(1, b"ready\n")
    await server.wait_for_termination()


asyncio.run(_serve(int(sys.argv[1])))
