"""A proxy between browser and server that can be cut like a network cable."""

import contextlib
import socket
import threading


class Cable:
    """Forwards connections to a port; when cut, it drops and refuses them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[socket.socket] = set()
        self._connected = True
        self._entry = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://localhost:{self._entry.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._connected = False
        for end in list(self._open):
            self._close(end)

    def reconnect(self) -> None:
        self._connected = True

    def remove(self) -> None:
        self.cut()
        self._entry.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._entry.accept()
            except OSError:
                return
            if not self._connected:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._port))
            self._open |= {near, far}
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:  # one end was closed
            pass
        finally:
            self._close(source)
            self._close(sink)

    def _close(self, end: socket.socket) -> None:
        self._open.discard(end)
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)  # wakes the reading thread
        end.close()
