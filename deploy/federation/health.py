"""Ask gRPC health services whether they serve: `python -m deploy.federation.health HOST:PORT ...`.

Flower's processes offer grpc.health.v1 under `--health-server-address`, without TLS and so on a
loopback address. The exit code is 0 when all that were asked serve, else 1 with one line that names
those that do not.
"""

import argparse
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from common.errors import DeployError

SECONDS = 3.0  # for one address
CHECK = "/grpc.health.v1.Health/Check"
OPTIONS = (("grpc.enable_http_proxy", 0),)  # a proxy variable is not for this machine's own ports


def check_health(address: str, seconds: float = SECONDS) -> None:
    """Return if the health service at `address` (HOST:PORT) says that it serves.

    Raises:
        DeployError: nobody answers within `seconds`, or the answer is another one.
    """
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        check = channel.unary_unary(
            CHECK,
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        try:
            status = check(HealthCheckRequest(), timeout=seconds).status
        except grpc.RpcError as error:
            raise DeployError(
                f"{address} does not answer ({error.code().name}: {error.details()})"
            ) from error
        except ValueError as error:  # from within grpc, for what cannot be an address
            raise DeployError(f'"{address}" is not HOST:PORT ({error})') from error
    if status != HealthCheckResponse.SERVING:
        raise DeployError(f"{address} says {HealthCheckResponse.ServingStatus.Name(status)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask every address on the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.federation.health", description="Ask for health."
    )
    parser.add_argument("addresses", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--timeout", type=float, default=SECONDS, help="seconds for each address")
    given = parser.parse_args(arguments)
    problems = []
    for address in given.addresses:
        try:
            check_health(address, given.timeout)
        except DeployError as error:
            problems.append(str(error).replace("\n", " "))
    if problems:
        sys.stderr.write("; ".join(problems) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
