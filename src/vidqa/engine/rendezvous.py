"""The rendezvous of a job: a store at one address; for a single machine, its loopback address.

torchrun's own rendezvous listens on every address of the machine and unpickles data from anybody. Here nothing
is unpickled, and the first node listens only at the address that other nodes use.
"""

from __future__ import annotations

import argparse
import errno
import ipaddress
import socket
from datetime import timedelta

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from vidqa.core import environment

BACKEND = "vidqa"
USUAL_PORT = 29500
LIMIT_S = 600  # seconds until all nodes must have joined


class Rendezvous(StaticTCPRendezvous):
    """torchrun's static rendezvous with a store that listens only at its address if that is numeric. A name may resolve
    differently on other nodes: the store then listens at all addresses, as in torchrun."""

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        listening = _listening(self.master_addr, self.master_port) if self.rank == 0 and not self._store else None
        if listening:
            self.master_port = listening.getsockname()[1]
            self._store = _store(self.master_addr, listening, self.world_size, self.timeout)
        return super().next_rendezvous()


def store_on_one_node(timeout: timedelta) -> TCPStore:
    """The store of ranks that vidqa.engine.torchrun started on one node, or of a process that was started alone."""
    if environment.rank():
        return TCPStore(environment.LOOPBACK, environment.master_port(), environment.world_size(), timeout=timeout)
    handle = environment.take_rendezvous()
    listening = socket.create_server((environment.LOOPBACK, 0)) if handle is None else socket.socket(fileno=handle)
    return _store(environment.LOOPBACK, listening, environment.world_size(), timeout)


def _store(host: str, listening: socket.socket, processes: int, timeout: timedelta) -> TCPStore:
    return TCPStore(
        host,
        listening.getsockname()[1],
        processes,
        is_master=True,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=listening.detach(),
    )


def prepare(options: argparse.Namespace) -> None:
    """Make torchrun use this rendezvous, by changing its parsed options."""
    options.rdzv_endpoint = f"{options.master_addr}:{options.master_port or USUAL_PORT}"
    options.rdzv_backend, options.rdzv_conf = BACKEND, f"rank={options.node_rank}"
    options.node_rank = 0  # torchrun warns that only its own backend reads it
    registry.register(BACKEND, _create)


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    host, port = parse_rendezvous_endpoint(parameters.endpoint, USUAL_PORT)
    return Rendezvous(host, port, int(parameters.get("rank")), parameters.max_nodes, parameters.run_id, LIMIT_S)


def _listening(host: str, port: int) -> socket.socket | None:
    """A listening socket; None for a host name, or an address that this machine does not have."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except ValueError:
        return None
    except OSError as failed:
        if failed.errno != errno.EADDRNOTAVAIL:
            raise
        return None
