"""A forward proxy on loopback, as companies have one between their machines and the internet."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Tunnel(socketserver.ThreadingTCPServer):
    """A forward proxy: CONNECT to 127.0.0.1 at any port, whatever name is given."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), TunnelHandler)
        self.status, self.heads = status, list[bytes]()


class TunnelHandler(socketserver.StreamRequestHandler):
    server: Tunnel

    def handle(self) -> None:
        head = b"".join(iter(self.rfile.readline, b"\r\n"))
        self.server.heads.append(head)
        self.wfile.write(f"HTTP/1.1 {self.server.status} Told\r\n\r\n".encode())
        port = int(head.split()[1].rpartition(b":")[2])
        if self.server.status != 200:
            return
        with socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=copy, args=(server, self.connection))
            back.start()
            copy(self.connection, server)
            back.join()


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def tunnel(status: int = 200) -> Iterator[Tunnel]:
    with Tunnel(status) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()
