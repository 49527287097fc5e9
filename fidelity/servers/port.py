"""Which port a started server listens on."""

import socket
from collections.abc import Sequence

from fidelity.errors import PlanError, StartError
from fidelity.servers import launch


def port_for(user_flags: Sequence[str]) -> int:
    """The port that the user's flags name, else a free one. Raises StartError for one that is taken."""
    wanted = launch.given("port", user_flags)
    if wanted is None:
        return free_port()
    if not wanted.isdigit() or not 0 < int(wanted) < 65_536:
        raise PlanError(f"--port {wanted} is no port", "give 1 to 65535, or leave it out")
    if not is_free(int(wanted)):
        raise StartError(
            f"port {wanted} is taken by another process",
            f"leave out --port and a free one is used, or test what runs there: fidelity check "
            f"http://127.0.0.1:{wanted}",
        )
    return int(wanted)


def free_port() -> int:
    """A port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """Can a server listen on this port of the loopback interface now?"""
    with socket.socket() as probe:
        # A port whose last connections still linger is free to a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
