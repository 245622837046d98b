"""Query gRPC health services: `python -m deploy.federation.health HOST:PORT ...`.

Flower's processes offer grpc.health.v1 under `--health-server-address`. It has no TLS, so they
listen on a loopback address. The exit code is 0 if all services are healthy. Otherwise it is 1,
and one line on stderr names the unhealthy ones.
"""

import argparse
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from common.errors import DeployError

TIMEOUT_SECONDS = 3.0  # per address
CHECK = "/grpc.health.v1.Health/Check"
OPTIONS = (("grpc.enable_http_proxy", 0),)  # HTTP proxies do not apply to loopback


def check_health(address: str, timeout: float = TIMEOUT_SECONDS) -> None:
    """Check that the health service at `address` (HOST:PORT) reports SERVING.

    Raises:
        DeployError: No reply within `timeout` seconds, or the reply is another status.
    """
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        check = channel.unary_unary(
            CHECK,
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        try:
            status = check(HealthCheckRequest(), timeout=timeout).status
        except grpc.RpcError as error:
            raise DeployError(
                f"{address} does not answer ({error.code().name}: {error.details()})"
            ) from error
        except ValueError as error:  # raised by grpc for an impossible address
            raise DeployError(f'"{address}" is not HOST:PORT ({error})') from error
    if status != HealthCheckResponse.SERVING:
        raise DeployError(f"{address} reports {HealthCheckResponse.ServingStatus.Name(status)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check every address on the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.federation.health", description="Check gRPC health services."
    )
    parser.add_argument("addresses", nargs="+", metavar="HOST:PORT")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_SECONDS, help="seconds for each address"
    )
    options = parser.parse_args(arguments)
    problems = []
    for address in options.addresses:
        try:
            check_health(address, options.timeout)
        except DeployError as error:
            problems.append(str(error).replace("\n", " "))
    if problems:
        sys.stderr.write("; ".join(problems) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
