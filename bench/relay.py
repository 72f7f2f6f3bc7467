"""`python -m bench.relay SECONDS PORT…`: a network whose round trips take so long. Prints the ports to connect to instead.

Replies are held back for that time, requests pass at once: a round trip is longer by it, which is all that a caller sees.
Bytes are not looked at. By hand and with select(), whose timers are exact to microseconds (those of poll and epoll: to a
millisecond), because whatever the relay costs is added to the network. It ends when its input does.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress


class Relay:
    """Connections in pairs, and what is on its way back."""

    def __init__(self, delay: float, ports: list[int]) -> None:
        self.delay = delay
        self.doors = {socket.create_server(("127.0.0.1", 0)): port for port in ports}
        self.to_server: dict[socket.socket, socket.socket] = {}
        self.to_client: dict[socket.socket, socket.socket] = {}
        self.on_the_way: deque[tuple[float, socket.socket, bytes]] = deque()  # all take equally long: in order of arrival

    def run(self) -> None:
        clock = time.perf_counter
        while True:
            left = max(self.on_the_way[0][0] - clock(), 0.0) if self.on_the_way else None
            ready, _, _ = select.select([sys.stdin, *self.doors, *self.to_server, *self.to_client], [], [], left)
            while self.on_the_way and self.on_the_way[0][0] <= clock():
                _, client, data = self.on_the_way.popleft()
                self._send(client, data)
            for one in ready:
                if one is sys.stdin:
                    return
                if one in self.doors:
                    self._accept(one)
                elif one in self.to_client:
                    data = _heard(one)
                    self.on_the_way.append((clock() + self.delay, self.to_client[one], data))
                    if not data:  # a goodbye takes as long as anything else
                        del self.to_client[one]
                elif one in self.to_server:
                    self._send(one, b"") if not (data := _heard(one)) else self._send(self.to_server[one], data)

    def _accept(self, door: socket.socket) -> None:
        client, _ = door.accept()
        server = socket.create_connection(("127.0.0.1", self.doors[door]))
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.to_server[client], self.to_client[server] = server, client

    def _send(self, one: socket.socket, data: bytes) -> None:
        """To either end. Nothing, to a client: the connection is over."""
        if one.fileno() < 0:
            return
        if not data:
            server = self.to_server.pop(one)
            self.to_client.pop(server, None)
            server.close()
            one.close()
            return
        with suppress(OSError):  # it has hung up, and will be heard of
            one.sendall(data)


def _heard(one: socket.socket) -> bytes:
    """What it says; nothing when it has hung up."""
    try:
        return one.recv(65536)
    except OSError:
        return b""


if __name__ == "__main__":
    relay = Relay(float(sys.argv[1]), [int(port) for port in sys.argv[2:]])
    print(json.dumps([door.getsockname()[1] for door in relay.doors]), flush=True)
    relay.run()
