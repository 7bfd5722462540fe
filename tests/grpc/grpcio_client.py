"""Calls a limited health service until it is refused, with grpcio.

    python3 -m venv /tmp/grpcio && /tmp/grpcio/bin/pip install grpcio-status
    GRPCIO_PYTHON=/tmp/grpcio/bin/python cargo test -p grpc-tests -- --ignored

prints a line for each call: code and name and, of a refusal, the subject of its
QuotaFailure, and the seconds of its RetryInfo and of its `retry-after`.
"""

import sys

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

with grpc.insecure_channel(sys.argv[1]) as channel:
    # Messages as bytes: an empty one asks for the health of the whole server.
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    for _ in range(3):
        try:
            check(b"", timeout=10)
            print("0 OK")
        except grpc.RpcError as error:
            code, name = error.code().value[0], error.code().name
            retry, quota = error_details_pb2.RetryInfo(), error_details_pb2.QuotaFailure()
            for detail in rpc_status.from_call(error).details:
                detail.Unpack(retry) or detail.Unpack(quota)
            metadata = dict(error.trailing_metadata())
            print(
                code,
                name,
                quota.violations[0].subject,
                retry.retry_delay.ToNanoseconds() / 1e9,
                metadata["retry-after"],
            )
