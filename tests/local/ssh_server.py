"""OpenSSH's server on this machine, and a client that knows it as `pi`."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
needs_sshd = pytest.mark.skipif(
    not (SSHD and shutil.which("ssh")) and not os.environ.get("CI"), reason="no sshd here; CI installs one"
)


def key(path: Path) -> str:
    """Write a key pair and return its public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text()


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """Serve; `ssh` on the PATH knows the hosts `pi`, `stranger` (another host key), `locked`, `off` and `new` (none).

    Its configuration accepts unknown host keys, as that of a careless user does.
    """
    (folder / "authorized_keys").write_text(key(folder / "user"))
    host_key, other = key(folder / "host"), key(folder / "other")
    port, closed_port = free_port(), free_port()
    (folder / "known_hosts").write_text(f"pi {host_key}locked {host_key}off {host_key}stranger {other}")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n"
        "StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\n"
    )
    hosts = "".join(
        f"Host {name}\nHostKeyAlias {name}\nPort {closed_port if name == 'off' else port}\n"
        f"IdentityFile {folder}/{'other' if name == 'locked' else 'user'}\n"
        for name in ("pi", "stranger", "locked", "off", "new")
    )
    (folder / "config").write_text(
        f"{hosts}Host *\nHostName 127.0.0.1\nUser {getpass.getuser()}\nIdentitiesOnly yes\n"
        f"StrictHostKeyChecking accept-new\nUserKnownHostsFile {folder}/known_hosts\n"
    )
    (folder / "bin").mkdir()
    client = folder / "bin/ssh"
    client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    client.chmod(0o755)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([SSHD or "sshd", "-D", "-f", str(folder / "sshd_config")]) as server:
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert server.poll() is None and time.monotonic() < deadline
                    time.sleep(0.05)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
                patch.setenv("XDG_CONFIG_HOME", f"{folder}/config_home")
                yield
        finally:
            server.terminate()
