"""A network cable that can be pulled: passes a browser's connections on to a server, until it is cut."""

import contextlib
import socket
import threading


class Cable:
    """Listens on a port of its own and passes everything on to another; cut, it drops and refuses connections."""

    def __init__(self, port: int) -> None:
        self._to, self._open, self._whole = port, set(), True
        self._entry = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://localhost:{self._entry.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole = False
        for end in list(self._open):
            self._close(end)

    def mend(self) -> None:
        self._whole = True

    def remove(self) -> None:
        self.cut()
        self._entry.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._entry.accept()
            except OSError:  # removed
                return
            if not self._whole:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._to))
            self._open |= {near, far}
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:  # either end is gone
            pass
        finally:
            self._close(source)
            self._close(sink)

    def _close(self, end: socket.socket) -> None:
        self._open.discard(end)
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
        end.close()
